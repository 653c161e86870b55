// SPDX-License-Identifier: MIT
#include "railyard/train/detail/joining.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/workers/threads.hpp"

#include <atomic>
#include <stdexcept>

namespace ry = railyard;

namespace {

// A backend for one worker, whose connect() does what the test wants.
struct Solo {
  struct Options {
    std::function<void(ry::Store&, const ry::Deadline&)> on_connect{};
  };
  static constexpr std::string_view name = "solo";
  static constexpr ry::Reach reach = ry::Reach::process;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cpu;
  static void check(const Options& /*options*/) {}
  static std::unique_ptr<Solo> connect(const Options& options, const ry::World& /*world*/, ry::Store& store,
                                       const ry::Deadline& deadline) {
    options.on_connect(store, deadline);
    return std::make_unique<Solo>();
  }
  ry::FinishedWork all_reduce(ry::Buffer, ry::ReduceOp, const ry::Call&) { return {}; }
  ry::FinishedWork reduce_scatter(ry::ConstBuffer, ry::Buffer, ry::ReduceOp, const ry::Call&) { return {}; }
  ry::FinishedWork broadcast(ry::Buffer, int, const ry::Call&) { return {}; }
  ry::FinishedWork all_gather(ry::ConstBuffer, ry::Buffer, const ry::Call&) { return {}; }
  ry::FinishedWork all_gather_uneven(ry::ConstBuffer, ry::Buffer, std::span<const std::size_t>, const ry::Call&) {
    return {};
  }
  ry::FinishedWork gather(ry::ConstBuffer, ry::Buffer, int, const ry::Call&) { return {}; }
  ry::FinishedWork scatter(ry::ConstBuffer, ry::Buffer, int, const ry::Call&) { return {}; }
  ry::FinishedWork all_to_all(ry::ConstBuffer, ry::Buffer, const ry::Call&) { return {}; }
  ry::FinishedWork barrier(const ry::Call&) { return {}; }
  ry::FinishedWork send(ry::ConstBuffer, int, const ry::Call&) { return {}; }
  ry::FinishedWork receive(ry::Buffer, int, const ry::Call&) { return {}; }
  void abort(std::string_view) noexcept {}
};
static_assert(ry::Backend<Solo>);

}  // namespace

TEST_CASE("Joining: the training function runs while its worker still connects, and its collectives wait for that") {
  const Scratch scratch;
  std::atomic<bool> is_running = false;
  std::atomic<bool> has_connected = false;
  const Solo::Options options{[&](ry::Store&, const ry::Deadline&) {
    is_running.wait(false);
    has_connected = true;
  }};
  const auto result = run_in<Solo, ry::Threads>(
      scratch, 1,
      [&](ry::Worker& worker) {
        is_running = true;
        is_running.notify_all();
        worker.barrier();
        worker.report({{"connected", has_connected.load()}});
      },
      {}, options);
  CHECK(result.error() == "");
  CHECK(result.metrics().at("connected").as<bool>());
}

TEST_CASE("Joining: a training function that throws does not wait for ranks that have not come") {
  const Scratch scratch;
  const Solo::Options options{[](ry::Store& store, const ry::Deadline& deadline) {
    static_cast<void>(store.get("a key that nobody sets", deadline));
  }};
  const auto result = run_in<Solo, ry::Threads>(
      scratch, 1, [](ry::Worker&) { throw std::runtime_error{"no such file"}; },
      {.start_timeout = std::chrono::hours{1}}, options);
  CHECK_THAT(result.error(), ContainsSubstring("threw: no such file"));
}

TEST_CASE("Joining: a group that cannot be joined fails the run even if no collective was called") {
  const Scratch scratch;
  const Solo::Options options{[](ry::Store&, const ry::Deadline&) {
    throw ry::CollectiveError{"connect", 0, {}, "the cable is unplugged"};
  }};
  const auto result = run_in<Solo, ry::Threads>(
      scratch, 1, [](ry::Worker&) {}, {}, options);
  CHECK_THAT(result.error(), ContainsSubstring("the cable is unplugged"));
}
