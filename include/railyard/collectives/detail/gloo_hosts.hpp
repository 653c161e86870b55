// SPDX-License-Identifier: MIT
// The part of Gloo for several hosts: shared memory within each, as many lines of TCP between them as a host has ranks.
// Collectives room.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"
#include "railyard/collectives/detail/gloo_tcp.hpp"
#include "railyard/collectives/detail/rendezvous.hpp"
#include "railyard/collectives/shared_memory.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a part of another store: the keys of those who share a prefix. Its waits end once it has been given up.
class PrefixStore final : public Store {
 public:
  PrefixStore(Store& store, std::string prefix) : store_(&store), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value) override { store_->set(prefix_ + std::string{key}, value); }
  [[nodiscard]] std::optional<std::string> get(std::string_view key, const Deadline& deadline) override {
    const std::string whole = prefix_ + std::string{key};
    while (true) {
      constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds{100};
      const bool is_last = deadline.remaining() <= slice;
      if (auto value = store_->get(whole, is_last ? deadline : Deadline::after(slice))) return value;
      if (is_last) return std::nullopt;
      if (is_given_up_.load()) throw Error{compose("{} was waited for when the group was given up", whole)};
    }
  }
  void expect(const std::vector<std::string>& keys) override {
    std::vector<std::string> whole;
    for (const std::string& key : keys) whole.push_back(prefix_ + key);
    store_->expect(whole);
  }
  void give_up() noexcept { is_given_up_.store(true); }

 private:
  Store* store_;
  std::string prefix_;
  std::atomic<bool> is_given_up_{false};
};

/// Joins ranks of several hosts that have equally many ranks each, those of a host one after the other. What goes over
/// the network goes there once per host: the ranks of a host add up first, each carries its share of the sums over a
/// line of its own to the ranks of the same local rank elsewhere, and then they share them. Sums are made in one order,
/// within hosts and then between them, whatever the timing.
/// Costs: all_reduce sends 2 (hosts - 1) / hosts times the data over each host's network, whatever its number of ranks.
class GlooHosts {
 public:
  /// Whether these ranks can be joined so. Every rank calls it, and gets the same answer.
  [[nodiscard]] static bool fits(const World& world, Store& store, const Deadline& deadline) {
    if (world.size == 1) return false;
    const std::string prefix = enter_group(store, "Gloo hosts", world);
    expect_all(store, prefix, "place", world);
    const auto place = [](int node, int local_rank, int local_size) {
      return compose("{} {} {}", node, local_rank, local_size);
    };
    store.set(stage_key(prefix, "place", world.rank), place(world.node, world.local_rank, world.local_size));
    const auto places = await_all(store, prefix, "place", world, deadline);
    throw_if_missing(places, world, deadline);
    const int local_size = world.size / std::max(world.num_nodes, 1);
    bool fits = world.num_nodes > 1 && local_size > 1;
    for (int rank = 0; fits && rank < world.size; ++rank) {
      fits = places[index_of(rank)] == place(rank / local_size, rank % local_size, local_size);
    }
    return fits;
  }

  /// Joins the group; the store must outlive the object. Returns nothing, on every rank, if the ranks of some host
  /// cannot share memory. Throws: CollectiveError that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<GlooHosts> connect(const std::string& host, const World& world, Store& store,
                                                          const Deadline& deadline) {
    auto hosts = std::unique_ptr<GlooHosts>{new GlooHosts{host, world, store}};
    const std::string prefix = enter_group(store, "Gloo within hosts", world);
    expect_all(store, prefix, "shares", world);
    std::string trouble;
    try {
      hosts->inner_ = SharedMemory::connect({}, hosts->inner_world(), hosts->inner_store_, deadline);
    } catch (const ConfigError& error) {
      trouble = error.what();
    }
    store.set(stage_key(prefix, "shares", world.rank), trouble);
    const auto troubles = await_all(store, prefix, "shares", world, deadline);
    throw_if_missing(troubles, world, deadline);
    for (const auto& one : troubles) {
      if (!one->empty()) return nullptr;
    }
    hosts->outer_ = GlooTcp::connect({.host = host}, hosts->outer_world(), hosts->outer_store_, deadline);
    return hosts;
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    static_cast<void>(arguments().all_reduce(data, op));
    const std::size_t share = data.count / index_of(world_.local_size);
    const Buffer main = part_of(data, 0, share * index_of(world_.local_size));
    const Buffer rest = part_of(data, main.count, data.count - main.count);
    if (share > 0) {
      const Buffer own{scratch(share * size_of(data.dtype)), share, data.dtype};
      within([&] { inner_->reduce_scatter(main, own, op, call); });
      across([&] { outer_->all_reduce(own, op, call); });
      within([&] { inner_->all_gather(own, main, call); });
    }
    if (rest.count > 0 || share == 0) {  // fewer elements than a host has ranks: every line carries them
      within([&] { inner_->all_reduce(rest, op, call); });
      across([&] { outer_->all_reduce(rest, op, call); });
    }
    return {};
  }

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    static_cast<void>(arguments().reduce_scatter(in, out, op));
    // Slices by local rank first, so that each rank's sums of its host are those that its line carries.
    const std::size_t slice = out.size_bytes();
    const std::size_t line = slice * index_of(world_.num_nodes);
    std::byte* sorted = scratch(in.size_bytes() + line);
    for (int rank = 0; rank < world_.size; ++rank) {
      copy(sorted + index_of(local_rank_of(rank)) * line + index_of(node_of(rank)) * slice,
           bytes_of(in) + index_of(rank) * slice, slice);
    }
    const Buffer sums{sorted + in.size_bytes(), out.count * index_of(world_.num_nodes), out.dtype};
    within([&] { inner_->reduce_scatter(ConstBuffer{sorted, in.count, in.dtype}, sums, op, call); });
    across([&] { outer_->reduce_scatter(sums, out, op, call); });
    return {};
  }

  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    static_cast<void>(arguments().broadcast(data, root));
    const int line = local_rank_of(root);
    if (world_.local_rank == line) across([&] { outer_->broadcast(data, node_of(root), call); });
    within([&] { inner_->broadcast(data, line, call); });
    return {};
  }

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    static_cast<void>(arguments().all_gather(in, out));
    const std::vector<std::size_t> counts(index_of(world_.size), in.count);
    gather_everywhere(in, out, counts, call);
    return {};
  }
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    static_cast<void>(arguments().all_gather_uneven(in, out, counts));
    gather_everywhere(in, out, counts, call);
    return {};
  }

  FinishedWork barrier(const Call& call) {
    within([&] { inner_->barrier(call); });
    across([&] { outer_->barrier(call); });
    within([&] { inner_->barrier(call); });
    return {};
  }

  // These are rare, and what each rank gets is its own: any two ranks are connected when they first need it.
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    static_cast<void>(arguments().gather(in, out, root));
    return flat(call, [&](GlooTcp& all) { all.gather(in, out, root, call); });
  }
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    static_cast<void>(arguments().scatter(in, out, root));
    return flat(call, [&](GlooTcp& all) { all.scatter(in, out, root, call); });
  }
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    static_cast<void>(arguments().all_to_all(in, out));
    return flat(call, [&](GlooTcp& all) { all.all_to_all(in, out, call); });
  }
  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    static_cast<void>(arguments().send(data, peer));
    return pair(peer, call, [&](GlooTcp& two) { two.send(data, peer > world_.rank ? 1 : 0, call); });
  }
  FinishedWork receive(Buffer data, int peer, const Call& call) {
    static_cast<void>(arguments().receive(data, peer));
    return pair(peer, call, [&](GlooTcp& two) { two.receive(data, peer > world_.rank ? 1 : 0, call); });
  }

  void abort(std::string_view reason) noexcept {
    flat_store_.give_up();
    if (inner_) inner_->abort(reason);
    if (outer_) outer_->abort(reason);
    const std::lock_guard lock{mutex_};
    if (flat_) flat_->abort(reason);
    for (auto& [peer, two] : pairs_) two->abort(reason);
    is_aborted_ = true;
  }

 private:
  GlooHosts(std::string host, const World& world, Store& store)
      : host_(std::move(host)),
        world_(world),
        inner_store_(store, compose("node {}/", world.node)),
        outer_store_(store, compose("line {}/", world.local_rank)),
        flat_store_(store, "flat/") {}

  static const std::byte* bytes_of(const ConstBuffer& buffer) noexcept {
    return static_cast<const std::byte*>(buffer.data);
  }
  static void copy(std::byte* to, const std::byte* from, std::size_t size_bytes) noexcept {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  }
  static Buffer part_of(const Buffer& data, std::size_t begin, std::size_t count) noexcept {
    if (count == 0) return {.data = nullptr, .count = 0, .dtype = data.dtype};
    return {
        .data = static_cast<std::byte*>(data.data) + begin * size_of(data.dtype), .count = count, .dtype = data.dtype};
  }

  [[nodiscard]] Arguments arguments() const noexcept { return {world_, DeviceKind::cpu}; }
  [[nodiscard]] int node_of(int rank) const noexcept { return rank / world_.local_size; }
  [[nodiscard]] int local_rank_of(int rank) const noexcept { return rank % world_.local_size; }

  [[nodiscard]] World inner_world() const {
    World world = world_;
    world.rank = world.local_rank;
    world.size = world.local_size;
    world.node = 0;
    world.num_nodes = 1;
    return world;
  }
  // Of these no two run on one host.
  [[nodiscard]] World outer_world() const {
    World world = world_;
    world.rank = world.node;
    world.size = world.num_nodes;
    world.local_rank = 0;
    world.local_size = 1;
    return world;
  }

  [[nodiscard]] std::byte* scratch(std::size_t size_bytes) {
    if (scratch_bytes_ < size_bytes) {
      scratch_ = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
      scratch_bytes_ = size_bytes;
    }
    return scratch_.get();
  }

  // First what the ranks of this line have, then what those of this host have then; into the places of their ranks.
  void gather_everywhere(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    std::vector<std::size_t> of_line;
    std::vector<std::size_t> of_lines(index_of(world_.local_size));
    for (int rank = 0; rank < world_.size; ++rank) {
      if (local_rank_of(rank) == world_.local_rank) of_line.push_back(counts[index_of(rank)]);
      of_lines[index_of(local_rank_of(rank))] += counts[index_of(rank)];
    }
    const std::size_t width = size_of(in.dtype);
    const std::size_t of_own_line = of_lines[index_of(world_.local_rank)];
    std::byte* line = scratch(of_own_line * width + out.size_bytes());
    std::byte* all = line + of_own_line * width;
    const Buffer line_buffer{line, of_own_line, in.dtype};
    across([&] { outer_->all_gather_uneven(in, line_buffer, of_line, call); });
    within([&] { inner_->all_gather_uneven(line_buffer, Buffer{all, out.count, out.dtype}, of_lines, call); });
    std::vector<std::size_t> places(index_of(world_.size));
    for (std::size_t rank = 1; rank < places.size(); ++rank) places[rank] = places[rank - 1] + counts[rank - 1] * width;
    for (int local_rank = 0; local_rank < world_.local_size; ++local_rank) {
      for (int node = 0; node < world_.num_nodes; ++node) {
        const std::size_t rank = index_of(node * world_.local_size + local_rank);
        copy(static_cast<std::byte*>(out.data) + places[rank], all, counts[rank] * width);
        all += counts[rank] * width;
      }
    }
  }

  // The parts count ranks in their own way: here the errors get the ranks of all, and end the other parts as well.
  template <class Function>
  void within(const Function& function) {
    guarded(function, compose("among the ranks of host {} ({})", world_.node, world_.host),
            [this](int rank) { return world_.node * world_.local_size + rank; });
  }
  template <class Function>
  void across(const Function& function) {
    guarded(function, compose("between the {} hosts", world_.num_nodes),
            [this](int rank) { return rank * world_.local_size + world_.local_rank; });
  }
  template <class Function, class ToRank>
  void guarded(const Function& function, const std::string& where, const ToRank& to_rank) {
    try {
      function();
    } catch (const CollectiveError& error) {
      std::vector<int> blamed;
      for (const int rank : error.blamed()) blamed.push_back(to_rank(rank));
      const std::string names = blamed.empty() ? std::string{} : compose(", blaming {}", ranks_text(blamed));
      const std::string text = compose("{} on rank {}/{} failed {}{}: {}", error.operation(), world_.rank, world_.size,
                                       where, names, error.what());
      abort(text);
      throw CollectiveError{error.operation(), world_.rank, blamed, text};
    }
  }

  template <class Function>
  FinishedWork flat(const Call& call, const Function& function) {
    guarded(
        [&] {
          if (!flat_)
            keep(
                [this]() -> auto& { return flat_; }, connect_flat(world_, flat_store_, call));
          function(*flat_);
        },
        "among all ranks", [](int rank) { return rank; });
    return {};
  }

  template <class Function>
  FinishedWork pair(int peer, const Call& call, const Function& function) {
    const int low = std::min(peer, world_.rank);
    const int high = std::max(peer, world_.rank);
    guarded(
        [&] {
          if (pairs_.count(peer) == 0) {
            World two = world_;
            two.rank = world_.rank == low ? 0 : 1;
            two.size = 2;
            auto store = std::make_unique<PrefixStore>(flat_store_, compose("pair {} {}/", low, high));
            auto connected = connect_flat(two, *store, call);
            pair_stores_.push_back(std::move(store));
            keep(
                [ this, peer ]() -> auto& { return pairs_[peer]; }, std::move(connected));
          }
          function(*pairs_.at(peer));
        },
        "between two ranks", [low, high](int rank) { return rank == 0 ? low : high; });
    return {};
  }

  [[nodiscard]] std::unique_ptr<GlooTcp> connect_flat(const World& world, Store& store, const Call& call) const {
    return GlooTcp::connect({.host = host_}, world, store, call.deadline);
  }

  template <class Place>
  void keep(const Place& place, std::unique_ptr<GlooTcp> connected) {
    const std::lock_guard lock{mutex_};
    std::unique_ptr<GlooTcp>& kept = place();
    kept = std::move(connected);
    if (is_aborted_) kept->abort("the group was given up");
  }

  std::string host_;
  World world_;
  PrefixStore inner_store_;
  PrefixStore outer_store_;
  PrefixStore flat_store_;
  std::vector<std::unique_ptr<PrefixStore>> pair_stores_{};
  std::unique_ptr<SharedMemory> inner_{};
  std::unique_ptr<GlooTcp> outer_{};
  std::mutex mutex_;  // guards what abort() looks at: the next three
  bool is_aborted_ = false;
  std::unique_ptr<GlooTcp> flat_{};
  std::map<int, std::unique_ptr<GlooTcp>> pairs_{};
  std::unique_ptr<std::byte[]> scratch_{};
  std::size_t scratch_bytes_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
