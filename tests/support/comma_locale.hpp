// SPDX-License-Identifier: MIT
// A locale whose decimal point is a comma, on any machine: which locales are installed is not asked.
#pragma once

#include "support/temporary_folder.hpp"

#include <clocale>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <stdlib.h>

/// Writes numbers as a German does for as long as it lives, all over the program.
class CommaLocale {
 public:
  CommaLocale() {
    std::filesystem::create_directory(folder_.path() / "comma");
    static_cast<void>(folder_.write("comma/LC_NUMERIC", rules()));
    if (const char* before = ::getenv("LOCPATH")) path_before_ = before;
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    static_cast<void>(std::setlocale(LC_NUMERIC, "comma"));
    is_set_ = std::string_view{std::localeconv()->decimal_point} == ",";
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;
  ~CommaLocale() {
    static_cast<void>(std::setlocale(LC_NUMERIC, before_.c_str()));
    if (path_before_) {
      ::setenv("LOCPATH", path_before_->c_str(), 1);
    } else {
      ::unsetenv("LOCPATH");
    }
  }

  /// Whether there is such a locale: a C library other than glibc has none, or takes it from elsewhere.
  [[nodiscard]] bool is_set() const noexcept { return is_set_; }

 private:
  // What localedef makes of decimal_point ",", thousands_sep "." and grouping 3;3. It is not asked to: it wants a table
  // of characters, which is in a package of its own.
  static std::string rules() {
    std::string bytes;
    const auto add = [&bytes](std::uint32_t number) {
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    // A mark with the number of the category, how many values follow, and where.
    for (const std::uint32_t number : {0x20031115U ^ std::uint32_t{LC_NUMERIC}, 6U, 32U, 34U, 36U, 40U, 44U, 48U}) {
      add(number);
    }
    bytes.append(",\0.\0\3\3\0\0", 8);
    add(',');
    add('.');
    bytes.append("ANSI_X3.4-1968", 15);
    return bytes;
  }

  TemporaryFolder folder_;
  std::string before_ = std::setlocale(LC_NUMERIC, nullptr);
  std::optional<std::string> path_before_;
  bool is_set_ = false;
};
