// SPDX-License-Identifier: MIT
// Where the ranks of a Local group meet: one object per group, in the memory that they share. Collectives room.
#pragma once

#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is shared by the ranks of one Local group. One mutex guards everything but the elements of buffers, which move in
/// the open between an entry that all ranks have passed and an exit that all pass together.
class LocalHub {
 public:
  using Views = std::pair<const std::byte*, std::byte*>;  // what a rank offers to read and to write

  explicit LocalHub(int size)
      : size_(size), references_(size), seats_(to_index(size)), mailboxes_(to_index(size) * to_index(size)) {}

  /// Waits until every rank has come. close_to(rank) must return whether it has kept a missing rank out for good.
  void arrive(const World& world, const Deadline& deadline, const std::function<bool(int)>& close_to) {
    std::unique_lock lock{mutex_};
    seats_[to_index(world.rank)].has_arrived = true;
    changed_.notify_all();
    const auto all_here = [this] {
      return std::all_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.has_arrived; });
    };
    AwakeTime time;
    while (!failure_ && !all_here()) {
      if (wait(lock, deadline, time)) continue;
      if (failure_ || all_here()) break;
      std::vector<int> missing;
      for (int rank = 0; rank < size_; ++rank) {
        if (seats_[to_index(rank)].has_arrived) continue;
        missing.push_back(rank);
        if (close_to(rank)) --references_;  // whoever is kept out will not come to release its share
      }
      fail(missing, compose("{} did not connect in {}", ranks_text(missing), deadline.budget_text()));
    }
    // All were here, if only for a moment: what has gone wrong since is the next call's to tell.
    if (!all_here()) throw_failure("connect", world.rank, false);
  }

  /// Runs work once all ranks have called this with equal signatures, and returns when all have finished theirs.
  template <class Work>
  void run(int rank, const Signature& signature, Views views, const Deadline& deadline, const Work& work) {
    const std::uint64_t round = enter(rank, signature, views, deadline);
    work(seats_);
    // No deadline here: the others read and write this rank's memory until they are done, and they only copy.
    std::unique_lock lock{mutex_};
    seats_[to_index(rank)].is_busy = false;
    if (++num_finished_ == size_) {
      num_finished_ = 0;
      ++rounds_finished_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return rounds_finished_ > round; });
  }

  void send(int rank, const Signature& signature, const std::byte* data, const Deadline& deadline) {
    Message message{.signature = signature, .data = data};
    std::unique_lock lock{mutex_};
    begin(rank, signature);
    auto& box = mailbox(rank, signature.root);
    box.push_back(&message);
    changed_.notify_all();
    const bool taken = await(lock, rank, signature, deadline, [&] { return message.state != Message::State::offered; });
    if (!taken) std::erase(box, &message);
    changed_.wait(lock, [&] { return !taken || message.state == Message::State::copied; });
    end(lock, rank, signature, taken);
  }

  void receive(int rank, const Signature& signature, std::byte* data, const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    begin(rank, signature);
    auto& box = mailbox(signature.root, rank);
    bool taken = await(lock, rank, signature, deadline, [&] { return !box.empty(); });
    if (taken && box.front()->signature.digest() != signature.digest()) {
      fail({signature.root}, mismatch_text(signature.root, box.front()->signature, rank, signature));
      taken = false;
    }
    if (taken) {
      Message& message = *box.front();
      box.pop_front();
      message.state = Message::State::taken;
      lock.unlock();
      const std::size_t size_bytes = signature.count * size_of(signature.dtype);
      if (size_bytes > 0) std::memcpy(data, message.data, size_bytes);
      lock.lock();
      message.state = Message::State::copied;
      changed_.notify_all();
    }
    end(lock, rank, signature, taken);
  }

  void abort(int rank, std::string_view reason) {
    const std::lock_guard lock{mutex_};
    fail({rank}, compose("rank {} gave up: {}", rank, reason));
  }

  void throw_if_failed(int rank, const Signature& signature) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(describe(signature), rank, true);
  }

  /// Takes the rank out of the group and returns whether it was the last, so that the hub is to be deleted.
  [[nodiscard]] bool leave(int rank) noexcept {
    const std::lock_guard lock{mutex_};
    seats_[to_index(rank)].has_left = true;
    changed_.notify_all();
    return --references_ == 0;
  }

  struct Seat {
    bool has_arrived = false;
    bool has_left = false;
    bool is_busy = false;
    Signature signature{};
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
  };

 private:
  struct Message {
    enum class State : std::uint8_t { offered, taken, copied };
    Signature signature{};
    const std::byte* data = nullptr;
    State state = State::offered;
  };
  struct Failure {
    std::vector<int> blamed{};
    std::string text{};
  };

  [[nodiscard]] static std::size_t to_index(int rank) noexcept { return static_cast<std::size_t>(rank); }

  [[nodiscard]] std::deque<Message*>& mailbox(int from, int to) noexcept {
    return mailboxes_[to_index(from) * to_index(size_) + to_index(to)];
  }

  // Returns false at the deadline; before, whether anything has changed or not.
  bool wait(std::unique_lock<std::mutex>& lock, const Deadline& deadline, AwakeTime& time) {
    if (time.is_over(deadline)) return false;
    if (deadline.is_never()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, Deadline::Clock::now() + time.until_next_look(deadline));
    }
    return true;
  }

  [[nodiscard]] std::uint64_t enter(int rank, const Signature& signature, Views views, const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    begin(rank, signature);
    Seat& seat = seats_[to_index(rank)];
    seat.in = views.first;
    seat.out = views.second;
    const std::uint64_t round = rounds_entered_;
    if (++num_entered_ == size_) {
      compare_signatures();
      if (!failure_) {
        num_entered_ = 0;
        ++rounds_entered_;
      }
      changed_.notify_all();
    }
    const bool entered = await(lock, rank, signature, deadline, [&] { return rounds_entered_ > round; });
    if (!entered) throw_failure(describe(signature), rank, false);
    return round;
  }

  void begin(int rank, const Signature& signature) {
    if (failure_) throw_failure(describe(signature), rank, true);
    Seat& seat = seats_[to_index(rank)];
    seat.signature = signature;
    seat.is_busy = true;
  }

  void end(const std::unique_lock<std::mutex>& /*held*/, int rank, const Signature& signature, bool succeeded) {
    seats_[to_index(rank)].is_busy = false;
    if (!succeeded) throw_failure(describe(signature), rank, false);
  }

  // Waits for done(). Returns false with failure_ set if it cannot come any more, or not by the deadline.
  template <class Done>
  bool await(std::unique_lock<std::mutex>& lock, int rank, const Signature& signature, const Deadline& deadline,
             const Done& done) {
    bool in_time = true;
    AwakeTime time;
    for (;;) {
      if (done()) return true;  // first: whoever has done its part may have left since
      if (failure_) return false;
      if (const auto gone = absent(signature, [](const Seat& seat) { return seat.has_left; }); !gone.empty()) {
        fail(gone, compose("{} left the group before", ranks_text(gone)));
        return false;
      }
      if (!in_time) {
        fail_late(rank, signature, deadline);
        return false;
      }
      in_time = wait(lock, deadline, time);
    }
  }

  // The ranks whose part in the operation is missing and of which missing(seat) is true.
  template <class Missing>
  [[nodiscard]] std::vector<int> absent(const Signature& signature, const Missing& missing) const {
    const bool is_message = signature.operation == Operation::send || signature.operation == Operation::receive;
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if ((!is_message || rank == signature.root) && missing(seats_[to_index(rank)])) ranks.push_back(rank);
    }
    return ranks;
  }

  void fail_late(int rank, const Signature& signature, const Deadline& deadline) {
    const auto late = absent(signature, [&](const Seat& seat) {
      return &seat != &seats_[to_index(rank)] && !(seat.is_busy && seat.signature == signature);
    });
    std::string text = compose("{} did not answer in {}", ranks_text(late), deadline.budget_text());
    for (const int other : late) {
      const Seat& seat = seats_[to_index(other)];
      if (seat.is_busy) text += compose("; rank {} is in {}", other, describe(seat.signature));
    }
    fail(late, text);
  }

  void compare_signatures() {
    const Signature& first = seats_[0].signature;
    std::vector<int> others;
    for (int rank = 1; rank < size_; ++rank) {
      if (seats_[to_index(rank)].signature != first) others.push_back(rank);
    }
    if (!others.empty()) {
      others.insert(others.begin(), 0);
      fail(others, mismatch_text(others[1], seats_[to_index(others[1])].signature, 0, first));
    }
  }

  [[nodiscard]] static std::string mismatch_text(int a, const Signature& of_a, int b, const Signature& of_b) {
    return disagreement(a, describe(of_a), b, describe(of_b));
  }

  void fail(std::vector<int> blamed, std::string text) {
    if (!failure_) failure_ = Failure{std::move(blamed), std::move(text)};
    changed_.notify_all();
  }

  [[noreturn]] void throw_failure(const std::string& operation, int rank, bool is_later) const {
    throw CollectiveError{operation, rank, failure_->blamed,
                          compose("{}: {}{}", place_text(operation, rank, size_),
                                  is_later ? "the group was lost before: " : "", failure_->text)};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const int size_;
  int references_;
  std::vector<Seat> seats_;
  std::vector<std::deque<Message*>> mailboxes_;
  int num_entered_ = 0;
  int num_finished_ = 0;
  std::uint64_t rounds_entered_ = 0;
  std::uint64_t rounds_finished_ = 0;
  std::optional<Failure> failure_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
