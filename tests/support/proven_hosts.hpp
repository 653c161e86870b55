// SPDX-License-Identifier: MIT
// Gloo between two hosts that are one, where every connection proves that it belongs to the run, and goes by TLS or
// not.
#pragma once

#include "railyard/workers/detail/rank_lines.hpp"

#include "support/pretended_hosts.hpp"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace railyard_test {

template <bool has_tls>
ry::World on_two_proven_hosts(ry::World world) {
  world = on_two_hosts(std::move(world));
  world.connector = std::make_shared<ry::detail::SecretConnector>(
      ry::detail::Hmac{ry::detail::text_bytes("the secret of the tests' run")}, "0 job",
      [](const std::string& line) { fmt::print(stderr, "{}\n", line); },
      ry::detail::RankLineLimits{.has_tls = has_tls});
  return world;
}
using GlooOnTwoProvenHosts = GlooOnHosts<on_two_proven_hosts<false>>;
using GlooOnTwoTlsHosts = GlooOnHosts<on_two_proven_hosts<true>>;

}  // namespace railyard_test
