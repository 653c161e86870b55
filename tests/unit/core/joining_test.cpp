// SPDX-License-Identifier: MIT
#include "railyard/core/joining.hpp"

#include "support/catch.hpp"

namespace ry = railyard;

namespace {

// Is a Scaling of one process that something else has started, as little as the concept asks for.
struct Alone {
  static constexpr std::string_view name = "Alone";
  static constexpr ry::Reach reach = ry::Reach::process;
  static constexpr bool copies_function = false;

  std::unique_ptr<ry::WorkerGroup> start(const ry::GroupPlan& /*plan*/, const ry::WorkerBody& /*body*/) { return {}; }
  void join(const ry::JoinPlan& plan) { num = plan.num_workers; }
  bool leads() const { return true; }
  int num_processes() const { return 1; }
  int num_workers() const { return num; }
  int room() { return num; }
  void tell(std::string_view /*text*/) {}
  void note(std::string_view /*text*/) {}
  std::string hear() { return {}; }
  std::string follow(const ry::WorkerBody& /*body*/) { return {}; }
  ry::LostLead lost_lead() const { return {}; }
  ry::LeaderPlace offer(std::uint64_t generation) { return {.generation = generation}; }
  bool take_place(const ry::Deadline& /*deadline*/, bool /*is_last*/) { return true; }
  bool try_to_follow(const ry::LeaderPlace& /*place*/, const ry::Deadline& /*deadline*/) { return false; }
  int num = 0;
};

// Lacks what the others are told by.
struct Mute : Alone {
  void tell(std::string_view) = delete;
};

}  // namespace

TEST_CASE("JoiningScaling: asks for all that processes need to find each other") {
  STATIC_REQUIRE(ry::JoiningScaling<Alone>);
  STATIC_REQUIRE(ry::Scaling<Mute>);
  STATIC_REQUIRE_FALSE(ry::JoiningScaling<Mute>);
}

TEST_CASE("JoinPlan: waits a minute and makes one worker unless it is told otherwise") {
  const ry::JoinPlan plan;
  CHECK(plan.num_workers == 1);
  CHECK_FALSE(plan.is_elastic);
  CHECK(plan.timeout == std::chrono::minutes{1});
  CHECK(plan.silence_limit == std::chrono::seconds{30});
  CHECK_FALSE(plan.say);
}
