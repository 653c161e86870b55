// SPDX-License-Identifier: MIT
// Gloo between two hosts that are one, where every connection proves that it belongs to the run.
#pragma once

#include "railyard/workers/detail/rank_lines.hpp"

#include "support/pretended_hosts.hpp"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace railyard_test {

inline ry::World on_two_proven_hosts(ry::World world) {
  world = on_two_hosts(std::move(world));
  world.connector = std::make_shared<ry::detail::SecretConnector>(
      ry::detail::Hmac{ry::detail::text_bytes("the secret of the tests' run")}, "0 job",
      [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
  return world;
}
using GlooOnTwoProvenHosts = GlooOnHosts<on_two_proven_hosts>;

}  // namespace railyard_test
