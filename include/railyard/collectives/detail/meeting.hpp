// SPDX-License-Identifier: MIT
// How the ranks of one host wait for each other in memory that they share. Collectives room.
#pragma once

#include "railyard/collectives/detail/segment.hpp"
#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sched.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Tells the processor that this is a loop which waits.
inline void pause_briefly() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A step is shown by a store that others may see later, and only then, when it has usually been seen long since, is
// the store made to come before what this rank looks at next: the barrier costs nothing by that time. The thread
// sanitizer knows no fences, so there the store itself is the barrier.
#if defined(__SANITIZE_THREAD__)
#define RAILYARD_STORES_ARE_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RAILYARD_STORES_ARE_FENCES 1
#endif
#endif
#if defined(RAILYARD_STORES_ARE_FENCES)
inline constexpr auto step_order = std::memory_order_seq_cst;
inline void fence_step() noexcept {}
#undef RAILYARD_STORES_ARE_FENCES
#else
inline constexpr auto step_order = std::memory_order_release;
inline void fence_step() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

/// Is one rank's part in the waits of its group. A step is taken when every rank has posted it. Waiting is spinning,
/// then yielding, then sleeping on a futex, so that more ranks than cores still move and a long wait costs nothing.
///
/// A rank that gives up says why in its cell and raises a flag; whoever waits for it takes over what it has said, so
/// that all tell the same story, in all lanes. All but abort() is for one thread of the rank: the lane's own.
class Meeting {
 public:
  /// Is the operation under way.
  struct Running {
    const Signature& signature;
    const Deadline& deadline;
    int peer = -1;  ///< of a message; -1 in collectives
    /// The steps between which ranks may read and write this rank's own memory; equal if they never do.
    std::uint64_t first_shared = 0;
    std::uint64_t last_shared = 0;
    const Outbox* box = nullptr;  ///< of a message that this rank sends
    std::uint64_t piece = 0;      ///< of that message, under way
    mutable AwakeTime time{};     ///< that has been waited for
  };

  /// pidfds: by rank, of the processes of other ranks; empty if the ranks are threads of one process. They outlive
  /// this. is_hasty: there is a core for each who waits, so that waits may begin by spinning.
  Meeting(const World& world, std::vector<RankCell*> cells, std::span<const Descriptor> pidfds, bool is_hasty,
          std::size_t lane)
      : world_(world), cells_(std::move(cells)), pidfds_(pidfds), lane_(lane), num_spins_(is_hasty ? 2000 : 0) {}
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() {
    own().flags.fetch_or(Flag::left);
    wake_all();
  }

  [[nodiscard]] RankCell& cell(int rank) const noexcept { return *cells_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] RankCell& own() const noexcept { return cell(world_.rank); }
  [[nodiscard]] Lane& lane(int rank) const noexcept { return cell(rank).lanes[lane_]; }
  [[nodiscard]] Lane& own_lane() const noexcept { return lane(world_.rank); }

  /// Throws: CollectiveError if this rank has given up before.
  void throw_if_lost(const Signature& signature) {
    if ((own().flags.load(std::memory_order_acquire) & Flag::failed) == 0) return;
    throw_verdict(signature, "the group was lost before: ");
  }

  /// Is what this rank will show in its next step.
  [[nodiscard]] Post& next_post() const noexcept { return own_lane().posts[(step_ + 1) % 2]; }
  /// Is what a rank shows in the step that has been taken last.
  [[nodiscard]] const Post& post_of(int rank) const noexcept { return lane(rank).posts[step_ % 2]; }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  /// Takes the first step of a collective: shows next_post(), waits for all, and compares what they have called.
  void enter(const Running& running) {
    next_post().signature = running.signature;
    take_step(running);
    for (int rank = 0; rank < world_.size; ++rank) {
      if (post_of(rank).signature != running.signature) give_up(running, disagreement_of_all());
    }
    throw_if_any_gave_up(running);
  }

  /// Gives up as well if another rank has done so; called before this one looks at their memory in the step it has
  /// taken.
  void throw_if_any_gave_up(const Running& running) {
    if (running.first_shared == running.last_shared) return;
    for (int rank = 0; rank < world_.size; ++rank) throw_if_given_up(rank, running);
  }

  /// Gives up as well if a rank has done so, which may be about to let go of its memory: it waits for those who did not
  /// see that in time.
  void throw_if_given_up(int rank, const Running& running) {
    if ((cell(rank).flags.load() & Flag::failed) != 0) give_up(running, verdict_of(rank));
  }

  /// Takes one step: shows next_post() and waits until all ranks have shown theirs.
  void take_step(const Running& running) {
    const std::uint64_t step = ++step_;
    own_lane().posts[step % 2].step.store(step, step_order);
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank != world_.rank) await(lane(rank).posts[step % 2].step, step, running);
    }
    fence_step();  // before the flags of those who gave up are looked at as well
    ring();
  }

  /// Waits until a word of a peer has reached a value.
  void await(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    for (int spin = 0; spin < num_spins_; ++spin) {
      if (word.load(std::memory_order_acquire) >= at_least) return;
      pause_briefly();
    }
    await_slowly(word, at_least, running);
  }

  /// Wakes those who sleep, after a word has moved.
  void ring() const noexcept {
    if (lane(0).num_asleep.load() == 0) return;
    for (int rank = 0; rank < world_.size; ++rank) {
      if (lane(rank).is_asleep.load() != 0) nudge(lane(rank).bell);
    }
  }

  /// Ends the waits of this rank, from any thread, and of those who wait for it.
  void abort(std::string_view reason) { fail({{world_.rank}, compose("rank {} gave up: {}", world_.rank, reason)}); }

  struct Verdict {
    std::vector<int> blamed{};
    std::string text{};
  };

  /// Says why this rank gives up, for all ranks to see, and throws it.
  [[noreturn]] void give_up(const Running& running, const Verdict& verdict) {
    fail(verdict);
    withdraw(running);
    throw_verdict(running.signature, "");
  }

  /// Says that this rank is at nobody's memory until its next step.
  void rest() const noexcept { own_lane().rested.store(step_); }

  /// After this rank has failed: returns once nobody is at its memory.
  void withdraw(const Running& running) const noexcept {
    own_lane().has_withdrawn.store(1);
    ring();
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank == world_.rank) continue;
      // Whoever is there only copies and adds, or gives up as well.
      while (is_at_memory(rank, running)) ::sched_yield();
    }
  }

 private:
  static constexpr std::chrono::microseconds yield_for{500};
  static constexpr std::chrono::milliseconds longest_sleep{50};

  void await_slowly(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    fence_step();
    ring();  // others may sleep until they hear of the step that this rank waits in
    const auto sleeps_from = Deadline::Clock::now() + yield_for;
    for (unsigned turn = 0;; ++turn) {
      if (word.load(std::memory_order_acquire) >= at_least) return;
      if (!may_go_on(word, at_least, running)) return;
      if (turn % 8 == 7) {
        if (running.time.is_over(running.deadline)) give_up(running, lateness(running));
        if (Deadline::Clock::now() >= sleeps_from) {
          sleep(word, at_least, running);
          look_for_deaths(word, at_least, running);
          turn = 6;  // from here on every turn looks at the clock
          continue;
        }
      }
      ::sched_yield();
    }
  }

  // Returns false if the word has got there after all.
  bool may_go_on(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    std::vector<int> gone;
    for (int rank = 0; rank < world_.size; ++rank) {
      const std::uint32_t flags = cell(rank).flags.load();
      if ((flags & Flag::failed) != 0) {
        if (word.load() >= at_least) return false;
        give_up(running, verdict_of(rank));
      }
      if ((flags & Flag::left) != 0 && is_missing(rank, running, word, at_least)) gone.push_back(rank);
    }
    if (!gone.empty()) give_up(running, {gone, ranks_text(gone) + " left the group before"});
    return true;
  }

  [[nodiscard]] bool is_missing(int rank, const Running& running, const std::atomic<std::uint64_t>& word,
                                std::uint64_t at_least) const noexcept {
    if (rank == world_.rank) return false;
    if (running.peer >= 0) return rank == running.peer && word.load() < at_least;
    return is_behind(rank);
  }

  [[nodiscard]] bool is_behind(int rank) const noexcept { return lane(rank).posts[step_ % 2].step.load() < step_; }

  void sleep(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    Lane& self = own_lane();
    const std::uint32_t bell = self.bell.load();
    self.is_asleep.store(1);
    lane(0).num_asleep.fetch_add(1);
    const bool is_lost =
        std::any_of(cells_.begin(), cells_.end(), [](const RankCell* one) { return one->flags.load() != 0; });
    if (word.load() < at_least) {
      // Where somebody has gone the reason to wake up may have come and gone before.
      const std::chrono::nanoseconds slice = is_lost ? std::chrono::milliseconds{1} : longest_sleep;
      futex_wait(self.bell, bell, std::min(slice, running.time.until_next_look(running.deadline)));
    }
    lane(0).num_asleep.fetch_sub(1);
    self.is_asleep.store(0);
  }

  void look_for_deaths(const std::atomic<std::uint64_t>& word, std::uint64_t at_least, const Running& running) {
    std::vector<int> dead;
    for (int rank = 0; rank < world_.size && !pidfds_.empty(); ++rank) {
      const Descriptor& pidfd = pidfds_[static_cast<std::size_t>(rank)];
      if (!pidfd.is_open() || !is_missing(rank, running, word, at_least)) continue;
      pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ended, 1, 0) > 0 && is_missing(rank, running, word, at_least)) dead.push_back(rank);
    }
    if (!dead.empty()) give_up(running, {dead, ranks_text(dead) + " died"});
  }

  [[nodiscard]] Verdict lateness(const Running& running) const {
    std::vector<int> late;
    for (int rank = 0; rank < world_.size; ++rank) {
      const bool is_late = running.peer >= 0 ? rank == running.peer : is_behind(rank);
      if (is_late && rank != world_.rank) late.push_back(rank);
    }
    return {late, compose("{} did not answer in {}", ranks_text(late), running.deadline.budget_text())};
  }

  [[nodiscard]] Verdict disagreement_of_all() const {
    const Signature& first = post_of(0).signature;
    Verdict verdict{.blamed = {0}};
    for (int rank = 1; rank < world_.size; ++rank) {
      const Signature& other = post_of(rank).signature;
      if (other == first) continue;
      if (verdict.text.empty()) verdict.text = disagreement(rank, describe(other), 0, describe(first));
      verdict.blamed.push_back(rank);
    }
    return verdict;
  }

  [[nodiscard]] bool is_at_memory(int rank, const Running& running) const noexcept {
    const Lane& peer = lane(rank);
    if (peer.has_withdrawn.load() != 0 || (cell(rank).flags.load() & Flag::left) != 0) return false;
    if (running.box != nullptr) {
      return rank == running.peer && running.box->taking.load() >= running.piece &&
             running.box->taken.load() < running.piece;
    }
    const std::uint64_t at = std::max(peer.posts[0].step.load(), peer.posts[1].step.load());
    return at >= running.first_shared && at < running.last_shared && peer.rested.load() < at;
  }

  // Keeps the first verdict only: another lane, or abort() from another thread, may come at the same time.
  void fail(const Verdict& verdict) {
    if ((own().flags.fetch_or(Flag::failing) & Flag::failing) != 0) {
      while ((own().flags.load() & Flag::failed) == 0) ::sched_yield();
      return;
    }
    SharedVerdict& shown = own().verdict;
    shown.num_blamed = static_cast<std::uint32_t>(std::min(verdict.blamed.size(), shown.blamed.size()));
    std::copy_n(verdict.blamed.begin(), shown.num_blamed, shown.blamed.begin());
    shown.size = static_cast<std::uint32_t>(std::min(verdict.text.size(), shown.text.size()));
    if (shown.size > 0) std::memcpy(shown.text.data(), verdict.text.data(), shown.size);
    own().flags.fetch_or(Flag::failed);
    wake_all();
  }

  void wake_all() const noexcept {
    for (RankCell* cell : cells_) {
      for (Lane& one : cell->lanes) nudge(one.bell);
    }
  }

  [[nodiscard]] Verdict verdict_of(int rank) const {
    const SharedVerdict& shown = cell(rank).verdict;
    return {{shown.blamed.begin(), shown.blamed.begin() + shown.num_blamed}, {shown.text.data(), shown.size}};
  }

  [[noreturn]] void throw_verdict(const Signature& signature, std::string_view when) const {
    const Verdict verdict = verdict_of(world_.rank);
    const std::string operation = describe(signature);
    throw CollectiveError{operation, world_.rank, verdict.blamed,
                          compose("{}: {}{}", place_text(operation, world_.rank, world_.size), when, verdict.text)};
  }

  World world_;
  std::vector<RankCell*> cells_;
  std::span<const Descriptor> pidfds_;
  std::size_t lane_;
  int num_spins_;
  std::uint64_t step_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
