// SPDX-License-Identifier: MIT
// What may differ between two programs that go on with one run, by name. Train room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

[[nodiscard]] inline bool accepts_change(const std::vector<std::string>& accepted, std::string_view name) {
  return std::find(accepted.begin(), accepted.end(), name) != accepted.end();
}

/// Throws: ConfigError for a name that nothing has.
inline void check_accepted_changes(const std::vector<std::string>& accepted) {
  constexpr std::array<std::string_view, 3> known{"seed", "data", "checkpoints"};
  for (const std::string& name : accepted) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw ConfigError{
        compose("RunConfig::accept_changes has \"{}\", which is nothing that could be accepted: there are \"seed\", "
                "\"data\" and "
                "\"checkpoints\"",
                name)};
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
