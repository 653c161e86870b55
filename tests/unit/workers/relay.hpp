// SPDX-License-Identifier: MIT
// What sits on the network between two ends: passes on what they say, keeps all of it, and cuts or alters it if told
// to.
#pragma once

#include "network_support.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace network_test {

/// Passes bytes both ways on a thread of its own: between a pair of sockets that the ends are given, or from whoever
/// connects to its port to another port of this host.
class Relay {
 public:
  struct Faults {
    std::size_t cuts_after = std::size_t(-1);   ///< so many bytes of the second end: both connections then end
    std::size_t alters_byte = std::size_t(-1);  ///< of the second end, counted from 0
  };

  /// From whoever connects, the first end, to the port.
  explicit Relay(int port) : Relay(port, Faults{}) {}
  Relay(int port, Faults faults) : port_(port), faults_(faults), listening_(ry::detail::listen_at("127.0.0.1", 0)) {
    thread_ = std::thread{[this] { run(); }};
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  ~Relay() {
    is_ending_ = true;
    wake_.ring();
    thread_.join();
  }

  [[nodiscard]] int port() const { return ry::detail::SocketAddress::of_self(listening_.fd()).port(); }
  /// Has anybody said this so far, as it stands there?
  [[nodiscard]] bool has_heard(std::string_view words) const {
    const std::lock_guard lock{mutex_};
    return heard_[0].find(words) != std::string::npos || heard_[1].find(words) != std::string::npos;
  }
  [[nodiscard]] std::size_t num_bytes() const {
    const std::lock_guard lock{mutex_};
    return heard_[0].size() + heard_[1].size();
  }
  [[nodiscard]] std::string heard(std::size_t end) const {
    const std::lock_guard lock{mutex_};
    return heard_[end];
  }

 private:
  struct Pair {
    std::array<Socket, 2> ends{};
  };

  void run() {
    while (!is_ending_) {
      std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}, {listening_.fd(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        for (const Socket& end : pair.ends) polled.push_back({end.fd(), POLLIN, 0});
      }
      ::poll(polled.data(), polled.size(), -1);
      pairs_.remove_if([this](const Pair& pair) { return !pass(pair, 0) || !pass(pair, 1); });
      const int fd = ::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) continue;
      std::string cause;
      Pair pair{{Socket{ry::detail::Descriptor{fd}}, ry::detail::try_connect("127.0.0.1", port_, soon(), cause)}};
      if (pair.ends[1].is_open()) pairs_.push_back(std::move(pair));
    }
  }

  // Returns false once the connection is over.
  bool pass(const Pair& pair, std::size_t from) {
    std::array<std::byte, 65536> bytes;
    const ssize_t got = pair.ends[from].receive(bytes);
    if (got < 0) return errno == EAGAIN;
    auto words = std::span{bytes}.first(static_cast<std::size_t>(got));
    std::size_t before = 0;
    {
      const std::lock_guard lock{mutex_};
      before = heard_[from].size();
      heard_[from] += text(words);
    }
    bool goes_on = got > 0;
    if (from == 1 && faults_.alters_byte - before < words.size()) words[faults_.alters_byte - before] ^= std::byte{1};
    if (from == 1 && before + words.size() > faults_.cuts_after) {
      words = words.first(faults_.cuts_after - std::min(before, faults_.cuts_after));
      goes_on = false;
    }
    return send_raw(pair.ends[1 - from], words) && goes_on;
  }

  int port_;
  Faults faults_;
  Socket listening_;
  ry::detail::Event wake_{};
  std::atomic<bool> is_ending_{false};
  std::list<Pair> pairs_{};
  mutable std::mutex mutex_{};
  std::array<std::string, 2> heard_{};
  std::thread thread_{};
};

}  // namespace network_test
