// SPDX-License-Identifier: MIT
// A backend that lacks one operation: the compiler names the part of the concept, and the operation.
// expect-first: static.assert.*the first policy of this Trainer is no Backend
// expect: backend\.barrier\(call\)
#include <railyard/railyard.hpp>

namespace ry = railyard;

struct Almost {
  static constexpr std::string_view name = "almost";
  static constexpr ry::Reach reach = ry::Reach::process;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cpu;
  struct Options {};
  static void check(const Options&) {}
  static std::unique_ptr<Almost> connect(const Options&, const ry::World&, ry::Store&, const ry::Deadline&) {
    return std::make_unique<Almost>();
  }
  using Done = ry::FinishedWork;
  Done all_reduce(ry::Buffer, ry::ReduceOp, const ry::Call&) { return {}; }
  Done reduce_scatter(ry::ConstBuffer, ry::Buffer, ry::ReduceOp, const ry::Call&) { return {}; }
  Done broadcast(ry::Buffer, int, const ry::Call&) { return {}; }
  Done all_gather(ry::ConstBuffer, ry::Buffer, const ry::Call&) { return {}; }
  Done all_gather_uneven(ry::ConstBuffer, ry::Buffer, std::span<const std::size_t>, const ry::Call&) { return {}; }
  Done gather(ry::ConstBuffer, ry::Buffer, int, const ry::Call&) { return {}; }
  Done scatter(ry::ConstBuffer, ry::Buffer, int, const ry::Call&) { return {}; }
  Done all_to_all(ry::ConstBuffer, ry::Buffer, const ry::Call&) { return {}; }
#ifdef FIXED
  Done barrier(const ry::Call&) { return {}; }
#endif
  Done send(ry::ConstBuffer, int, const ry::Call&) { return {}; }
  Done receive(ry::Buffer, int, const ry::Call&) { return {}; }
  void abort(std::string_view) noexcept {}
};

int main() {
  ry::Trainer<Almost, ry::Threads> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 1}};
  return trainer.fit().exit_status();
}
