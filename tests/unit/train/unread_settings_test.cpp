// SPDX-License-Identifier: MIT
#include "railyard/train/detail/unread_settings.hpp"

#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/workers/launched.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace unread_settings_test {

// Refused before anything starts, with the name of the setting.
template <class B, class S>
void refuses(const ry::ScalingConfig& scaling, const std::string& setting, const std::string& reason) {
  const Scratch scratch;
  bool was_called = false;
  ry::Trainer<B, S> trainer{
      [&](ry::Worker&) { was_called = true; }, scaling, {.storage_path = scratch.path() / "runs"}};
  CHECK_THROWS_AS(trainer.fit(), ry::ConfigError);
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("ScalingConfig::" + setting + " is set") &&
                                       ContainsSubstring(reason) && ContainsSubstring("leave it out"));
  CHECK_FALSE(was_called);
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "runs"));
}

TEST_CASE("fit: refuses settings of launched processes where there are none, each by its name") {
  const std::vector<std::pair<std::string, ry::LaunchConfig>> settings{
      {"process", {.process = 0}},           {"num_processes", {.num_processes = 2}},
      {"leader", {.leader = "a:1"}},         {"job", {.job = "7"}},
      {"network", {.network = "lo"}},        {"rendezvous", {.rendezvous = "/tmp"}},
      {"secret_file", {.secret_file = "s"}}, {"tls", {.tls = false}}};
  for (const auto& [field, launch] : settings) {
    refuses<ry::Local, ry::Threads>({.launch = launch}, "launch." + field, "but Threads makes all its workers itself");
  }
  refuses<ry::SharedMemory, ry::Processes>({.num_workers = 2, .launch = {.leader = "a:1"}}, "launch.leader",
                                           "but Processes makes all its workers itself");
}

TEST_CASE("fit: refuses what says how much room there is where the number of workers is fixed") {
  const ry::ScalingConfig with_capacity{.num_workers = 2, .capacity = [] { return 1; }};
  refuses<ry::Local, ry::Threads>(with_capacity, "capacity", ".num_workers = {1, 3}");
  refuses<ry::SharedMemory, ry::Processes>(with_capacity, "capacity", "num_workers is 2");
  refuses<ry::Local, ry::Threads>({.capacity_interval = std::chrono::seconds{1}}, "capacity_interval",
                                  ".num_workers = {1, 2}");
}

TEST_CASE("refuse_unread_settings: lets pass what is looked at, and what is as it is by default") {
  const auto passes = [](const ry::ScalingConfig& scaling, bool joins) {
    CHECK_NOTHROW(ry::detail::refuse_unread_settings(scaling, "a scaling", joins));
  };
  passes({}, false);
  passes({.num_workers = 3, .use_gpu = true}, false);
  passes({.num_workers = 3, .capacity_interval = std::chrono::seconds{10}}, false);
  passes({.num_workers = {1, 3}, .capacity = [] { return 1; }, .capacity_interval = std::chrono::seconds{1}}, false);
  passes({.num_workers = 3, .launch = {.process = 0, .leader = "a:1", .tls = true}}, true);
  static_assert(ry::JoiningScaling<ry::Launched> && !ry::JoiningScaling<ry::Processes>);
  CHECK_THROWS_WITH(ry::detail::refuse_unread_settings({.capacity = [] { return 1; }}, "Launched", true),
                    ContainsSubstring("ScalingConfig::capacity is set"));
}

}  // namespace unread_settings_test
