// SPDX-License-Identifier: MIT
// A connection of two processes that have proven to each other that they know the run's secret. Workers room.
#pragma once

#include "railyard/workers/detail/frames.hpp"
#include "railyard/workers/detail/hello.hpp"
#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Bounds what a connection takes, and says how it goes.
struct ConnectionLimits {
  std::size_t max_frame_bytes = std::size_t{1} << 30U;
  std::chrono::milliseconds lost_after{15'000};  ///< how long the other host may leave what it got unacknowledged
  bool has_tls = false;                          ///< all that is said of the run goes by TLS
};

/// Sends and receives frames. One thread at a time may use it. Every frame carries a code of 16 bytes that covers its
/// content and its number; what is sent can not be altered on its way, and be read only where there is no TLS. What
/// goes wrong with the connection is a ConnectionError that names the peer; after that it is of no use any more.
class SecureConnection {
 public:
  /// Takes over a socket whose two ends have proven themselves. peer: what errors call the other end.
  SecureConnection(Socket socket, SessionKeys keys, std::string peer, const ConnectionLimits& limits)
      : socket_(std::move(socket)),
        writer_(std::move(keys.outgoing), limits.max_frame_bytes),
        reader_(std::move(keys.incoming), limits.max_frame_bytes),
        peer_(std::move(peer)),
        lost_after_(limits.lost_after) {
    tune_connection(socket_.fd(), limits.lost_after);
  }

  /// Connects to a listener; tries again until somebody listens there. Cost: two round trips after TCP's own; none with
  /// a ticket: then the first frame to come is the listener's answer, a welcome or a refusal. TLS costs one more.
  /// Throws: ConnectionError, whose cause is `refused` if the listener knows this process but does not want it;
  /// ConfigError if it never will, as it is set.
  [[nodiscard]] static SecureConnection connect(const std::string& host, int port, const Hmac& secret,
                                                const Hello& hello, const Deadline& deadline,
                                                const ConnectionLimits& limits = {},
                                                const std::optional<Ticket>& ticket = std::nullopt);

  /// Shows what has come, but for what has_received() tells of.
  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  /// Is there something to receive that poll() does not show? Not once try_receive() has returned nothing.
  [[nodiscard]] bool has_received() const noexcept { return socket_.has_received(); }
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  /// Has the other end gone, or is the network to it lost? What it has sent before may still be received.
  [[nodiscard]] bool is_gone() const noexcept {
    pollfd one{.fd = fd(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }
  /// How many bytes have come that nobody has asked for, as far as the system tells.
  [[nodiscard]] std::size_t num_unread() const noexcept {
    int count = 0;
    return ::ioctl(fd(), FIONREAD, &count) == 0 && count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  /// What the listener has given to this process, for further connections; only where connect() has waited for it.
  [[nodiscard]] const std::optional<Ticket>& ticket() const noexcept { return ticket_; }

  /// Queues a message, whose payload is the pieces one after the other, without waiting; flush() sends it.
  void post(std::uint8_t type, std::initializer_list<ConstBytes> pieces) { writer_.put(type, pieces); }
  [[nodiscard]] std::size_t unsent_bytes() const noexcept { return writer_.unsent().size(); }

  /// Sends what the network takes at once. Returns true if nothing is left.
  bool flush() {
    while (!writer_.unsent().empty()) {
      const ssize_t sent = socket_.send(writer_.unsent());
      if (sent >= 0) {
        writer_.mark_sent(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return false;
      } else if (errno != EINTR) {
        throw_lost("sending", errno);
      }
    }
    return true;
  }

  /// Waits until the network has taken all that is queued. Throws: as flush(), and if that does not happen in time.
  void flush(const Deadline& deadline) {
    while (!flush()) {
      if (wait_for(fd(), POLLOUT, deadline)) continue;
      throw ConnectionError{ConnectionError::Cause::failed,
                            compose("{} has not taken {} bytes in {}: it is stopped or busy, or the network is too "
                                    "slow for them",
                                    peer_, unsent_bytes(), deadline.budget_text())};
    }
  }

  /// Sends a message, and waits until the network has taken it.
  void send(std::uint8_t type, std::initializer_list<ConstBytes> pieces, const Deadline& deadline) {
    post(type, pieces);
    flush(deadline);
  }

  /// Returns a message if one is complete, without waiting.
  [[nodiscard]] std::optional<Frame> try_receive() {
    while (true) {
      const ssize_t got = socket_.receive(reader_.room());
      if (got > 0) {
        if (auto frame = take(static_cast<std::size_t>(got))) return frame;
      } else if (got == 0) {
        throw ConnectionError{
            ConnectionError::Cause::closed,
            compose("{} has closed the connection{}", peer_, reader_.is_inside() ? " in the middle of a message" : "")};
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return std::nullopt;
      } else if (errno != EINTR) {
        throw_lost("receiving", errno);
      }
    }
  }

  /// Waits for a message, and sends meanwhile what is queued. Returns nothing at the deadline.
  [[nodiscard]] std::optional<Frame> receive(const Deadline& deadline) {
    while (true) {
      const bool all_sent = flush();
      if (auto frame = try_receive()) return frame;
      const short events = all_sent ? POLLIN : POLLIN | POLLOUT;
      if (!wait_for(fd(), events, deadline)) return std::nullopt;
    }
  }

  /// Ends it: the other end sees that it was closed, after all that was sent.
  void close() noexcept { socket_.close(); }
  /// In a process that has just been forked: lets go of it; the other process's connection stays.
  void forget_in_child() noexcept { socket_.forget_in_child(); }

 private:
  friend class Connector;

  [[nodiscard]] std::optional<Frame> take(std::size_t num_bytes) {
    try {
      return reader_.take(num_bytes);
    } catch (const DataError& error) {
      throw ConnectionError{ConnectionError::Cause::failed, compose("{}: {}", peer_, error.what())};
    }
  }

  [[noreturn]] void throw_lost(std::string_view doing, int error) const {
    if (is_closed_by_peer(error)) {
      throw ConnectionError{ConnectionError::Cause::closed,
                            compose("{} has ended while this process was {}", peer_, doing)};
    }
    const bool is_lost = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    throw ConnectionError{
        ConnectionError::Cause::failed,
        is_lost ? compose("{} has not answered for {} s: its host, or the network between, is down ({})", peer_,
                          static_cast<double>(lost_after_.count()) / 1000.0, std::generic_category().message(error))
                : compose("{}: {} failed: {}", peer_, doing, socket_.explain(error))};
  }

  Socket socket_;
  FrameWriter writer_;
  FrameReader reader_;
  std::string peer_;
  std::chrono::milliseconds lost_after_;
  std::optional<Ticket> ticket_{};
};

/// Is the connecting side of a handshake: tries until it has gone through all of it, or was turned away.
class Connector {
 public:
  Connector(std::string host, int port, const Hmac& secret, const Hello& hello, const Deadline& deadline,
            const ConnectionLimits& limits, const std::optional<Ticket>& ticket)
      : host_(std::move(host)),
        port_(port),
        secret_(secret),
        hello_(encode_hello(hello)),
        deadline_(deadline),
        limits_(limits),
        ticket_(ticket) {
    if (host_.empty() || port < 1 || port > 65535) {
      throw ConfigError{
          compose(R"(connecting to "{}" port {}: that is no address; it looks like "10.0.0.1", 29400)", host_, port)};
    }
  }

  [[nodiscard]] SecureConnection connect() {
    using namespace std::chrono_literals;
    std::chrono::nanoseconds pause = 5ms;
    while (true) {
      std::string cause;
      Socket socket = try_connect(host_, port_, deadline_, cause);
      if (socket.is_open()) {
        tune_connection(socket.fd(), limits_.lost_after);
        cause = compose("{} was connected, but did not answer", SocketAddress::of_peer(socket.fd()).text());
        if (open(socket)) return ticket_ ? send_hello(std::move(socket)) : introduce(std::move(socket));
      }
      if (deadline_.remaining() <= pause) {
        throw ConnectionError{ConnectionError::Cause::failed,
                              compose("{} cannot be reached within {}: {}", peer(), deadline_.budget_text(), cause)};
      }
      wait_at_random(pause);
      pause = std::min<std::chrono::nanoseconds>(2 * pause, 500ms);
    }
  }

 private:
  // Many processes that have failed at once must not all come back at once.
  static void wait_at_random(std::chrono::nanoseconds pause) {
    std::array<std::byte, 1> random{};
    fill_random(random);
    const timespec time = to_timespec(pause / 2 + pause * std::to_integer<int>(random[0]) / 512);
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  }

  [[nodiscard]] std::string peer() const { return compose("the leader at {} port {}", host_, port_); }

  // Goes as far as the hello. Until then the server does not know whether this one is honest: if it hangs up, it had no
  // room.
  [[nodiscard]] bool open(Socket& socket) {
    if (ticket_) {
      client_ = Opening::make(limits_.has_tls ? Opening::by_ticket_by_tls : Opening::by_ticket);
      server_ = *ticket_;
    } else {
      client_ = Opening::make(limits_.has_tls ? Opening::at_length_by_tls : Opening::at_length);
      if (!exchange_openings(socket)) return false;
    }
    return !limits_.has_tls || begin_tls(socket);
  }

  [[nodiscard]] bool exchange_openings(const Socket& socket) {
    if (!send_all(socket, client_.bytes()) || !receive_all(socket, std::as_writable_bytes(std::span{server_.magic}))) {
      return false;
    }
    if (const std::string complaint = server_.complaint(); !complaint.empty()) {
      throw ConnectionError{ConnectionError::Cause::failed,
                            compose("{} is not the run's leader: {}", peer(), complaint)};
    }
    return receive_all(socket, server_.nonce);
  }

  [[nodiscard]] SecureConnection introduce(Socket socket) {
    SecureConnection connection = send_hello(std::move(socket));
    const Frame answer = receive_answer(connection);
    if (answer.type == Frame::misfit) throw ConfigError{std::string{answer.text()}};
    if (answer.type != Frame::welcome || answer.payload.size() != sizeof(Ticket)) {
      throw ConnectionError{ConnectionError::Cause::refused,
                            compose("{} does not take this process: {}", peer(), answer.text())};
    }
    std::memcpy(&connection.ticket_.emplace(), answer.payload.data(), sizeof(Ticket));
    return connection;
  }

  // The answer's code proves that the listener knows the secret.
  [[nodiscard]] Frame receive_answer(SecureConnection& connection) const {
    std::string cause = "it did not answer in time";
    try {
      if (auto answer = connection.receive(deadline_)) return std::move(*answer);
    } catch (const ConnectionError& error) {
      cause = error.cause() == ConnectionError::Cause::closed
                  ? "most likely the two have different secrets (of different runs, or of different files)"
                  : "it does not know the secret of this run";
    }
    throw_unproven(cause);
  }

  [[noreturn]] void throw_unproven(std::string_view cause) const {
    throw ConnectionError{ConnectionError::Cause::failed,
                          compose("{} did not accept this process's proof: {}", peer(), cause)};
  }

  [[nodiscard]] SecureConnection send_hello(Socket socket) const {
    const Transcript transcript{client_, server_, hello_};
    WireWriter writer;
    if (ticket_ && !limits_.has_tls) writer.put_rest(client_.bytes());
    writer.put(static_cast<std::uint32_t>(hello_.size()));
    writer.put_rest(hello_);
    writer.put_rest(transcript.client_proof(secret_));
    if (!send_all(socket, writer.bytes())) {
      throw ConnectionError{ConnectionError::Cause::failed, compose("{} hung up before this process's proof", peer())};
    }
    SessionKeys keys{.outgoing = transcript.client_key(secret_), .incoming = transcript.server_key(secret_)};
    return SecureConnection{std::move(socket), std::move(keys), peer(), limits_};
  }

  [[nodiscard]] bool begin_tls(Socket& socket) const {
    if (ticket_ && !send_all(socket, client_.bytes())) return false;
    socket.encrypt(TlsRole::client, Transcript{client_, server_, hello_}.tls_key(secret_));
    using State = TlsSession::State;
    State state = socket.shake_hands();
    while (state == State::shaking && wait_for(socket.fd(), socket.shaking_events(), deadline_)) {
      state = socket.shake_hands();
    }
    if (state != State::failed || socket.has_ended()) return state == State::ready;
    throw_unproven(
        compose("most likely the two have different secrets (of different runs, or of different files; TLS: {})",
                socket.shaking_trouble()));
  }

  // These return false if the other end has hung up, or at the deadline.
  [[nodiscard]] bool send_all(const Socket& socket, ConstBytes bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = socket.send(bytes);
      if (sent >= 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
      } else if (!may_try_again(socket, POLLOUT)) {
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool receive_all(const Socket& socket, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = socket.receive(bytes);
      if (got == 0) return false;
      if (got > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(got));
      } else if (!may_try_again(socket, POLLIN)) {
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool may_try_again(const Socket& socket, short events) const {
    if (errno == EINTR) return true;
    return (errno == EAGAIN || errno == EWOULDBLOCK) && wait_for(socket.fd(), events, deadline_);
  }

  std::string host_;
  int port_;
  const Hmac& secret_;
  std::vector<std::byte> hello_;
  const Deadline& deadline_;
  ConnectionLimits limits_;
  std::optional<Ticket> ticket_;
  Opening client_{};
  Opening server_{};
};

inline SecureConnection SecureConnection::connect(const std::string& host, int port, const Hmac& secret,
                                                  const Hello& hello, const Deadline& deadline,
                                                  const ConnectionLimits& limits, const std::optional<Ticket>& ticket) {
  return Connector{host, port, secret, hello, deadline, limits, ticket}.connect();
}

}  // namespace detail
}  // namespace railyard::inline v0_1
