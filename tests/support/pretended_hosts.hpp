// SPDX-License-Identifier: MIT
// Gloo between two hosts that are one: the ranks are told that they run on two.
#pragma once

#include "railyard/collectives/gloo.hpp"

#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace railyard_test {

namespace ry = railyard;

/// Returns the world of a rank if the first half of the ranks were on one host and the others on another, with nothing
/// but libgloo between them.
inline ry::World on_two_hosts(ry::World world) {
  if (world.size < 2) return world;
  const int first = world.size / 2;
  world.connector.reset();
  world.num_nodes = 2;
  world.node = world.rank < first ? 0 : 1;
  world.local_rank = world.rank - world.node * first;
  world.local_size = world.node == 0 ? first : world.size - first;
  return world;
}

/// Is Gloo in the world that such a function makes of a real one.
template <ry::World (*pretend)(ry::World)>
class GlooOnHosts {
 public:
  static constexpr std::string_view name = "Gloo on two hosts";
  static constexpr ry::Reach reach = ry::Reach::network;
  static constexpr ry::DeviceKind device_kind = ry::DeviceKind::cpu;
  using Options = ry::Gloo::Options;

  static void check(const Options& options) { ry::Gloo::check(options); }
  static std::unique_ptr<GlooOnHosts> connect(const Options& options, const ry::World& world, ry::Store& store,
                                              const ry::Deadline& deadline) {
    auto backend = std::make_unique<GlooOnHosts>();
    backend->gloo_ = ry::Gloo::connect(options, pretend(world), store, deadline);
    return backend;
  }

  auto all_reduce(ry::Buffer data, ry::ReduceOp op, const ry::Call& call) { return gloo_->all_reduce(data, op, call); }
  auto reduce_scatter(ry::ConstBuffer in, ry::Buffer out, ry::ReduceOp op, const ry::Call& call) {
    return gloo_->reduce_scatter(in, out, op, call);
  }
  auto broadcast(ry::Buffer data, int root, const ry::Call& call) { return gloo_->broadcast(data, root, call); }
  auto all_gather(ry::ConstBuffer in, ry::Buffer out, const ry::Call& call) { return gloo_->all_gather(in, out, call); }
  auto all_gather_uneven(ry::ConstBuffer in, ry::Buffer out, std::span<const std::size_t> counts,
                         const ry::Call& call) {
    return gloo_->all_gather_uneven(in, out, counts, call);
  }
  auto gather(ry::ConstBuffer in, ry::Buffer out, int root, const ry::Call& call) {
    return gloo_->gather(in, out, root, call);
  }
  auto scatter(ry::ConstBuffer in, ry::Buffer out, int root, const ry::Call& call) {
    return gloo_->scatter(in, out, root, call);
  }
  auto all_to_all(ry::ConstBuffer in, ry::Buffer out, const ry::Call& call) { return gloo_->all_to_all(in, out, call); }
  auto barrier(const ry::Call& call) { return gloo_->barrier(call); }
  auto send(ry::ConstBuffer data, int peer, const ry::Call& call) { return gloo_->send(data, peer, call); }
  auto receive(ry::Buffer data, int peer, const ry::Call& call) { return gloo_->receive(data, peer, call); }
  void abort(std::string_view reason) noexcept { gloo_->abort(reason); }

  [[nodiscard]] ry::HostMemory* host_memory() noexcept { return gloo_->host_memory(); }
  [[nodiscard]] ry::SideLine* side_line(const ry::Deadline& deadline) { return gloo_->side_line(deadline); }

 private:
  std::unique_ptr<ry::Gloo> gloo_{};
};
using GlooOnTwoHosts = GlooOnHosts<on_two_hosts>;
static_assert(ry::Backend<GlooOnTwoHosts>);

}  // namespace railyard_test
