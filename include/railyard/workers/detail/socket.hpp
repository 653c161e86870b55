// SPDX-License-Identifier: MIT
// Sockets of TCP that listen and connect, over IPv4 and IPv6, and what the other end's address reads like. Workers
// room.
#pragma once

#include "railyard/workers/detail/tls.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Says that a connection cannot be had, or is lost.
class ConnectionError : public Error {
 public:
  enum class Cause : std::uint8_t {
    failed,   ///< it was never made, the network or the other host is gone, or what came was damaged
    closed,   ///< the other end has closed it
    refused,  ///< the other end does not want it, and has said why
  };
  ConnectionError(Cause cause, const std::string& message) : Error(message), cause_(cause) {}
  [[nodiscard]] Cause cause() const noexcept { return cause_; }

 private:
  Cause cause_;
};

/// Owns a connected or listening socket, and the TLS of what goes through it, if there is any. In the end it is shut
/// down before it is closed, so that the other end hears of it even if a forked process still holds it.
class Socket {
 public:
  Socket() = default;
  explicit Socket(Descriptor descriptor) noexcept : descriptor_(std::move(descriptor)) {}
  Socket(Socket&&) noexcept = default;
  Socket& operator=(Socket&& other) noexcept {
    close();
    descriptor_ = std::move(other.descriptor_);
    tls_ = std::move(other.tls_);
    return *this;
  }
  ~Socket() { close(); }

  [[nodiscard]] int fd() const noexcept { return descriptor_.get(); }
  [[nodiscard]] bool is_open() const noexcept { return descriptor_.is_open(); }

  /// Send and take what goes at once, as ::send() and ::recv() do: -1 and errno if nothing does.
  [[nodiscard]] ssize_t send(std::span<const std::byte> bytes) const noexcept {
    if (tls_) return tls_->send(bytes);
    return ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  [[nodiscard]] ssize_t receive(std::span<std::byte> bytes) const noexcept {
    if (tls_) return tls_->receive(bytes);
    return ::recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  }

  /// From now on all goes by TLS. Nothing does before shake_hands() has returned that it is ready.
  void encrypt(TlsRole role, const Digest& key, std::uint64_t bytes_per_key = TlsSession::default_bytes_per_key) {
    tls_ = std::make_unique<TlsSession>(fd(), role, key, bytes_per_key);
  }
  [[nodiscard]] bool is_encrypted() const noexcept { return tls_ != nullptr; }
  [[nodiscard]] TlsSession::State shake_hands() const noexcept {
    return tls_ ? tls_->shake_hands() : TlsSession::State::ready;
  }
  /// What to wait for before the next shake_hands(), as poll() has it.
  [[nodiscard]] short shaking_events() const noexcept { return tls_ ? tls_->events() : short{0}; }
  /// Why the handshake has failed.
  [[nodiscard]] std::string shaking_trouble() const { return tls_ ? std::string{tls_->trouble()} : std::string{}; }
  /// Has the other end gone, without a word of why?
  [[nodiscard]] bool has_ended() const noexcept { return tls_ && tls_->has_ended(); }
  /// Is there something to receive that poll() does not show?
  [[nodiscard]] bool has_received() const noexcept { return tls_ && tls_->has_received(); }
  /// Explains what send() or receive() has left in errno.
  [[nodiscard]] std::string explain(int error) const {
    if (error == EBADMSG && tls_) return compose("it was altered on its way (TLS: {})", tls_->trouble());
    return std::generic_category().message(error);
  }

  void close() noexcept {
    if (descriptor_.is_open()) ::shutdown(descriptor_.get(), SHUT_RDWR);
    descriptor_.reset();
    tls_.reset();
  }
  /// In a process that has just been forked: lets go of it; the other process's connection stays.
  void forget_in_child() noexcept {
    descriptor_.reset();
    tls_.reset();
  }

 private:
  Descriptor descriptor_{};
  std::unique_ptr<TlsSession> tls_{};
};

/// Waits until the descriptor can be read from or written to (POLLIN, POLLOUT), or would say what is wrong with it.
/// Returns false at the deadline.
[[nodiscard]] inline bool wait_for(int fd, short events, const Deadline& deadline) noexcept {
  pollfd one{.fd = fd, .events = events, .revents = 0};
  while (true) {
    const timespec time = to_timespec(deadline.remaining());
    const int ready = ::ppoll(&one, 1, &time, nullptr);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
    if (deadline.expired()) return false;
  }
}

/// "10.0.0.7:5000", "[fe80::1%eth0]:5000".
[[nodiscard]] inline std::string address_text(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? compose("{}:{}", host, port) : compose("[{}]:{}", host, port);
}

/// Is the address of one end, as sockets have it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }

  /// Whom the socket is connected to; family AF_UNSPEC if to nobody any more.
  [[nodiscard]] static SocketAddress of_peer(int fd) noexcept {
    SocketAddress address;
    if (::getpeername(fd, address.get(), &address.size) != 0) address = {};
    return address;
  }
  [[nodiscard]] static SocketAddress of_self(int fd) noexcept {
    SocketAddress address;
    if (::getsockname(fd, address.get(), &address.size) != 0) address = {};
    return address;
  }

  /// Numeric: "10.0.0.7", "fe80::1%eth0". Empty for what is no address of the internet.
  [[nodiscard]] std::string host() const {
    char text[NI_MAXHOST] = {};
    if (!is_internet() || ::getnameinfo(get(), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return {};
    constexpr std::string_view mapped = "::ffff:";  // an address of IPv4, seen through a socket that takes both
    const std::string_view host{text};
    const bool is_mapped = host.starts_with(mapped) && host.find('.') != std::string_view::npos;
    return std::string{is_mapped ? host.substr(mapped.size()) : host};
  }
  [[nodiscard]] int port() const noexcept {
    if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
    if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
    return 0;
  }
  /// Host and port, as address_text() has them.
  [[nodiscard]] std::string text() const {
    const std::string name = host();
    return name.empty() ? "a socket of this host" : address_text(name, port());
  }
  friend bool operator==(const SocketAddress& one, const SocketAddress& other) noexcept {
    return one.size == other.size && std::memcmp(&one.storage, &other.storage, one.size) == 0;
  }

 private:
  [[nodiscard]] bool is_internet() const noexcept {
    return storage.ss_family == AF_INET || storage.ss_family == AF_INET6;
  }
};

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// Returns the addresses of a host; empty, with status set as getaddrinfo has it, if there are none. An empty host
/// means any address of this one, for a socket that listens.
[[nodiscard]] inline AddressList resolve(const std::string& host, int port, int& status) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  status = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  return {status == 0 ? found : nullptr, ::freeaddrinfo};
}

template <class T>
bool set_option(int fd, int level, int option, T value) noexcept {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

/// Sends small messages at once, and notices within the given time that the other host is lost: it sends no goodbye.
/// Does nothing to a socket that is not TCP's.
inline void tune_connection(int fd, std::chrono::milliseconds lost_after) noexcept {
  const auto third_s = static_cast<int>(std::max<std::int64_t>(lost_after.count() / 3000, 1));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, third_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, third_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(lost_after.count()));
}

/// Whether an error of a socket, as errno has it, says that the other end has closed the connection.
[[nodiscard]] inline bool is_closed_by_peer(int error) noexcept { return error == ECONNRESET || error == EPIPE; }

// Tries the host's addresses one after the other. ready: returns 0 once the bound socket is as it is to be.
template <class Ready>
[[nodiscard]] Socket bind_at(const std::string& host, int port, const Ready& ready) {
  int status = 0;
  const AddressList addresses = resolve(host, port, status);
  if (addresses == nullptr) {
    throw ConfigError{compose(R"(listening at "{}" port {}: this is no name or address that is known here ({}))", host,
                              port, ::gai_strerror(status))};
  }
  int error = 0;
  // Of "any", the socket of IPv6 takes both kinds, unless the system has none.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family != family) continue;
      const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) {
        error = errno;
        continue;
      }
      Socket socket{adopt(fd, "a socket to listen on")};
      set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (family == AF_INET6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, host.empty() ? 0 : 1);
      if (::bind(socket.fd(), entry->ai_addr, entry->ai_addrlen) == 0 && ready(socket.fd()) == 0) return socket;
      error = errno;
    }
  }
  throw_system(compose(R"(listening at "{}" port {}: take another port, or 0 to let the kernel choose)", host, port),
               error);
}

/// Listens at an address of this host; an empty host means any. Port 0 lets the kernel choose.
/// Throws: ConfigError if the host is not known here; Error if it cannot be listened on.
[[nodiscard]] inline Socket listen_at(const std::string& host, int port) {
  return bind_at(host, port, [](int fd) { return ::listen(fd, SOMAXCONN); });
}

/// Takes a port of this host and does not listen on it: who calls listen_at() for it later finds it free, and the
/// kernel gives it to nobody else. Throws: Error if there is none.
[[nodiscard]] inline Socket reserve_port() {
  return bind_at("", 0, [](int) { return 0; });
}

// Returns 0 or what went wrong with a connect() that did not wait, as errno has it.
[[nodiscard]] inline int connect_outcome(const Socket& socket) noexcept {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  if (error != 0) return error;
  // Where nobody listens on a port that the kernel gives out, a socket may connect to itself.
  return SocketAddress::of_self(socket.fd()) == SocketAddress::of_peer(socket.fd()) ? ECONNREFUSED : 0;
}

// Returns 0 or what went wrong, as errno has it.
[[nodiscard]] inline int finish_connect(const Socket& socket, const sockaddr* address, socklen_t size,
                                        const Deadline& deadline) {
  if (::connect(socket.fd(), address, size) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_for(socket.fd(), POLLOUT, deadline)) return ETIMEDOUT;
  }
  return connect_outcome(socket);
}

/// Tries each address of the host once. Returns a socket that is not open if none answers, and says why in `cause`.
[[nodiscard]] inline Socket try_connect(const std::string& host, int port, const Deadline& deadline,
                                        std::string& cause) {
  using namespace std::chrono_literals;
  int status = 0;
  const AddressList addresses = resolve(host, port, status);
  cause = addresses == nullptr ? compose("its name is not known here: {}", ::gai_strerror(status)) : std::string{};
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    const int fd = ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = errno;
    if (fd >= 0) {
      Socket socket{adopt(fd, "a socket to connect with")};
      constexpr std::chrono::nanoseconds slice = 3s;  // the next address may be the one that is routed
      error = finish_connect(socket, entry->ai_addr, entry->ai_addrlen,
                             deadline.remaining() < slice ? deadline : Deadline::after(slice));
      if (error == 0) return socket;
    }
    SocketAddress tried{.size = entry->ai_addrlen};
    std::memcpy(&tried.storage, entry->ai_addr, entry->ai_addrlen);
    cause += compose("{}{}: {}", cause.empty() ? "" : ", ", tried.text(), std::generic_category().message(error));
  }
  return {};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
