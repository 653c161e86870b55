// SPDX-License-Identifier: MIT
// The part of Gloo that sends over TCP: on the transport of libgloo, or on lines whose ends have proven themselves.
// Collectives room.
#pragma once

#include "railyard/collectives/detail/arguments.hpp"
#include "railyard/collectives/detail/gloo_lines.hpp"
#include "railyard/collectives/detail/mesh.hpp"
#include "railyard/collectives/detail/mesh_lines.hpp"
#include "railyard/collectives/detail/notices.hpp"
#include "railyard/collectives/detail/proven_lines.hpp"
#include "railyard/collectives/detail/scratch.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/rank_connector.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Joins processes, of one host or several, by connections between any two of them: those of World::connector where
/// there is one, else libgloo's TCP, with a thread for each object. Reductions add in the order of ranks, so that
/// results depend on nothing but the ranks' values.
///
/// SIGPIPE: blocked in Gloo's thread for good and in the calling thread during a call; a SIGPIPE that a call has caused
/// is taken back. The process's disposition is not touched.
/// Costs: see the functions of detail/mesh.hpp. The store outlives the object, which leaves its last word there.
class GlooTcp {
 public:
  static constexpr std::string_view name = "Gloo";
  static constexpr Reach reach = Reach::network;
  static constexpr DeviceKind device_kind = DeviceKind::cpu;

  struct Options {
    std::string host = "127.0.0.1";  // see Gloo::Options
  };

  /// Throws: ConfigError if the host cannot be listened on, or if LibTorch's copy of Gloo would answer our calls.
  static void check(const Options& options) {
    detail::check_gloo_is_own(reinterpret_cast<const void*>(&gloo::transport::tcp::CreateDevice));
    static_cast<void>(detail::own_address(options.host, "Gloo::Options::host"));
  }

  /// Joins the group. Cost: milliseconds once all ranks have come.
  /// Throws: ConfigError as check() does; CollectiveError that names the ranks which did not come or failed.
  [[nodiscard]] static std::unique_ptr<GlooTcp> connect(const Options& options, const World& world, Store& store,
                                                        const Deadline& deadline) {
    detail::check_world(world);
    check(options);
    if (world.size == 1) return std::unique_ptr<GlooTcp>{new GlooTcp{world}};
    const std::string prefix = detail::enter_group(store, name, world);
    detail::throw_if_missing(detail::await_all(store, prefix, "here", world, deadline), world, deadline);
    detail::expect_all(store, prefix, "connected", world);
    const std::string connected_key = detail::stage_key(prefix, "connected", world.rank);
    std::unique_ptr<GlooTcp> backend;
    try {
      backend.reset(new GlooTcp{options, world, store, prefix, deadline});
      store.set(connected_key, "");
    } catch (const ConfigError&) {
      store.set(connected_key, "its configuration was refused");
      detail::leave_all(store, prefix, "connected", world, deadline);
      throw;
    } catch (const std::exception& error) {
      store.set(connected_key, error.what());
      detail::throw_if_failed(detail::await_all(store, prefix, "connected", world, deadline), world, deadline);
    }
    // Only now it is certain that the others have not failed: connect() succeeds everywhere or nowhere.
    detail::throw_if_failed(detail::await_all(store, prefix, "connected", world, deadline), world, deadline);
    return backend;
  }

  GlooTcp(const GlooTcp&) = delete;
  GlooTcp& operator=(const GlooTcp&) = delete;
  ~GlooTcp() {
    if (lines_ == nullptr) return;
    const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
    post({.kind = detail::Notice::Kind::left, .position = {.operation = "no operation"}});
    lines_.reset();
  }

  FinishedWork all_reduce(Buffer data, ReduceOp op, const Call& call) {
    return run(arguments().all_reduce(data, op), call, [&] { detail::mesh_all_reduce(*this, data, op); });
  }
  FinishedWork reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, const Call& call) {
    return run(arguments().reduce_scatter(in, out, op), call, [&] { detail::mesh_reduce_scatter(*this, in, out, op); });
  }
  FinishedWork broadcast(Buffer data, int root, const Call& call) {
    return run(arguments().broadcast(data, root), call, [&] { detail::mesh_broadcast(*this, data, root); });
  }
  FinishedWork all_gather(ConstBuffer in, Buffer out, const Call& call) {
    return run(arguments().all_gather(in, out), call, [&] {
      std::vector<std::size_t> offsets;
      for (int rank = 0; rank <= size(); ++rank) offsets.push_back(static_cast<std::size_t>(rank) * in.size_bytes());
      detail::mesh_all_gather(*this, in, out, offsets);
    });
  }
  FinishedWork all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, const Call& call) {
    return run(arguments().all_gather_uneven(in, out, counts), call, [&] {
      std::vector<std::size_t> offsets{0};
      for (const std::size_t count : counts) offsets.push_back(offsets.back() + count * size_of(in.dtype));
      detail::mesh_all_gather(*this, in, out, offsets);
    });
  }
  FinishedWork gather(ConstBuffer in, Buffer out, int root, const Call& call) {
    return run(arguments().gather(in, out, root), call, [&] { detail::mesh_gather(*this, in, out, root); });
  }
  FinishedWork scatter(ConstBuffer in, Buffer out, int root, const Call& call) {
    return run(arguments().scatter(in, out, root), call, [&] { detail::mesh_scatter(*this, in, out, root); });
  }
  FinishedWork all_to_all(ConstBuffer in, Buffer out, const Call& call) {
    return run(arguments().all_to_all(in, out), call, [&] { detail::mesh_all_to_all(*this, in, out); });
  }
  FinishedWork barrier(const Call& call) {
    return run({.operation = detail::Operation::barrier}, call, [&] { detail::mesh_barrier(*this); });
  }
  FinishedWork send(ConstBuffer data, int peer, const Call& call) {
    return run(arguments().send(data, peer), call, [&] {
      Step message = step(data.data, data.size_bytes(), nullptr, 0);
      message.send(peer, 0, data.size_bytes());
      message.finish();
    });
  }
  FinishedWork receive(Buffer data, int peer, const Call& call) {
    return run(arguments().receive(data, peer), call, [&] {
      Step message = step(nullptr, 0, data.data, data.size_bytes());
      message.receive(peer, 0, data.size_bytes());
      message.finish();
    });
  }

  void abort(std::string_view reason) noexcept {
    try {
      const auto text = compose("rank {} gave up: {}", world_.rank, reason);
      {
        const std::lock_guard lock{mutex_};
        if (!failure_) failure_ = detail::Verdict{text, {}};
      }
      post({.kind = detail::Notice::Kind::aborted, .position = {}, .text = std::string{reason}});
      const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
      close_connections();
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }

 private:
  using Milliseconds = std::chrono::milliseconds;

  // What the operation under way needs, wherever it fails.
  struct Running {
    const detail::Signature& signature;
    const Deadline& deadline;
    int from = -1;  // of messages; -1 in collectives
    int to = -1;
    std::uint64_t number = 0;
    std::uint64_t slot = 0;              // of the step under way
    Deadline::Clock::time_point wake{};  // to look around
    Deadline::Clock::time_point next_look{};
    Milliseconds until_look{};
    bool has_announced = false;
    detail::AwakeTime time{};
  };
  struct ResetAtEnd {
    Running*& pointer;
    ~ResetAtEnd() { pointer = nullptr; }
  };

 public:
  // What detail::Mesh asks for; of use to the collectives above only.
  [[nodiscard]] int rank() const noexcept { return world_.rank; }
  [[nodiscard]] int size() const noexcept { return world_.size; }

  [[nodiscard]] std::byte* scratch(std::size_t size_bytes) { return scratch_.take(size_bytes); }

  /// Is one step of an operation: messages that are under way together.
  class Step {
   public:
    Step(GlooTcp& gloo, std::uint64_t slot, const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes)
        : gloo_(&gloo), slot_(slot) {
      if (gloo.lines_) transfer_ = gloo.lines_->start(from, from_bytes, to, to_bytes);
    }

    void send(int peer, std::size_t offset, std::size_t size_bytes) {
      in_parts(offset, size_bytes, [&](std::uint64_t slot, std::size_t begin, std::size_t bytes) {
        transfer_->send(peer, slot, begin, bytes);
      });
    }
    void receive(int peer, std::size_t offset, std::size_t size_bytes) {
      in_parts(offset, size_bytes, [&](std::uint64_t slot, std::size_t begin, std::size_t bytes) {
        transfer_->receive(peer, slot, begin, bytes);
      });
    }
    void finish() {
      if (transfer_) gloo_->await(*transfer_);
    }

   private:
    // One message moves less than 2^31 bytes: the kernel writes no more at a time, and Gloo keeps some sizes in an int.
    template <class Post>
    void in_parts(std::size_t offset, std::size_t size_bytes, const Post& post) {
      constexpr std::size_t limit = std::size_t{1} << 30U;
      std::uint64_t part = 0;
      for (std::size_t begin = 0; begin < size_bytes; begin += limit, ++part) {
        const std::uint64_t slot = detail::mix(slot_, part);
        gloo_->guarded([&] { post(slot, offset + begin, std::min(limit, size_bytes - begin)); });
      }
    }

    GlooTcp* gloo_;
    std::uint64_t slot_;
    std::unique_ptr<detail::MeshLines::Transfer> transfer_{};
  };

  [[nodiscard]] Step step(const void* from, std::size_t from_bytes, void* to, std::size_t to_bytes) {
    running_->slot = detail::mix(running_->slot, 1);
    return {*this, running_->slot, from, from_bytes, to, to_bytes};
  }

 private:
  explicit GlooTcp(const World& world) : world_(world) {}

  GlooTcp(const Options& options, const World& world, Store& store, const std::string& prefix, const Deadline& deadline)
      : world_(world),
        sent_(detail::index_of(world.size)),
        received_(sent_),
        notices_(std::in_place, store, prefix, world) {
    const auto address = detail::own_address(options.host, "Gloo::Options::host");
    const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
    if (world.connector) {
      lines_ = std::make_unique<detail::ProvenLines>(
          world.connector->connect(world, store, prefix + "lines/", address.text, deadline));
    } else {
      lines_ = std::make_unique<detail::GlooLines>(address, world, store, prefix, deadline);
    }
  }

  [[nodiscard]] detail::Arguments arguments() const noexcept { return {world_, device_kind}; }

  template <class Body>
  FinishedWork run(const detail::Signature& signature, const Call& call, const Body& body) {
    throw_if_lost(signature);
    Running running{.signature = signature, .deadline = call.deadline};
    number(running);
    const bool is_empty = signature.count == 0 && signature.operation != detail::Operation::barrier;
    if (is_empty && world_.size > 1) {  // nothing moves, but whoever waits for more can learn of it
      if (skipped_.size() == 8) skipped_.erase(skipped_.begin());
      skipped_.push_back(position(running));
    }
    if (is_empty) return {};
    const detail::WriteSignalGuard<SIGPIPE> no_sigpipe;
    running.until_look = until_look_;
    running_ = &running;
    const ResetAtEnd reset{running_};
    body();
    skipped_.clear();
    return {};
  }

  // Counts the operation: collectives in one row, messages in a row for each direction and peer.
  void number(Running& running) {
    const detail::Signature& signature = running.signature;
    const bool sends = signature.operation == detail::Operation::send;
    if (sends || signature.operation == detail::Operation::receive) {
      running.from = sends ? world_.rank : signature.root;
      running.to = sends ? signature.root : world_.rank;
      running.number = ++(sends ? sent_ : received_)[detail::index_of(signature.root)];
    } else {
      running.number = ++num_collectives_;
    }
    // A tag of Gloo's that only equal operations at the same place in the same row have. Gloo ends the process if a
    // message is longer than what it is received into; with the size in the tag they never meet.
    const auto row = (static_cast<std::uint64_t>(running.from + 1) << 32U) + static_cast<std::uint64_t>(running.to + 1);
    running.slot = detail::mix(detail::mix(row, running.number), signature.digest());
  }

  [[nodiscard]] static detail::Position position(const Running& running) {
    std::string key = running.from < 0 ? compose("c{}", running.number)
                                       : compose("m{}-{}-{}", running.from, running.to, running.number);
    return {std::move(key), running.signature.digest(), detail::describe(running.signature)};
  }

  template <class Post>
  void guarded(const Post& post) {
    try {
      post();
    } catch (const std::exception& error) {
      fail(detail::Notice::Kind::broken, error.what());
    }
  }

  void await(detail::MeshLines::Transfer& transfer) {
    if (running_->next_look == Deadline::Clock::time_point{}) {
      running_->next_look = Deadline::Clock::now() + until_look_;
      set_wake();
    }
    for (bool done = false; !done;) {
      guarded([&] { done = transfer.wait(running_->wake); });
      if (!done) look_around();
    }
  }

  void set_wake() {
    const auto now = Deadline::Clock::now();
    static_cast<void>(running_->time.is_over(running_->deadline, now));  // a look
    running_->wake = now + running_->time.until_next_look(running_->deadline);
  }

  // Called now and then when an operation takes long: ends it at the deadline, or when a rank is gone from which
  // nothing is awaited at the moment, or when the ranks turn out to be in different operations.
  void look_around() {
    if (running_->time.is_over(running_->deadline)) fail(detail::Notice::Kind::late, "the deadline has passed");
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank == world_.rank || !is_closed(rank)) continue;
      // A rank may leave when it has done its part. If it had not, this operation will notice.
      if (notices_->kind_of(rank) == detail::Notice::Kind::left) continue;
      fail(detail::Notice::Kind::broken, compose("the connection to rank {} was closed", rank));
    }
    if (Deadline::Clock::now() >= running_->next_look) compare_positions();
    set_wake();
  }

  // The first comparison comes early and each later one, in this operation and the next slow ones, after twice the
  // time, so that a group whose ranks often wait for each other leaves no more than a few announcements in the store.
  void compare_positions() {
    const detail::Position here = position(*running_);
    if (!std::exchange(running_->has_announced, true)) {
      for (const auto& skipped : std::exchange(skipped_, {})) notices_->announce(skipped);
      notices_->announce(here);
      until_look_ = std::min<Milliseconds>(until_look_ * 2, std::chrono::minutes{1});
      running_->until_look = until_look_;
    }
    if (const auto difference = notices_->find_difference(here)) {
      fail(detail::Notice::Kind::differs, difference->text, difference->blamed);
    }
    running_->next_look = Deadline::Clock::now() + running_->until_look;
    running_->until_look = std::min<Milliseconds>(running_->until_look * 2, std::chrono::minutes{1});
  }

  // Ends the group for this rank. The order matters: see which connections are closed, leave a notice, close.
  [[noreturn]] void fail(detail::Notice::Kind kind, const std::string& text, std::vector<int> culprits = {}) {
    const detail::Position here = position(*running_);
    {
      const std::lock_guard lock{mutex_};
      if (failure_) throw_failure(here.operation, *failure_, false);  // abort() came first, and its reason is better
    }
    if (kind == detail::Notice::Kind::broken) culprits = await_dead_peers();
    const detail::Notice notice{.kind = kind, .position = here, .culprits = culprits, .text = text};
    post(notice);
    close_connections();
    auto verdict = notices_->judge(notice, text, running_->deadline.budget_text(), patience);
    {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = std::move(verdict);
    }
    throw_failure(here.operation, *failure_, false);
  }

  // The ranks whose connections are closed although they have left no notice.
  [[nodiscard]] std::vector<int> dead_peers() {
    std::vector<int> dead;
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank != world_.rank && is_closed(rank) && !notices_->kind_of(rank)) dead.push_back(rank);
    }
    return dead;
  }

  // Of all that waits for a connection, Gloo tells one after the other that it is closed: what failed may have been
  // told before the buffer by which a closed connection is known here.
  [[nodiscard]] std::vector<int> await_dead_peers() {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds{50});
    while (true) {
      std::vector<int> dead = dead_peers();
      if (!dead.empty() || has_seen_a_notice() || deadline.expired()) return dead;
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }
  // Is there a closed connection to a rank which has said why?
  [[nodiscard]] bool has_seen_a_notice() {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank != world_.rank && is_closed(rank) && notices_->kind_of(rank)) return true;
    }
    return false;
  }

  [[nodiscard]] bool is_closed(int rank) { return lines_->is_closed(rank); }

  void post(const detail::Notice& notice) noexcept {
    const std::lock_guard lock{post_mutex_};
    if (notices_) notices_->post(notice);
  }

  void close_connections() noexcept {
    if (lines_) lines_->close();
  }

  void throw_if_lost(const detail::Signature& signature) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(detail::describe(signature), *failure_, true);
  }

  [[noreturn]] void throw_failure(const std::string& operation, const detail::Verdict& verdict, bool is_later) const {
    throw CollectiveError{operation, world_.rank, verdict.blamed,
                          compose("{}: {}{}", detail::place_text(operation, world_.rank, world_.size),
                                  is_later ? "the group was lost before: " : "", verdict.text)};
  }

  // How long a rank that has failed waits for the others' notices.
  static constexpr Milliseconds patience{250};

  World world_;
  std::unique_ptr<detail::MeshLines> lines_{};  // nullptr for a rank that is alone
  detail::Scratch scratch_{};
  std::uint64_t num_collectives_ = 0;
  std::vector<std::uint64_t> sent_{};      // messages, by receiver
  std::vector<std::uint64_t> received_{};  // messages, by sender
  std::vector<detail::Position> skipped_{};
  Running* running_ = nullptr;
  Milliseconds until_look_{100};
  std::optional<detail::Notices> notices_{};
  std::mutex post_mutex_;
  std::mutex mutex_;
  std::optional<detail::Verdict> failure_{};  // set once, and never changed after
};
static_assert(Backend<GlooTcp>);
static_assert(detail::Mesh<GlooTcp>);

}  // namespace detail
}  // namespace railyard::inline v0_1
