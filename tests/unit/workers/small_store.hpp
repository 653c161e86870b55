// SPDX-License-Identifier: MIT
// A small server that speaks the protocol of the store of torchrun's agents as LibTorch's does.
#pragma once

#include "railyard/workers/detail/socket.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace network_test {

namespace ry = railyard;
using ry::detail::Socket;

/// Serves set, get, add and wait to any number of clients, one thread for each.
class SmallStore {
 public:
  SmallStore() : listener_(ry::detail::listen_at("127.0.0.1", 0)) {
    acceptor_ = std::thread{[this] { accept_all(); }};
  }
  ~SmallStore() {
    ::shutdown(listener_.fd(), SHUT_RDWR);
    acceptor_.join();
    for (auto& socket : sockets_) ::shutdown(socket.fd(), SHUT_RDWR);
    {
      const std::lock_guard lock{mutex_};
      is_over_ = true;
    }
    changed_.notify_all();
    for (auto& server : servers_) server.join();
  }

  [[nodiscard]] int port() const { return ry::detail::SocketAddress::of_self(listener_.fd()).port(); }
  [[nodiscard]] std::map<std::string, std::string> values() {
    const std::lock_guard lock{mutex_};
    return values_;
  }
  void put(const std::string& key, const std::string& value) {
    const std::lock_guard lock{mutex_};
    values_[key] = value;
    changed_.notify_all();
  }

 private:
  void accept_all() {
    while (true) {
      pollfd one{.fd = listener_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&one, 1, -1);
      const int fd = ::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      sockets_.emplace_back(ry::detail::Descriptor{fd});
      servers_.emplace_back([this, fd] { serve(fd); });
    }
  }
  std::int64_t add(const std::string& key, std::int64_t amount) {
    const std::lock_guard lock{mutex_};
    std::string& value = values_[key];
    const std::int64_t number = (value.empty() ? 0 : std::stoll(value)) + amount;
    value = std::to_string(number);
    changed_.notify_all();
    return number;
  }
  template <class T>
  static T take(int fd) {
    T value{};
    if (::recv(fd, &value, sizeof value, MSG_WAITALL) != static_cast<ssize_t>(sizeof value)) throw ry::Error{"over"};
    return value;
  }
  static std::string take_text(int fd) {
    std::string text(take<std::uint64_t>(fd), '\0');
    if (!text.empty() && ::recv(fd, text.data(), text.size(), MSG_WAITALL) != static_cast<ssize_t>(text.size())) {
      throw ry::Error{"over"};
    }
    return text;
  }
  template <class T>
  static void give(int fd, T value) {
    ::send(fd, &value, sizeof value, MSG_NOSIGNAL);
  }
  void serve(int fd) try {
    if (take<std::uint8_t>(fd) != 0 || take<std::uint32_t>(fd) != 0x3C85F7CE) return;
    while (true) {
      const auto query = take<std::uint8_t>(fd);
      if (query == 6 && take<std::uint64_t>(fd) != 1) return;
      const std::string key = take_text(fd);
      if (query == 1) {
        put(key, take_text(fd));
        continue;
      }
      if (query == 4) {
        give(fd, add(key, take<std::int64_t>(fd)));
        continue;
      }
      std::unique_lock lock{mutex_};
      if (query == 6) changed_.wait(lock, [&] { return is_over_ || values_.count(key) > 0; });
      if (is_over_) return;
      if (query == 6) {
        give(fd, std::uint8_t{0});
      } else {
        give(fd, std::uint64_t{values_[key].size()});
        ::send(fd, values_[key].data(), values_[key].size(), MSG_NOSIGNAL);
      }
    }
  } catch (const ry::Error&) {
  }

  Socket listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  bool is_over_ = false;
  std::vector<Socket> sockets_;
  std::vector<std::thread> servers_;
  std::thread acceptor_;
};

}  // namespace network_test
