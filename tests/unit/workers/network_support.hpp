// SPDX-License-Identifier: MIT
// What the tests of connections share: a listener whose words are kept, ends of a connection without a handshake, and
// a client that sends whatever bytes it likes.
#pragma once

#include "railyard/workers/detail/listener.hpp"
#include "railyard/workers/detail/network_store.hpp"

#include "support.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace network_test {

namespace ry = railyard;
using namespace std::chrono_literals;
using ry::detail::Hmac;
using ry::detail::Listener;
using ry::detail::NetworkStore;
using ry::detail::SecureConnection;
using ry::detail::Socket;
using workers_test::soon;

inline std::span<const std::byte> bytes(std::string_view text) { return ry::detail::text_bytes(text); }
inline std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline Hmac run_secret() { return Hmac{bytes("the secret of the tests' run")}; }
inline Hmac other_secret() { return Hmac{bytes("the secret of another run")}; }

/// Keeps lines, and waits for one that contains a text.
class Lines {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock{mutex_};
    lines_.push_back(line);
    changed_.notify_all();
  }
  bool await(std::string_view part) {
    std::unique_lock lock{mutex_};
    return changed_.wait_until(lock, soon().time(), [&] { return contains(part); });
  }
  std::string all() const {
    const std::lock_guard lock{mutex_};
    return ry::detail::joined(lines_, "\n");
  }

 private:
  bool contains(std::string_view part) const {
    return std::any_of(lines_.begin(), lines_.end(),
                       [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  std::vector<std::string> lines_{};
};

/// Is a listener of the job "job" at generation 7, and what it says of those it refuses.
class Leader {
 public:
  explicit Leader(ry::detail::ListenerOptions options = {})
      : limits_(options.limits), listener_(complete(std::move(options)), run_secret()) {}

  Listener& operator*() { return listener_; }
  Listener* operator->() { return &listener_; }
  Lines& refusals() { return refusals_; }

  SecureConnection connect(ry::detail::Hello hello = {}) const { return connect(std::move(hello), run_secret()); }
  SecureConnection connect(ry::detail::Hello hello, const Hmac& secret) const {
    hello.job = hello.job.empty() ? "job" : hello.job;
    if (hello.kind == ry::detail::HelloKind::agent && hello.generation == 0) hello.generation = 7;
    return SecureConnection::connect(listener_.host(), listener_.port(), secret, hello, soon(), limits_);
  }
  std::unique_ptr<NetworkStore> store(int rank, std::uint32_t generation = 0,
                                      const std::optional<ry::detail::Ticket>& ticket = {}) const {
    return std::make_unique<NetworkStore>(ry::detail::NetworkStorePlace{.host = listener_.host(),
                                                                        .port = listener_.port(),
                                                                        .job = "job",
                                                                        .generation = generation,
                                                                        .rank = rank,
                                                                        .limits = limits_,
                                                                        .ticket = ticket},
                                          run_secret());
  }
  [[nodiscard]] const ry::detail::Ticket& ticket() const { return listener_.ticket(); }
  /// Connects, and says nothing yet.
  Socket stranger() const {
    std::string cause;
    Socket socket = ry::detail::try_connect(listener_.host(), listener_.port(), soon(), cause);
    if (!socket.is_open()) throw std::runtime_error{cause};
    return socket;
  }

 private:
  ry::detail::ListenerOptions complete(ry::detail::ListenerOptions options) {
    if (options.host.empty()) options.host = "127.0.0.1";
    options.job = "job";
    options.generation = 7;
    options.on_refusal = [this](const std::string& line) { refusals_.add(line); };
    return options;
  }

  ry::detail::ConnectionLimits limits_;  // of those who connect as well
  Lines refusals_{};
  Listener listener_;
};

/// Makes the two ends of a connection that has been through its handshake.
inline std::pair<SecureConnection, SecureConnection> secure_pair(const ry::detail::ConnectionLimits& limits = {}) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error{"socketpair"};
  const Hmac there = run_secret();
  const Hmac back = other_secret();
  return {SecureConnection{Socket{ry::detail::Descriptor{ends[0]}}, {there, back}, "the leader", limits},
          SecureConnection{Socket{ry::detail::Descriptor{ends[1]}}, {back, there}, "process 3", limits}};
}

/// Sends all the bytes. Returns false if the other end has hung up.
inline bool send_raw(const Socket& socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN || !ry::detail::wait_for(socket.fd(), POLLOUT, soon())) {
      return false;
    }
  }
  return true;
}

/// Reads so many bytes, or what comes before the other end hangs up.
inline std::vector<std::byte> read_raw(const Socket& socket, std::size_t count) {
  std::vector<std::byte> all;
  std::byte one{};
  while (all.size() < count) {
    const ssize_t got = ::recv(socket.fd(), &one, 1, MSG_DONTWAIT);
    if (got > 0) {
      all.push_back(one);
    } else if (got == 0 || errno != EAGAIN || !ry::detail::wait_for(socket.fd(), POLLIN, soon())) {
      break;
    }
  }
  return all;
}
/// Waits until the other end hangs up. False if it says something, or nothing for long.
inline bool is_hung_up(const Socket& socket) {
  std::byte one{};
  while (true) {
    const ssize_t got = ::recv(socket.fd(), &one, 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got > 0 || errno != EAGAIN || !ry::detail::wait_for(socket.fd(), POLLIN, soon())) return false;
  }
}

/// Is a client's side of the handshake, put together by hand.
struct HandMadeHello {
  ry::detail::Opening client = ry::detail::Opening::make();
  ry::detail::Opening server{};
  std::vector<std::byte> hello =
      ry::detail::encode_hello({.job = "job", .generation = 7, .process = 1, .payload = "payload"});

  std::vector<std::byte> proof(const Hmac& secret) const {
    const auto digest = ry::detail::Transcript{client, server, hello}.client_proof(secret);
    return {digest.begin(), digest.end()};
  }
  /// The third message: the hello and its proof.
  std::vector<std::byte> message(const Hmac& secret) const {
    ry::detail::WireWriter writer;
    writer.put(static_cast<std::uint32_t>(hello.size()));
    writer.put_rest(hello);
    writer.put_rest(proof(secret));
    return writer.bytes();
  }
  /// The listener's answer to a hello, its head and its code: 61 bytes of welcome.
  static constexpr std::size_t welcome_bytes =
      sizeof(ry::detail::Ticket) + ry::detail::frame_head_bytes + ry::detail::frame_code_bytes;
  void take_opening(std::span<const std::byte> opening) {
    if (opening.size() != sizeof server) throw std::runtime_error{"the listener has not answered"};
    std::memcpy(&server, opening.data(), sizeof server);
  }
};

}  // namespace network_test
