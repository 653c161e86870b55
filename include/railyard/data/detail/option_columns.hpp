// SPDX-License-Identifier: MIT
// Finds the columns that options name. Data room.
#pragma once

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns which column an option names. where: what the option belongs to, such as a file. hint: what else the message
/// says. Throws: ConfigError that names all of these, and the columns that exist.
[[nodiscard]] inline std::size_t column_of_option(std::string_view where, std::string_view option, const Schema& schema,
                                                  std::string_view name, std::string_view hint = {}) {
  if (const auto column = schema.find(name)) return *column;
  throw ConfigError{
      compose("{}: {}: there is no column \"{}\": there are {}{}", where, option, name, schema.names(), hint)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
