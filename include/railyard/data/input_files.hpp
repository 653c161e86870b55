// SPDX-License-Identifier: MIT
// The files that a source reads: by path, by a list, or by a pattern. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <glob.h>

namespace railyard::inline v0_1 {

namespace detail {

// Gives each text that a text with braces stands for, in their order: "x-{000..146}.tar", "{train,test}.csv". Braces
// around neither a range nor a list are characters like others.
class BraceExpansion {
 public:
  // Throws: ConfigError if there are more than anybody means.
  [[nodiscard]] static std::vector<std::string> of(const std::string& text) {
    std::vector<std::string> all{""};
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t close = text[at] == '{' ? end_of(text, at) : std::string::npos;
      const auto choices = close == std::string::npos ? std::vector<std::string>{} : choices_of(text, at + 1, close);
      if (choices.empty()) {
        for (std::string& one : all) one += text[at];
        ++at;
        continue;
      }
      all = all_with(text, all, choices);
      at = close + 1;
    }
    return all;
  }

 private:
  static constexpr std::size_t most = 1'000'000;

  // Where the brace that opens here closes.
  [[nodiscard]] static std::size_t end_of(const std::string& text, std::size_t open) {
    std::size_t depth = 0;
    for (std::size_t at = open; at < text.size(); ++at) {
      if (text[at] == '{') ++depth;
      if (text[at] == '}' && --depth == 0) return at;
    }
    return std::string::npos;
  }

  // What stands between braces, whose braces are expanded as well; empty if it is no choice.
  [[nodiscard]] static std::vector<std::string> choices_of(const std::string& text, std::size_t begin,
                                                           std::size_t end) {
    std::vector<std::string> choices;
    std::size_t depth = 0;
    std::size_t from = begin;
    for (std::size_t at = begin; at <= end; ++at) {
      if (at < end && text[at] == '{') ++depth;
      if (at < end && text[at] == '}') --depth;
      if (at < end && (text[at] != ',' || depth > 0)) continue;
      if (at == end && from == begin) return range_of(text, text.substr(begin, end - begin));
      for (std::string& one : of(text.substr(from, at - from))) choices.push_back(std::move(one));
      from = at + 1;
    }
    return choices;
  }

  // The numbers of "7..12" or "007..012", of as many digits as the first has; empty if it is no such range.
  [[nodiscard]] static std::vector<std::string> range_of(const std::string& text, std::string_view range) {
    const std::size_t dots = range.find("..");
    if (dots == std::string_view::npos) return {};
    const auto first = number_of(range.substr(0, dots));
    const auto last = number_of(range.substr(dots + 2));
    if (!first || !last) return {};
    if (*last < *first || *last - *first >= most) {
      throw ConfigError{
          compose("the files \"{}\": {{{}}} is no range of at most {} numbers upwards", text, range, most)};
    }
    std::vector<std::string> numbers;
    for (std::uint64_t number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < dots) digits.insert(0, dots - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
    return numbers;
  }
  [[nodiscard]] static std::optional<std::uint64_t> number_of(std::string_view digits) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc{} || end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
    return number;
  }

  [[nodiscard]] static std::vector<std::string> all_with(const std::string& text,
                                                         const std::vector<std::string>& before,
                                                         const std::vector<std::string>& choices) {
    if (before.size() > most / choices.size()) {
      throw ConfigError{compose("the files \"{}\" are more than {}: name fewer", text, most)};
    }
    std::vector<std::string> all;
    for (const std::string& begin : before) {
      for (const std::string& choice : choices) all.push_back(begin + choice);
    }
    return all;
  }
};

}  // namespace detail

/// Names files: each is a path, or a pattern with *, ? or [...] for those that match, sorted. Braces stand for several
/// names in their order: "x-{000..146}.tar", "{train,extra}.csv". Looks at none of them before expand().
class InputFiles {
 public:
  InputFiles(std::string path) : paths_{std::move(path)} {}
  InputFiles(const char* path) : paths_{path} {}
  InputFiles(const std::filesystem::path& path) : paths_{path.string()} {}
  InputFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  InputFiles(std::initializer_list<std::string> paths) : paths_(paths) {}

  /// As messages show them.
  [[nodiscard]] std::string describe() const {
    if (paths_.empty()) return "no files";
    return paths_.size() == 1 ? paths_.front() : detail::compose("{} and {} more", paths_.front(), paths_.size() - 1);
  }

  /// Returns the paths of all files. Throws: DataError if there are none, or a pattern matches none.
  [[nodiscard]] std::vector<std::string> expand() const {
    if (paths_.empty()) throw ConfigError{"a source was given no files: name at least one"};
    std::vector<std::string> files;
    for (const std::string& path : paths_) {
      if (is_there(path)) {  // a file may have such characters in its name
        files.push_back(path);
        continue;
      }
      for (const std::string& name : detail::BraceExpansion::of(path)) {
        if (name.find_first_of("*?[") == std::string::npos || is_there(name)) {
          files.push_back(name);
        } else {
          add_matches(name, files);
        }
      }
    }
    return files;
  }

  /// The same after a look at each, for a name that is none is no damage that may be left out. Throws: DataError for a
  /// path of no file that can be read, a directory or a pipe included; as expand().
  [[nodiscard]] std::vector<std::string> expand_files() const {
    std::vector<std::string> files = expand();
    for (const std::string& path : files) detail::check_file(path);
    return files;
  }

 private:
  [[nodiscard]] static bool is_there(const std::string& path) {
    std::error_code no_error;
    return std::filesystem::exists(path, no_error);
  }
  static void add_matches(const std::string& pattern, std::vector<std::string>& files) {
    glob_t found{};
    const int error = ::glob(pattern.c_str(), 0, nullptr, &found);
    for (std::size_t at = 0; error == 0 && at < found.gl_pathc; ++at) files.emplace_back(found.gl_pathv[at]);
    ::globfree(&found);
    if (error == 0) return;
    std::error_code no_error;
    throw DataError{detail::compose("no file matches \"{}\" (working directory {})", pattern,
                                    std::filesystem::current_path(no_error).string())};
  }

  std::vector<std::string> paths_;
};

/// Names files that are compressed, and knows how to read them: ry::gzip() and ry::zstd() make it.
struct CompressedFiles {
  InputFiles files;
  detail::OpenBytes open = nullptr;
};

namespace detail {

// Throws: DataError if a place that was saved can be none of these files. After the last of them it is one.
inline void check_place(std::string_view source, const std::vector<std::string>& names, std::uint64_t from,
                        const ReaderPlace& place) {
  const bool is_known = place.file < names.size() || (place.file == names.size() && place.samples == from);
  if (is_known && place.samples <= from && (place.file > 0 || place.samples == 0)) return;
  const std::string file =
      place.file < names.size() ? compose("in {}", names[static_cast<std::size_t>(place.file)]) : "after its last file";
  throw DataError{compose(
      "{} cannot go on with sample {}, whose saved place is {}, file {} of {}, before which there were {} samples: "
      "these "
      "are not the files that it was saved with, or the checkpoint is damaged: give those files, or begin anew with "
      "another RunConfig::name",
      source, from, file, place.file + 1, names.size(), place.samples)};
}

}  // namespace detail

}  // namespace railyard::inline v0_1
