// SPDX-License-Identifier: MIT
// Tells which calls another thread of this process is in. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what stands at an address of the program: "Net::forward(at::Tensor)", or the file and the place in it, which
/// addr2line knows more about.
[[nodiscard]] inline std::string name_of_frame(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  const std::string_view path = info.dli_fname;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  std::array<char, 20> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), offset, 16).ptr;
  const std::string place =
      compose("{} +0x{}", file, std::string_view{digits.data(), static_cast<std::size_t>(end - digits.data())});
  if (info.dli_sname == nullptr) return place;
  int status = 0;
  char* plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = status == 0 && plain != nullptr ? plain : info.dli_sname;
  std::free(plain);
  constexpr std::size_t most = 160;
  if (name.size() > most) name.replace(most, std::string::npos, "...");
  return compose("{} ({})", name, place);
}

/// Is the one count per shared library of those who use the signal: its handler belongs to the process, and goes with
/// the last of them.
class StackSignal {
 public:
  using Handler = void (*)(int, siginfo_t*, void*);
  [[nodiscard]] static int number() noexcept { return SIGRTMAX - 2; }

  [[nodiscard]] static StackSignal& of_process() {
    static StackSignal signal;
    return signal;
  }

  /// Sees to it that the handler is there, for somebody who is counted from the first time on. Returns false if the
  /// program uses the signal itself.
  [[nodiscard]] bool install(Handler handler, bool& is_user) {
    const std::lock_guard lock{mutex_};
    struct sigaction current {};
    ::sigaction(number(), nullptr, &current);
    if (current.sa_handler != SIG_DFL && current.sa_sigaction != handler) return false;
    struct sigaction own {};
    own.sa_sigaction = handler;
    own.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigfillset(&own.sa_mask);
    ::sigaction(number(), &own, nullptr);
    if (!std::exchange(is_user, true)) ++num_users_;
    return true;
  }
  void remove_user(Handler handler) noexcept {
    const std::lock_guard lock{mutex_};
    struct sigaction current {};
    ::sigaction(number(), nullptr, &current);
    if (--num_users_ == 0 && current.sa_sigaction == handler) std::signal(number(), SIG_DFL);
  }

 private:
  StackSignal() = default;

  std::mutex mutex_;
  int num_users_ = 0;
};

/// Asks one thread by a signal. It must outlive that thread: an answer may come late.
class StackTeller {
 public:
  StackTeller() = default;
  StackTeller(const StackTeller&) = delete;
  StackTeller& operator=(const StackTeller&) = delete;
  ~StackTeller() {
    if (uses_signal_) StackSignal::of_process().remove_user(&StackTeller::answer);
  }

  /// Called on the thread that is to be asked, when it begins and when it ends.
  void watch_this_thread() {
    std::array<void*, 2> first{};
    ::backtrace(first.data(), static_cast<int>(first.size()));  // loads what it needs: not in a handler of a signal
    const std::lock_guard lock{mutex_};
    thread_ = ::pthread_self();
    is_watched_ = true;
  }
  void forget_thread() noexcept {
    const std::lock_guard lock{mutex_};
    is_watched_ = false;
  }

  /// Returns the calls the thread is in, the innermost first, one a line; empty if it has ended or does not answer in
  /// time. Called on another thread.
  [[nodiscard]] std::string tell(const Deadline& deadline) {
    const std::uint32_t before = num_answers_.load();
    {
      const std::lock_guard lock{mutex_};  // the thread does not end meanwhile
      if (!is_watched_) return {};
      if (!StackSignal::of_process().install(&StackTeller::answer, uses_signal_)) return {};
      sigval self{};
      self.sival_ptr = this;
      if (::pthread_sigqueue(thread_, StackSignal::number(), self) != 0) return {};
    }
    while (num_answers_.load() == before) {
      if (deadline.expired()) return {};
      futex_wait(num_answers_, before,
                 std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{50}));
    }
    return text();
  }

 private:
  static constexpr int most_frames = 48;

  static void answer(int /*signal*/, siginfo_t* info, void* /*context*/) {
    const int error = errno;
    auto* self = static_cast<StackTeller*>(info->si_value.sival_ptr);
    if (info->si_code == SI_QUEUE && self != nullptr) {
      self->num_frames_ = ::backtrace(self->frames_.data(), most_frames);
      self->num_answers_.fetch_add(1);
      futex_wake(self->num_answers_);
    }
    errno = error;
  }

  [[nodiscard]] std::string text() const {
    std::string lines;
    constexpr int num_own = 2;  // the handler, and what the kernel has put below it
    for (int at = num_own; at < num_frames_; ++at) {
      lines += compose("#{} {}\n", at - num_own, name_of_frame(frames_[static_cast<std::size_t>(at)]));
    }
    return lines;
  }

  std::mutex mutex_;
  bool is_watched_ = false;
  bool uses_signal_ = false;
  pthread_t thread_{};
  std::array<void*, most_frames> frames_{};
  int num_frames_ = 0;
  std::atomic<std::uint32_t> num_answers_{0};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
