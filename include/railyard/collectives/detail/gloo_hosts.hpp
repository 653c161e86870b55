// SPDX-License-Identifier: MIT
// The part of Gloo for several hosts: shared memory within each, as many lines of TCP between them as a host has ranks.
// Collectives room.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"
#include "railyard/collectives/detail/gloo_tcp.hpp"
#include "railyard/collectives/detail/host_chunks.hpp"
#include "railyard/collectives/detail/losses.hpp"
#include "railyard/collectives/detail/prefix_store.hpp"
#include "railyard/collectives/detail/rendezvous.hpp"
#include "railyard/collectives/detail/scratch.hpp"
#include "railyard/collectives/shared_memory.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/core/store.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Joins ranks of several hosts that have equally many ranks each, those of a host one after the other. What goes over
/// the network goes there once per host: the ranks of a host add up first, each carries its share of the sums over a
/// line of its own to the ranks of the same local rank elsewhere, and then they share them. Sums are made in one order,
/// within hosts and then between them, whatever the timing. While one chunk is on the network, the memory works on the
/// next.
/// The ranks of a host also see each other's memory: see host_memory().
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
    const std::string prefix = enter_group(store, "Gloo within hosts", world);
    expect_all(store, prefix, "shares", world);
    auto hosts = std::unique_ptr<GlooHosts>{new GlooHosts{host, world, store, prefix}};
    std::string trouble;
    try {
      hosts->inner_ = SharedMemory::connect({}, hosts->inner_world(), hosts->inner_store_, deadline);
    } catch (const ConfigError& error) {
      trouble = error.what();
    }
    const std::string name = compose("{}, {}", world.host, host);
    store.set(stage_key(prefix, "shares", world.rank), compose("{}\n{}", name, trouble));
    const auto answers = await_all(store, prefix, "shares", world, deadline);
    throw_if_missing(answers, world, deadline);
    for (int rank = 0; rank < world.size; ++rank) {
      const std::string& answer = *answers[index_of(rank)];
      const auto end = answer.find('\n');
      if (end + 1 < answer.size()) return nullptr;
      if (hosts->local_rank_of(rank) == 0) hosts->names_.push_back(answer.substr(0, end));
    }
    hosts->outer_ = GlooTcp::connect({.host = host}, hosts->outer_world(), hosts->outer_store_, deadline);
    hosts->lane_.emplace(*hosts, *hosts->inner_->host_memory(), *hosts->outer_, true);
    return hosts;
  }

  /// The memory of this host's ranks, with the lines between hosts.
  [[nodiscard]] HostMemory& host_memory() noexcept { return *lane_; }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    enter(arguments().all_reduce(data, op));
    Parts parts{*this, op, call};
    all_reduce_between_hosts(parts, data, index_of(world_.local_size));
    return {};
  }

  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    enter(arguments().reduce_scatter(in, out, op));
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
    enter(arguments().broadcast(data, root));
    const int line = local_rank_of(root);
    if (world_.local_rank == line) across([&] { outer_->broadcast(data, node_of(root), call); });
    within([&] { inner_->broadcast(data, line, call); });
    return {};
  }

  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    enter(arguments().all_gather(in, out));
    const std::vector<std::size_t> counts(index_of(world_.size), in.count);
    gather_everywhere(in, out, counts, call);
    return {};
  }
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    enter(arguments().all_gather_uneven(in, out, counts));
    gather_everywhere(in, out, counts, call);
    return {};
  }

  FinishedWork barrier(const Call& call) {
    enter({.operation = Operation::barrier});
    within([&] { inner_->barrier(call); });
    across([&] { outer_->barrier(call); });
    within([&] { inner_->barrier(call); });
    return {};
  }

  // These are rare, and what each rank gets is its own: any two ranks are connected when they first need it.
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    enter(arguments().gather(in, out, root));
    return flat(call, [&](GlooTcp& all) { all.gather(in, out, root, call); });
  }
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    enter(arguments().scatter(in, out, root));
    return flat(call, [&](GlooTcp& all) { all.scatter(in, out, root, call); });
  }
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    enter(arguments().all_to_all(in, out));
    return flat(call, [&](GlooTcp& all) { all.all_to_all(in, out, call); });
  }
  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    enter(arguments().send(data, peer));
    return pair(peer, call, [&](GlooTcp& two) { two.send(data, peer > world_.rank ? 1 : 0, call); });
  }
  FinishedWork receive(Buffer data, int peer, const Call& call) {
    enter(arguments().receive(data, peer));
    return pair(peer, call, [&](GlooTcp& two) { two.receive(data, peer > world_.rank ? 1 : 0, call); });
  }

  void abort(std::string_view reason) noexcept {
    try {
      lose({.text = compose("rank {} gave up: {}", world_.rank, reason), .blamed = {world_.rank}});
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }

 private:
  // What the ranks of a part, which count from 0, are in the group.
  struct Part {
    int first = 0;
    int stride = 1;
    bool is_within_host = false;
  };

  // Whose mesh joins all ranks, and not two; and whose joins this rank's line once more.
  static constexpr int everybody = -1;
  static constexpr int aside = -2;

  // Exchanges through the memory of this host, and along one line between hosts. What fails in one of them is told and
  // ends the group as in any operation.
  class Lane final : public HostMemory {
   public:
    Lane(GlooHosts& hosts, HostMemory& inner, GlooTcp& outer, bool has_side)
        : hosts_(&hosts), inner_(&inner), outer_(&outer), has_side_(has_side) {}

    [[nodiscard]] int rank() const noexcept override { return hosts_->world_.local_rank; }
    [[nodiscard]] int size() const noexcept override { return hosts_->world_.local_size; }
    [[nodiscard]] int host() const noexcept override { return hosts_->world_.node; }
    [[nodiscard]] int num_hosts() const noexcept override { return hosts_->world_.num_nodes; }

    void begin(Purpose purpose, std::span<const std::byte> record, int num_steps, const Deadline& deadline) override {
      signature_.root = static_cast<std::int32_t>(purpose);
      hosts_->throw_if_lost(signature_);
      within([&] { inner_->begin(purpose, record, num_steps, deadline); });
    }
    void add_step() noexcept override { inner_->add_step(); }
    void step(std::span<const std::byte> record) override {
      within([&] { inner_->step(record); });
    }
    void rest() noexcept override { inner_->rest(); }
    [[nodiscard]] std::span<const std::byte> record_of(int rank) const override { return inner_->record_of(rank); }
    [[nodiscard]] std::uint64_t place_of(const void* memory) const noexcept override {
      return inner_->place_of(memory);
    }
    [[nodiscard]] std::byte* at(int rank, std::uint64_t place) const noexcept override {
      return inner_->at(rank, place);
    }
    [[nodiscard]] const std::shared_ptr<Heap>& heap() const noexcept override { return inner_->heap(); }

    void add_between_hosts(const Buffer& data, const Deadline& deadline) override {
      hosts_->guarded(hosts_->own_line(), signature_,
                      [&] { outer_->all_reduce(data, ReduceOp::sum, {.deadline = deadline}); });
    }
    [[nodiscard]] std::future<void> begin_between_hosts(const Buffer& data, const Deadline& deadline) override {
      const BlockSignals no_signals{deferrable_signals()};
      return std::async(std::launch::async, [this, data, deadline] { add_between_hosts(data, deadline); });
    }

    [[nodiscard]] HostMemory* side(const Deadline& deadline) override {
      return has_side_ ? &hosts_->connect_side(deadline) : nullptr;
    }
    void abort(std::string_view reason) noexcept override { hosts_->abort(reason); }
    void withdraw() noexcept override { inner_->withdraw(); }

   private:
    template <class Function>
    void within(const Function& function) {
      hosts_->guarded(hosts_->own_host(), signature_, function);
    }

    GlooHosts* hosts_;
    HostMemory* inner_;
    GlooTcp* outer_;
    bool has_side_;
    Signature signature_{.operation = Operation::exchange};  // of the exchange under way
  };

  // Of one all_reduce().
  struct Parts {
    [[nodiscard]] std::byte* scratch(std::size_t size_bytes) { return hosts.scratch(size_bytes); }
    void add_within(const Buffer& whole, const Buffer& own) {
      hosts.within([&] { hosts.inner_->reduce_scatter(whole, own, op, call); });
    }
    void share_within(const Buffer& own, const Buffer& whole) {
      hosts.within([&] { hosts.inner_->all_gather(own, whole, call); });
    }
    [[nodiscard]] std::future<void> send_off(const Buffer& own) {
      return hosts.send_off([this, own] { hosts.outer_->all_reduce(own, op, call); });
    }
    void all_reduce_within(const Buffer& data) {
      hosts.within([&] { hosts.inner_->all_reduce(data, op, call); });
    }
    void all_reduce_across(const Buffer& data) {
      hosts.across([&] { hosts.outer_->all_reduce(data, op, call); });
    }

    GlooHosts& hosts;
    ReduceOp op;
    const Call& call;
  };

  GlooHosts(std::string host, const World& world, Store& store, const std::string& prefix)
      : host_(std::move(host)),
        world_(world),
        inner_store_(store, compose("node {}/", world.node)),
        outer_store_(store, compose("line {}/", world.local_rank)),
        mesh_store_(store, "mesh/"),
        losses_(store, prefix, world.rank) {}

  static const std::byte* bytes_of(const ConstBuffer& buffer) noexcept {
    return static_cast<const std::byte*>(buffer.data);
  }
  static void copy(std::byte* to, const std::byte* from, std::size_t size_bytes) noexcept {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
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

  [[nodiscard]] std::byte* scratch(std::size_t size_bytes) { return scratch_.take(size_bytes); }

  // Does work across hosts in a thread of its own. If the work of this thread fails meanwhile, that ends it as well.
  template <class Function>
  [[nodiscard]] std::future<void> send_off(Function function) {
    const BlockSignals no_signals{deferrable_signals()};
    return std::async(std::launch::async, [this, function] { across(function); });
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

  [[nodiscard]] Lane& connect_side(const Deadline& deadline) {
    if (side_) return *side_;
    guarded(own_line(), [&] {
      GlooTcp& outer = mesh(aside, outer_world(), compose("aside {}/", world_.local_rank), {.deadline = deadline});
      side_.emplace(*this, *inner_->host_memory()->side(deadline), outer, false);
    });
    return *side_;
  }

  void enter(const Signature& signature) {
    running_ = signature;
    throw_if_lost(signature);
  }
  void throw_if_lost(const Signature& signature) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(*failure_, signature, "the group was lost before: ");
  }

  [[nodiscard]] Part own_host() const noexcept {
    return {.first = world_.node * world_.local_size, .is_within_host = true};
  }
  [[nodiscard]] Part own_line() const noexcept { return {.first = world_.local_rank, .stride = world_.local_size}; }

  template <class Function>
  void within(const Function& function) {
    guarded(own_host(), function);
  }
  template <class Function>
  void across(const Function& function) {
    guarded(own_line(), function);
  }
  template <class Function>
  void guarded(const Part& part, const Function& function) {
    guarded(part, running_, function);
  }
  template <class Function>
  void guarded(const Part& part, const Signature& running, const Function& function) {
    try {
      function();
    } catch (const CollectiveError& error) {
      const Verdict found = losses_.follow(lose(verdict_of(part, error)));
      const std::lock_guard lock{mutex_};
      failure_ = found;
      throw_failure(found, running, "");
    } catch (const std::exception& error) {
      abort(error.what());
      throw;
    }
  }

  [[nodiscard]] Verdict verdict_of(const Part& part, const CollectiveError& error) const {
    std::vector<int> blamed;
    for (const int rank : error.blamed()) blamed.push_back(part.first + rank * part.stride);
    const std::string what = blamed.empty() ? std::string{"a transfer"} : ranks_text(blamed);
    const std::string where = part.is_within_host
                                  ? compose("within {}, whose ranks count from {}", host_text(world_.node), part.first)
                                  : "between " + hosts_text(blamed);
    return {compose("{} failed {}: {}", what, where, error.what()), blamed};
  }

  // This host and those of the ranks that are to blame, or where nobody is all that it can be.
  [[nodiscard]] std::string hosts_text(const std::vector<int>& blamed) const {
    constexpr int most_named = 4;
    if (blamed.empty() && world_.num_nodes > most_named) return compose("{} hosts", world_.num_nodes);
    std::set<int> nodes{world_.node};
    for (const int rank : blamed) nodes.insert(node_of(rank));
    for (int node = 0; blamed.empty() && node < world_.num_nodes; ++node) nodes.insert(node);
    std::vector<std::string> hosts;
    for (const int node : nodes) hosts.push_back(host_text(node));
    return joined(hosts, " and ");
  }
  [[nodiscard]] std::string host_text(int node) const { return compose("host {} ({})", node, names_[index_of(node)]); }

  // Ends the group for this rank and returns why: the first reason counts. It is told before the parts are seen to end.
  Verdict lose(const Verdict& verdict) {
    {
      const std::lock_guard lock{mutex_};
      if (failure_) return *failure_;
      failure_ = verdict;
    }
    losses_.post(verdict);
    mesh_store_.give_up();
    inner_->abort(verdict.text);
    outer_->abort(verdict.text);
    const std::lock_guard lock{mutex_};
    for (auto& [peer, mesh] : meshes_) mesh->abort(verdict.text);
    return verdict;
  }

  [[noreturn]] void throw_failure(const Verdict& verdict, const Signature& running, std::string_view when) const {
    const std::string operation = describe(running);
    throw CollectiveError{operation, world_.rank, verdict.blamed,
                          compose("{}: {}{}", place_text(operation, world_.rank, world_.size), when, verdict.text)};
  }

  template <class Function>
  FinishedWork flat(const Call& call, const Function& function) {
    guarded({}, [&] { function(mesh(everybody, world_, "all/", call)); });
    return {};
  }

  template <class Function>
  FinishedWork pair(int peer, const Call& call, const Function& function) {
    const int low = std::min(peer, world_.rank);
    const int high = std::max(peer, world_.rank);
    World two = world_;
    two.rank = world_.rank == low ? 0 : 1;
    two.size = 2;
    guarded({.first = low, .stride = high - low},
            [&] { function(mesh(peer, two, compose("pair {} {}/", low, high), call)); });
    return {};
  }

  [[nodiscard]] GlooTcp& mesh(int peer, const World& world, const std::string& prefix, const Call& call) {
    if (const auto found = meshes_.find(peer); found != meshes_.end()) return *found->second;
    PrefixStore& store = mesh_stores_.try_emplace(peer, mesh_store_, prefix).first->second;
    auto connected = GlooTcp::connect({.host = host_}, world, store, call.deadline);
    const std::lock_guard lock{mutex_};
    if (failure_) connected->abort(failure_->text);
    return *meshes_.emplace(peer, std::move(connected)).first->second;
  }

  std::string host_;
  World world_;
  PrefixStore inner_store_;
  PrefixStore outer_store_;
  PrefixStore mesh_store_;
  std::map<int, PrefixStore> mesh_stores_{};
  std::unique_ptr<SharedMemory> inner_{};
  std::unique_ptr<GlooTcp> outer_{};
  std::vector<std::string> names_{};  // of the hosts, with their addresses
  Losses losses_;
  Signature running_{};  // the operation under way
  std::mutex mutex_;     // guards what abort() looks at: the next two
  std::optional<Verdict> failure_{};
  std::map<int, std::unique_ptr<GlooTcp>> meshes_{};  // by peer
  std::optional<Lane> lane_{};
  std::optional<Lane> side_{};
  detail::Scratch scratch_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
