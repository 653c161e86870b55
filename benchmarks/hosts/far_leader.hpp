// SPDX-License-Identifier: MIT
// A network between a leader and those who connect to it, on which everything takes its time.
#pragma once

#include <railyard/core/deadline.hpp>
#include <railyard/workers/detail/event.hpp>
#include <railyard/workers/detail/socket.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

namespace bench {

/// Passes on what is sent to its port to another port of this host, and back, each time after a delay. A connection
/// takes a round trip more before anything goes over it, as TCP's own would.
class FarLeader {
 public:
  using Clock = std::chrono::steady_clock;

  FarLeader(int port, std::chrono::milliseconds one_way)
      : port_(port), one_way_(one_way), listening_(railyard::detail::listen_at("127.0.0.1", 0)) {
    thread_ = std::thread{[this] { run(); }};
  }
  FarLeader(const FarLeader&) = delete;
  FarLeader& operator=(const FarLeader&) = delete;
  ~FarLeader() {
    is_ending_ = true;
    wake_.ring();
    thread_.join();
  }

  [[nodiscard]] int port() const { return railyard::detail::SocketAddress::of_self(listening_.fd()).port(); }

 private:
  using Socket = railyard::detail::Socket;
  struct Piece {
    Clock::time_point due{};
    std::vector<std::byte> bytes{};  // none: the end
  };
  struct Pair {
    std::array<Socket, 2> ends{};
    std::array<std::deque<Piece>, 2> under_way{};  // by the end that has sent it
    std::array<bool, 2> has_ended{};
    Clock::time_point since{};
  };

  void run() {
    while (!is_ending_) {
      std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listening_.fd(), POLLIN, 0}};
      auto next = Clock::now() + std::chrono::seconds{10};
      for (const Pair& pair : pairs_) {
        for (const std::size_t end : {0U, 1U}) {
          if (!pair.has_ended[end]) polled.push_back({pair.ends[end].fd(), POLLIN, 0});
          if (!pair.under_way[end].empty()) next = std::min(next, pair.under_way[end].front().due);
        }
      }
      const timespec time = railyard::detail::to_timespec(std::max(next - Clock::now(), Clock::duration{0}));
      ::ppoll(polled.data(), polled.size(), &time, nullptr);
      take_in();
      pairs_.remove_if([this](Pair& pair) { return !pass(pair, 0) || !pass(pair, 1); });
    }
  }

  void take_in() {
    while (true) {
      const int fd = ::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      std::string cause;
      Pair pair;
      pair.since = Clock::now();
      pair.ends[0] = Socket{railyard::detail::Descriptor{fd}};
      const auto soon = railyard::Deadline::after(std::chrono::seconds{10});
      while (!pair.ends[1].is_open() && !soon.expired()) {  // it may not listen yet
        pair.ends[1] = railyard::detail::try_connect("127.0.0.1", port_, soon, cause);
        if (!pair.ends[1].is_open()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
      }
      if (pair.ends[1].is_open()) pairs_.push_back(std::move(pair));
    }
  }

  // Returns false once the connection is over.
  [[nodiscard]] bool pass(Pair& pair, std::size_t from) const {
    std::array<std::byte, 65536> bytes;
    while (!pair.has_ended[from]) {
      const ssize_t got = pair.ends[from].receive(bytes);
      if (got < 0) break;
      const auto count = static_cast<std::size_t>(got);
      pair.has_ended[from] = count == 0;
      const auto due = std::max(Clock::now(), pair.since + 2 * one_way_) + one_way_;
      pair.under_way[from].push_back({due, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count)}});
    }
    std::deque<Piece>& pieces = pair.under_way[from];
    while (!pieces.empty() && pieces.front().due <= Clock::now()) {
      if (pieces.front().bytes.empty()) return false;
      // What there is is little: a socket has room for it.
      if (pair.ends[1 - from].send(pieces.front().bytes) != static_cast<ssize_t>(pieces.front().bytes.size())) {
        return false;
      }
      pieces.pop_front();
    }
    return true;
  }

  int port_;
  std::chrono::milliseconds one_way_;
  Socket listening_;
  railyard::detail::Event wake_{};
  std::atomic<bool> is_ending_{false};
  std::list<Pair> pairs_{};
  std::thread thread_{};
};

}  // namespace bench
