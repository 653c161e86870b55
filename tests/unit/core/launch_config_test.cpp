// SPDX-License-Identifier: MIT
#include "railyard/core/launch_config.hpp"

#include "support/catch.hpp"

TEST_CASE("LaunchConfig: leaves everything to the environment unless it is told otherwise") {
  const railyard::LaunchConfig config;
  CHECK(config.process == -1);
  CHECK(config.num_processes == 0);
  for (const auto& text : {config.leader, config.job, config.network, config.rendezvous.string()}) CHECK(text.empty());
  CHECK(config.secret_file.empty());
  CHECK_FALSE(config.tls.has_value());
}
