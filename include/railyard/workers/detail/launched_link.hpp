// SPDX-License-Identifier: MIT
// A worker's end where several processes make the workers: its place among all, and the store of all. Workers room.
#pragma once

#include "railyard/workers/detail/agent_wire.hpp"
#include "railyard/workers/detail/network_store.hpp"
#include "railyard/workers/detail/rank_lines.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/scaling.hpp"

#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Passes on what the worker's own process provides, but for what is of all processes together.
class LaunchedLink final : public WorkerLink {
 public:
  /// own: the link that the worker's process has made; outlives this one. place: of the store; rank and generation are
  /// filled in here. address: by which the others reach this host.
  LaunchedLink(WorkerLink& own, const NetworkStorePlace& place, const Hmac& secret, const std::string& address)
      : LaunchedLink(own, WireReader{own.briefing()}, place, secret, address) {}

  [[nodiscard]] const World& world() const noexcept override { return world_; }
  [[nodiscard]] Store& store() noexcept override { return store_; }
  [[nodiscard]] WorkerPage& page() noexcept override { return own_->page(); }
  [[nodiscard]] std::string_view briefing() const noexcept override {
    return own_->briefing().substr(sizeof(GroupLayout));
  }

  [[nodiscard]] Snapshot take_snapshot(std::size_t size_bytes, SnapshotKind kind) override {
    return own_->take_snapshot(size_bytes, kind);
  }
  [[nodiscard]] std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept override {
    return own_->snapshot_memory(kind, size_bytes);
  }
  void drop_snapshot(int slot) noexcept override { own_->drop_snapshot(slot); }
  void await_snapshot(int slot) override { own_->await_snapshot(slot); }
  void read_snapshot(int rank, int slot, std::size_t begin, std::span<std::byte> to) override {
    own_->read_snapshot(rank - first_rank_, slot, begin, to);
  }
  [[nodiscard]] bool sees_snapshots_of(int rank) const noexcept override {
    return rank >= first_rank_ && rank - first_rank_ < own_->world().size;
  }

  void post(std::span<const std::byte> message) override { own_->post(message); }
  void on_abort(std::function<void(std::string_view)> handler) override { own_->on_abort(std::move(handler)); }

 private:
  LaunchedLink(WorkerLink& own, WireReader briefing, const NetworkStorePlace& place, const Hmac& secret,
               const std::string& address)
      : LaunchedLink(own, briefing.take<GroupLayout>(), place, secret, address) {}
  LaunchedLink(WorkerLink& own, const GroupLayout& layout, const NetworkStorePlace& place, const Hmac& secret,
               const std::string& address)
      : own_(&own),
        first_rank_(layout.first_rank),
        world_(world_of(own.world(), layout, address)),
        store_(store_place(place, layout, world_.rank), secret) {
    if (world_.size > 1) {
      world_.connector = std::make_shared<SecretConnector>(
          secret, compose("{} {}", layout.generation, place.job),
          [](const std::string& line) { std::fprintf(stderr, "railyard: %s\n", line.c_str()); },
          RankLineLimits{.has_tls = place.limits.has_tls});
    }
  }

  static World world_of(const World& own, const GroupLayout& layout, const std::string& address) {
    World world = own;
    world.rank = layout.first_rank + own.rank;
    world.size = layout.world_size;
    world.local_rank = layout.first_local_rank + own.rank;
    world.local_size = layout.local_size;
    world.node = layout.node;
    world.num_nodes = layout.num_nodes;
    world.address = address;
    return world;
  }
  static NetworkStorePlace store_place(NetworkStorePlace place, const GroupLayout& layout, int rank) {
    place.generation = layout.generation;
    place.rank = rank;
    return place;
  }

  WorkerLink* own_;
  int first_rank_;
  World world_;
  NetworkStore store_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
