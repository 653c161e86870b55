// SPDX-License-Identifier: MIT
// A variable of the environment, for as long as a test needs it.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace railyard_test {

/// Sets a variable of the environment, and makes it in the end what it was.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    if (const char* former = std::getenv(name)) former_ = former;
    ::setenv(name, value.c_str(), 1);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() { former_ ? ::setenv(name_, former_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> former_{};
};

}  // namespace railyard_test
