// SPDX-License-Identifier: MIT
// Against a small server that speaks the protocol as LibTorch's does; tests/launch/torchrun.sh asks the real one.
#include "railyard/workers/detail/torch_store.hpp"

#include "railyard/workers/detail/bulletin.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

using namespace workers_test;
using ry::detail::Socket;
using ry::detail::TorchStore;

namespace {

// Serves set, get and wait to any number of clients, one thread for each.
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

// Accepts one client and answers with these bytes whatever it asks.
std::string error_of_answer(const std::string& bytes, bool closes) {
  Socket listener = ry::detail::listen_at("127.0.0.1", 0);
  const int port = ry::detail::SocketAddress::of_self(listener.fd()).port();
  TorchStore store{"127.0.0.1", port, "p", soon()};
  const Socket server{ry::detail::Descriptor{::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC)}};
  ::send(server.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (closes) ::shutdown(server.fd(), SHUT_WR);
  try {
    return store.get("key", ry::Deadline::after(200ms)) ? "a value" : "nothing";
  } catch (const ry::Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("TorchStore: hands a value from one process to another, under LibTorch's names of keys") {
  SmallStore server;
  TorchStore one{"127.0.0.1", server.port(), "/worker/attempt_1", soon()};
  TorchStore other{"127.0.0.1", server.port(), "/worker/attempt_1", soon()};
  CHECK_FALSE(other.get("key", ry::Deadline::after(10ms)));
  one.set("key", "value", soon());
  CHECK(other.get("key", soon()) == "value");  // the wait of before still stands
  CHECK(other.get("key", soon()) == "value");
  one.set("key", "", soon());
  CHECK(other.get("key", soon()) == "");
  CHECK(server.values().count("//worker/attempt_1/key") == 1);
  TorchStore of_another_attempt{"127.0.0.1", server.port(), "/worker/attempt_2", soon()};
  CHECK_FALSE(of_another_attempt.get("key", ry::Deadline::after(10ms)));
}

TEST_CASE("TorchStore: says which store does not answer, and waits for one that is late") {
  Socket free_port = ry::detail::listen_at("127.0.0.1", 0);
  const int port = ry::detail::SocketAddress::of_self(free_port.fd()).port();
  free_port.close();
  CHECK_THROWS_WITH((TorchStore{"127.0.0.1", port, "p", ry::Deadline::after(150ms)}),
                    ContainsSubstring("127.0.0.1:" + std::to_string(port)) && ContainsSubstring("150 ms"));
}

TEST_CASE("TorchStore: does not believe answers that make no sense") {
  using namespace std::string_literals;
  CHECK(error_of_answer("", false) == "nothing");
  CHECK_THAT(error_of_answer("", true), ContainsSubstring("closed the connection"));
  CHECK_THAT(error_of_answer("\1"s, false), ContainsSubstring("broken off"));
  CHECK_THAT(error_of_answer("\0\xff\xff\xff\xff\xff\xff\xff\x7f"s, false), ContainsSubstring("at most 4096"));
  CHECK_THAT(error_of_answer("\0\5\0\0\0\0\0\0\0abc"s, true), ContainsSubstring("closed the connection"));
  CHECK(error_of_answer("\0\3\0\0\0\0\0\0\0abc"s, false) == "a value");
}

TEST_CASE("TorchBulletin: hands on an address, but never the secret") {
  SmallStore server;
  const ry::detail::Launch launch{.leader_host = "127.0.0.1", .leader_port = server.port(), .torch_store_prefix = "/a"};
  ry::detail::TorchBulletin leader{launch, {"process 0 of 2", {}}};
  ry::detail::TorchBulletin other{launch, {"process 1 of 2", {}}};
  CHECK_THROWS_WITH(other.read(ry::Deadline::after(20ms), nullptr), ContainsSubstring("torchrun's store at 127.0.0.1"));
  const std::string secret = ry::detail::random_secret();
  leader.post({.host = "10.0.0.1", .port = 4000, .generation = 1, .secret = secret});
  const auto first = other.read(soon(), nullptr);
  CHECK(first.host == "10.0.0.1");
  CHECK(first.port == 4000);
  CHECK(first.secret.empty());
  for (const auto& [key, value] : server.values()) CHECK(value.find(secret) == std::string::npos);
  CHECK_THROWS_AS(other.read(ry::Deadline::after(20ms), &first), ry::Error);
  leader.post({.host = "10.0.0.1", .port = 4000, .generation = 2});
  CHECK(other.read(soon(), &first).generation == 2);
  CHECK_FALSE(leader.carries_secret());
}
