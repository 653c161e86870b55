// SPDX-License-Identifier: MIT
// Catches SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 for as long as it lives, and passes them on to whoever had them
// before. Workers room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the one list of listeners per shared library: a signal handler has no argument that could lead to them. A second
/// library with hidden visibility has its own list and chains to this one like to any other handler.
struct SignalRegistry {
  std::mutex mutex{};
  std::array<std::atomic<int>, 64> listeners{};  ///< descriptors plus one, 0 where there is none
  std::atomic<int> inside{0};                    ///< handlers that run right now
  /// What was found, by signal. A handler may still be reading an older one, so all that were ever found are kept; the
  /// same one is found again and again.
  std::array<std::atomic<const struct sigaction*>, caught_signals.size()> previous{};
  std::vector<std::unique_ptr<const struct sigaction>> found{};
  std::array<bool, caught_signals.size()> is_chained{};
  int num_listeners = 0;
};

[[nodiscard]] inline SignalRegistry& signal_registry() {
  static SignalRegistry registry;
  return registry;
}

inline void call_previous(const struct sigaction& previous, bool was_heard, int signal, siginfo_t* info,
                          void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_DFL) {
    if (was_heard) return;  // the listener ends the run in order
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    ::sigaction(signal, &fallback, nullptr);
    ::raise(signal);  // is delivered when this handler returns
  } else if (previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  }
}

inline void hear_signal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  SignalRegistry& registry = signal_registry();
  registry.inside.fetch_add(1);
  bool is_heard = false;
  for (const auto& listener : registry.listeners) {
    const int fd = listener.load() - 1;
    if (fd < 0) continue;
    const auto number = static_cast<unsigned char>(signal);
    [[maybe_unused]] const auto written = ::write(fd, &number, 1);
    is_heard = true;
  }
  registry.inside.fetch_sub(1);
  for (std::size_t at = 0; at < caught_signals.size(); ++at) {
    const struct sigaction* previous = registry.previous[at].load();
    if (caught_signals[at] == signal && previous != nullptr) call_previous(*previous, is_heard, signal, info, context);
  }
  errno = error;
}

/// Hears the signals of the process from its making to its end. Several may live at once, each hears every signal.
/// What was ignored stays ignored; a handler of the user's is called as well; what was found is put back, unless
/// somebody has replaced it in the meantime.
class SignalWatch {
 public:
  SignalWatch() {
    auto ends = make_pipe(O_NONBLOCK, "start: a pipe for signals");
    reader_ = std::move(ends.first);
    writer_ = std::move(ends.second);
    SignalRegistry& registry = signal_registry();
    const std::lock_guard lock{registry.mutex};
    std::size_t slot = 0;
    while (slot < registry.listeners.size() && registry.listeners[slot].load() != 0) ++slot;
    if (slot == registry.listeners.size()) {
      throw Error{compose("start: {} groups run at once in this process, which is the most", slot)};
    }
    slot_ = slot;
    if (registry.num_listeners == 0) install(registry);
    ++registry.num_listeners;
    registry.listeners[slot].store(writer_.get() + 1);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch() {
    SignalRegistry& registry = signal_registry();
    const std::lock_guard lock{registry.mutex};
    registry.listeners[slot_].store(0);
    while (registry.inside.load() != 0) std::this_thread::yield();  // a handler may hold the descriptor
    if (--registry.num_listeners == 0) put_back(registry);
  }

  /// Becomes readable when a signal has come.
  [[nodiscard]] int fd() const noexcept { return reader_.get(); }
  [[nodiscard]] std::optional<int> take() const noexcept {
    unsigned char signal = 0;
    if (::read(reader_.get(), &signal, 1) == 1) return signal;
    return std::nullopt;
  }

  /// In a process that has just been forked: the handlers that were ours go back to the default.
  void forget_in_child() noexcept {
    reader_.reset();
    writer_.reset();
    for (const int signal : caught_signals) {
      struct sigaction current {};
      ::sigaction(signal, nullptr, &current);
      if (!is_ours(current)) continue;
      struct sigaction fallback {};
      fallback.sa_handler = SIG_DFL;
      ::sigaction(signal, &fallback, nullptr);
    }
  }

 private:
  static bool is_ours(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &hear_signal;
  }
  static bool is_plain(const struct sigaction& action, void (*handler)(int)) noexcept {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler;
  }

  static bool is_same(const struct sigaction& left, const struct sigaction& right) noexcept {
    for (int signal = 1; signal < NSIG; ++signal) {
      if (::sigismember(&left.sa_mask, signal) != ::sigismember(&right.sa_mask, signal)) return false;
    }
    return left.sa_flags == right.sa_flags && left.sa_handler == right.sa_handler;  // one union with sa_sigaction
  }

  static const struct sigaction* keep(SignalRegistry& registry, const struct sigaction& action) {
    for (const auto& known : registry.found) {
      if (is_same(*known, action)) return known.get();
    }
    return registry.found.emplace_back(std::make_unique<const struct sigaction>(action)).get();
  }

  static void install(SignalRegistry& registry) {
    for (std::size_t at = 0; at < caught_signals.size(); ++at) {
      struct sigaction current {};
      ::sigaction(caught_signals[at], nullptr, &current);
      // Where somebody has put a handler over ours, it most likely calls ours: a second one would go round in circles.
      if (is_ours(current) || is_plain(current, SIG_IGN)) continue;
      if (registry.is_chained[at] && !is_plain(current, SIG_DFL)) continue;
      registry.previous[at].store(keep(registry, current));
      registry.is_chained[at] = true;
      struct sigaction ours {};
      ours.sa_sigaction = &hear_signal;
      ours.sa_flags = SA_SIGINFO | SA_RESTART | (current.sa_flags & SA_ONSTACK);
      ours.sa_mask = current.sa_mask;
      ::sigaction(caught_signals[at], &ours, nullptr);
    }
  }

  static void put_back(SignalRegistry& registry) noexcept {
    for (std::size_t at = 0; at < caught_signals.size(); ++at) {
      struct sigaction current {};
      ::sigaction(caught_signals[at], nullptr, &current);
      if (!registry.is_chained[at] || !is_ours(current)) continue;
      ::sigaction(caught_signals[at], registry.previous[at].load(), nullptr);
      registry.is_chained[at] = false;
    }
  }

  Descriptor reader_;
  Descriptor writer_;
  std::size_t slot_ = 0;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
