// SPDX-License-Identifier: MIT
#include "railyard/core/backend.hpp"

#include "support/catch.hpp"

namespace ry = railyard;

namespace {

// A complete model of the concept that does nothing: each struct below takes one part away.
struct Complete {
  struct Options {};
  static constexpr std::string_view name = "complete";
  static constexpr ry::Reach reach = ry::Reach::process;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cpu;
  static void check(const Options& /*options*/) {}
  static std::unique_ptr<Complete> connect(const Options&, const ry::World&, ry::Store&, const ry::Deadline&) {
    return std::make_unique<Complete>();
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
static_assert(ry::Backend<Complete>);

struct WithoutBarrier : Complete {
  static std::unique_ptr<WithoutBarrier> connect(const Options&, const ry::World&, ry::Store&, const ry::Deadline&) {
    return nullptr;
  }
  void barrier(const ry::Call&) = delete;
};
static_assert(!ry::Backend<WithoutBarrier> && !ry::MovingBackend<WithoutBarrier> &&
              ry::ReducingBackend<WithoutBarrier>);

struct WithThrowingAbort : Complete {
  static std::unique_ptr<WithThrowingAbort> connect(const Options&, const ry::World&, ry::Store&, const ry::Deadline&) {
    return nullptr;
  }
  void abort(std::string_view) {}
};
static_assert(!ry::AbortableBackend<WithThrowingAbort>, "abort() is called from where nothing may be thrown");

// Work that completes later, as a GPU backend's does, fits the concept as well as finished work.
struct LaterWork {
  [[nodiscard]] bool is_done() const { return done; }
  void wait(const ry::Deadline& /*deadline*/) { done = true; }
  bool done = false;
};
static_assert(ry::Work<LaterWork>);
static_assert(!ry::Work<int>);

}  // namespace

TEST_CASE("Backend: finished work is done without a wait") {
  ry::FinishedWork work = Complete{}.barrier({});
  work.wait(ry::Deadline::after(std::chrono::seconds{0}));
  CHECK(work.is_done());
}

TEST_CASE("Call: gives up after a bounded time unless told otherwise") { CHECK_FALSE(ry::Call{}.deadline.is_never()); }
