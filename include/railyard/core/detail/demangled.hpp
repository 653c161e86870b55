// SPDX-License-Identifier: MIT
// The names of types as messages show them. Core room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstdlib>
#include <string>
#include <typeinfo>

#include <cxxabi.h>

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline std::string demangled(const std::type_info& type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 && text != nullptr ? text : type.name();
  std::free(text);
  return name;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
