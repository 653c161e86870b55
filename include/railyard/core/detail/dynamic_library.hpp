// SPDX-License-Identifier: MIT
// A library that is found when the program runs, and its functions. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include <dlfcn.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a library in this program. It stays for good: threads of its own may run in it.
class DynamicLibrary {
 public:
  /// Takes the library at path; if path is empty, what the variable names; else the one that is loaded already, by
  /// which `probe` is found, so that all parts of a program share it; else the first of names.
  /// Throws: ConfigError that says how to name one.
  DynamicLibrary(std::string_view what, const std::string& path, const char* variable, const char* probe,
                 std::span<const char* const> names)
      : what_(what) {
    const char* const set = std::getenv(variable);
    const std::string own = path.empty() && set != nullptr ? std::string{set} : path;
    if (own.empty() && ::dlsym(RTLD_DEFAULT, probe) != nullptr) return;
    std::string problem;
    const auto open = [&](const char* name) {
      handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle_ == nullptr) problem = ::dlerror();
      return handle_ != nullptr;
    };
    if (!own.empty()) {
      if (open(own.c_str())) return;
    } else {
      for (const char* name : names) {
        if (open(name)) return;
      }
    }
    throw ConfigError{compose("{} cannot be loaded ({}); install it, or name its file by {}", what, problem, variable)};
  }

  /// Throws: ConfigError if there is no such function.
  template <class Function>
  void find(const char* name, Function*& function) const {
    if (!find_if_there(name, function)) throw ConfigError{compose("{} has no function {}: it is too old", what_, name)};
  }

  /// Returns false, and leaves a null pointer, if there is no such function.
  template <class Function>
  bool find_if_there(const char* name, Function*& function) const noexcept {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  std::string what_;
  void* handle_ = RTLD_DEFAULT;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
