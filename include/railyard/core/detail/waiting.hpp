// SPDX-License-Identifier: MIT
// Long waits for what no part of a run can hurry: that they hear when nobody wants them any more, and say what they
// wait for. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Says for whom a thread waits that what takes long is done: for another program, or for its own run, itself included.
enum class WaitFor : std::uint8_t { another_program, own_run };

/// Is what long waits of a thread look at, while a WatchedThread gives it to them. Beyond it they look at that of the
/// thread which has made it.
class WaitWatch {
 public:
  /// Is the part of it that waits hold on to, which may go on when it is no more.
  class Shared {
   public:
    [[nodiscard]] std::string why_over(WaitFor whom) const {
      {
        const std::lock_guard lock{mutex_};
        if (!why_over_) return "whoever wanted it has ended";
        if (std::string why = why_over_(whom); !why.empty()) return why;
      }
      return beyond_ != nullptr ? beyond_->why_over(whom) : std::string{};
    }
    void say(const std::string& text) const {
      {
        const std::lock_guard lock{mutex_};
        if (say_) return say_(text);
      }
      beyond_ != nullptr ? beyond_->say(text) : say_aloud(text);
    }
    /// Notes down what a thread waits for; an empty text when it waits no more.
    void note(std::string text) const {
      const std::lock_guard lock{mutex_};
      noted_ = std::move(text);
    }

   private:
    friend class WaitWatch;

    mutable std::mutex mutex_{};
    std::function<std::string(WaitFor)> why_over_{};
    std::function<void(const std::string&)> say_{};
    std::shared_ptr<const Shared> beyond_{};
    mutable std::string noted_{};
  };

  /// why_over: returns why nobody wants them any more, or an empty text. say: tells the user of a long one; empty
  /// where that is for the one beyond to do. Neither is called once this has ended.
  explicit WaitWatch(std::function<std::string(WaitFor)> why_over, std::function<void(const std::string&)> say = {})
      : shared_(std::make_shared<Shared>()) {
    shared_->why_over_ = std::move(why_over);
    shared_->say_ = std::move(say);
    shared_->beyond_ = of_thread();
  }
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  ~WaitWatch() {
    const std::lock_guard lock{shared_->mutex_};
    shared_->why_over_ = nullptr;
    shared_->say_ = nullptr;
  }

  [[nodiscard]] const std::shared_ptr<Shared>& shared() const noexcept { return shared_; }
  /// What its waits have noted down last.
  [[nodiscard]] std::string noted() const {
    const std::lock_guard lock{shared_->mutex_};
    return shared_->noted_;
  }

  /// That of the calling thread; nullptr if it has none.
  [[nodiscard]] static std::shared_ptr<const Shared>& of_thread() noexcept {
    static thread_local std::shared_ptr<const Shared> watch;
    return watch;
  }
  /// Tells whoever has started the program.
  static void say_aloud(const std::string& text) noexcept { std::fprintf(stderr, "railyard: %s\n", text.c_str()); }
  /// Tells whoever the calling thread's waits tell.
  static void tell(const std::string& text) {
    const auto watch = of_thread();
    watch != nullptr ? watch->say(text) : say_aloud(text);
  }

 private:
  std::shared_ptr<Shared> shared_;
};

/// Gives a watch to the waits of the calling thread.
class WatchedThread {
 public:
  explicit WatchedThread(const WaitWatch& watch) : before_(std::exchange(WaitWatch::of_thread(), watch.shared())) {}
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;
  ~WatchedThread() { WaitWatch::of_thread() = std::move(before_); }

 private:
  std::shared_ptr<const WaitWatch::Shared> before_;
};

/// Is one wait. Looked at again and again by the thread that waits.
class LongWait {
 public:
  /// first_word: after which time it says what it waits for; then each time after three times as long.
  explicit LongWait(std::chrono::nanoseconds first_word = std::chrono::seconds{10},
                    WaitFor whom = WaitFor::another_program)
      : whom_(whom), watch_(WaitWatch::of_thread()), next_word_(Deadline::after(first_word)), interval_(first_word) {}
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;
  ~LongWait() {
    if (has_noted_) watch_->note({});
  }

  /// what: returns who or what keeps it waiting, as a sentence. Throws: Error if nobody wants it any more.
  template <class What>
  void look(const What& what) {
    if (watch_ != nullptr) {
      if (const std::string why = watch_->why_over(whom_); !why.empty()) {
        throw Error{compose("{}, but nobody wants it any more: {}", what(), why)};
      }
      if (!std::exchange(has_noted_, true)) watch_->note(what());
    }
    if (!next_word_.expired()) return;
    const double seconds = std::chrono::duration<double>(Deadline::Clock::now() - begin_).count();
    const std::string text = compose("{} (for {:.0f} s by now)", what(), seconds);
    watch_ != nullptr ? watch_->say(text) : WaitWatch::say_aloud(text);
    interval_ *= 3;
    next_word_ = Deadline::after(interval_);
  }

 private:
  WaitFor whom_;
  std::shared_ptr<const WaitWatch::Shared> watch_;
  Deadline::Clock::time_point begin_ = Deadline::Clock::now();
  Deadline next_word_;
  std::chrono::nanoseconds interval_;
  bool has_noted_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
