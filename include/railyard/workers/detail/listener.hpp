// SPDX-License-Identifier: MIT
// The leader's ear: takes connections of those who know the secret, serves the store, bears with everybody else.
// Workers room.
#pragma once

#include "railyard/workers/detail/event.hpp"
#include "railyard/workers/detail/refusal_log.hpp"
#include "railyard/workers/detail/secure_connection.hpp"
#include "railyard/workers/detail/store_server.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace railyard::inline v0_1 {
namespace detail {

struct ListenerOptions {
  std::string host{};  ///< a name or address of this host; empty takes any
  int port = 0;        ///< 0 lets the kernel choose
  std::string job{};
  std::uint32_t generation = 0;     ///< of agents; that of the store's clients is set by reset_store()
  ConnectionLimits limits{};        ///< also says whether all clients are to use TLS
  std::size_t max_half_open = 256;  ///< connections that have not proven themselves yet
  std::chrono::milliseconds handshake_time{5000};
  /// Is told, in words, who was refused and why. Must neither throw nor call the listener.
  std::function<void(const std::string&)> on_refusal{};
};

/// Is the connection to one other launched process.
struct AgentConnection {
  Hello hello{};
  SecureConnection connection;
  std::string misfit{};  ///< why it can not be used, as the other process has been told as well; empty if it can
};

/// Listens on a thread of its own. Whoever connects proves that it knows the secret, within a bounded time and number
/// of bytes; those who do not are closed and told of. Connections for the store are served here, those of agents are
/// handed over. Where too many at once have not proven themselves, the oldest of them has to go, so that nobody is kept
/// out.
class Listener {
 public:
  /// Throws: ConfigError or Error if it cannot listen there.
  Listener(ListenerOptions options, Hmac secret)
      : options_(std::move(options)),
        secret_(std::move(secret)),
        log_(options_.on_refusal),
        socket_(listen_at(options_.host, options_.port)),
        poller_(adopt(::epoll_create1(EPOLL_CLOEXEC), "listening: epoll")) {
    watch(socket_.fd(), EPOLLIN, listening);
    watch(wake_.fd(), EPOLLIN, waking);
    const BlockSignals block{deferrable_signals()};
    thread_ = std::thread{[this] { run(); }};
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    wake_.ring();
    thread_.join();
  }

  /// The address and port that it listens on, numeric.
  [[nodiscard]] std::string host() const { return SocketAddress::of_self(socket_.fd()).host(); }
  [[nodiscard]] int port() const { return SocketAddress::of_self(socket_.fd()).port(); }

  /// Can be read from while an agent waits to be taken.
  [[nodiscard]] int agents_fd() const noexcept { return agents_event_.fd(); }
  /// Returns the next agent that has connected, or nothing at the deadline.
  [[nodiscard]] std::optional<AgentConnection> take_agent(const Deadline& deadline) {
    while (wait_for(agents_event_.fd(), POLLIN, deadline)) {
      const std::lock_guard lock{mutex_};
      if (agents_.empty()) continue;
      AgentConnection agent = std::move(agents_.front());
      agents_.pop_front();
      if (agents_.empty()) agents_event_.clear();
      return agent;
    }
    return std::nullopt;
  }

  /// For processes on this host; others get it with their welcome.
  [[nodiscard]] const Ticket& ticket() const noexcept { return ticket_; }

  /// From now on an agent that comes is told that the run has begun without it.
  void expect_no_more_agents() {
    const std::lock_guard lock{mutex_};
    expects_agents_ = false;
  }

  /// Empties the store for another generation of workers. Those of the one before are told, and turned away from now
  /// on.
  void reset_store(std::uint32_t generation) {
    const std::lock_guard lock{mutex_};
    store_.clear();
    tickets_used_.clear();  // those hellos are of a generation that nobody is let in with any more
    const std::string text = outdated_text(std::exchange(store_generation_, generation), generation);
    const ConstBytes bytes = text_bytes(text);
    std::vector<StoreReply> replies;
    for (auto& [id, session] : sessions_) {
      if (std::exchange(session.is_over, true)) continue;
      replies.push_back({.session = id, .type = StoreFrame::ended, .payload = {bytes.begin(), bytes.end()}});
    }
    deliver(replies);
    send_all();
  }

  /// How many connections were refused so far.
  [[nodiscard]] std::uint64_t num_refused() const {
    const std::lock_guard lock{mutex_};
    return log_.total();
  }

 private:
  using Clock = Deadline::Clock;
  struct HalfOpen {
    Socket socket{};
    std::string address{};
    Clock::time_point since{};
    ServerHandshake handshake;
  };
  struct Session {
    SecureConnection connection;
    bool is_over = false;  // it has been told so, and is closed by the client: what it still sends would undo that
  };
  using HalfOpens = std::map<std::uint64_t, HalfOpen>;  // in the order of their coming

  static constexpr std::uint64_t listening = 0;
  static constexpr std::uint64_t waking = 1;
  static constexpr std::size_t max_unsent_bytes = 4 * StoreServer::max_bytes;
  // So long an honest client's handshake may take before it can be the one that has to go.
  static constexpr std::chrono::milliseconds safe_age{250};

  void watch(int fd, std::uint32_t events, std::uint64_t id, int operation = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(poller_.get(), operation, fd, &event) != 0) throw_system("listening: epoll", errno);
  }

  void run() {
    std::array<epoll_event, 64> events{};
    while (true) {
      const int count = ::epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
      const std::lock_guard lock{mutex_};
      if (is_ending_) return;
      for (int at = 0; at < count; ++at) serve(events[static_cast<std::size_t>(at)].data.u64);
      send_all();
      expire(Clock::now());
    }
  }

  [[nodiscard]] int wait_ms() const {
    const std::lock_guard lock{mutex_};
    Clock::time_point next = std::min(log_.due(), accepts_again_);
    if (!half_open_.empty()) next = std::min(next, half_open_.begin()->second.since + options_.handshake_time);
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
  }

  void serve(std::uint64_t id) {
    try {
      if (id == listening) return accept_some();
      if (const auto found = half_open_.find(id); found != half_open_.end()) return shake_hands(found);
      if (const auto found = sessions_.find(id); found != sessions_.end()) serve_session(id, found->second);
    } catch (const std::exception& error) {  // the system has no room for this connection: the others go on
      log_.note(error.what(), Clock::now());
    }
  }

  void expire(Clock::time_point now) {
    while (!half_open_.empty() && half_open_.begin()->second.since + options_.handshake_time <= now) {
      refuse(half_open_.begin(), "it has not proven itself in time");
    }
    log_.tell_rest(now);
    if (now < accepts_again_ && half_open_.size() >= accepts_again_below_) return;
    accepts_again_ = Clock::time_point::max();
    accepts_again_below_ = 0;
    watch(socket_.fd(), EPOLLIN, listening, EPOLL_CTL_MOD);
  }

  // Until the time is over, or fewer than so many have not proven themselves.
  void pause_accepting(std::chrono::milliseconds time, std::size_t below) {
    accepts_again_ = Clock::now() + time;
    accepts_again_below_ = below;
    watch(socket_.fd(), 0, listening, EPOLL_CTL_MOD);
  }

  void accept_some() {
    constexpr int most_at_once = 64;  // those who are already there come first
    for (int at = 0; at < most_at_once; ++at) {
      if (is_crowded()) return;
      const int fd = ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        take_in(Socket{adopt(fd, "listening: a connection")});
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return;
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log_.note(compose("no connection can be taken: {}", explain_errno(errno)), Clock::now());
        while (!half_open_.empty() && oldest_age() >= safe_age) {
          refuse(half_open_.begin(), "it has not proven itself, and there are no descriptors for others");
        }
        return pause_accepting(std::chrono::milliseconds{100}, 0);
      }  // else it has gone again
    }
  }

  // Where all have only just come, the next one waits in the kernel's queue.
  [[nodiscard]] bool is_crowded() {
    if (half_open_.size() < options_.max_half_open) return false;
    const auto age = oldest_age();
    if (age >= safe_age) return false;
    pause_accepting(std::chrono::ceil<std::chrono::milliseconds>(safe_age - age), options_.max_half_open);
    return true;
  }
  [[nodiscard]] Clock::duration oldest_age() const { return Clock::now() - half_open_.begin()->second.since; }

  void take_in(Socket socket) {
    const std::uint64_t id = next_id_++;
    tune_connection(socket.fd(), options_.limits.lost_after);
    watch(socket.fd(), EPOLLIN, id);
    const SocketAddress address = SocketAddress::of_peer(socket.fd());
    half_open_.emplace(id, HalfOpen{.socket = std::move(socket),
                                    .address = address.text(),
                                    .since = Clock::now(),
                                    .handshake = ServerHandshake{secret_, ticket_}});
    if (half_open_.size() > options_.max_half_open) {
      refuse(half_open_.begin(), "it has not proven itself, and others are waiting");
    }
  }

  void refuse(HalfOpens::iterator at, std::string_view why) {
    log_.note(compose("refused a connection from {}: {}", at->second.address, why), Clock::now());
    half_open_.erase(at);
  }

  void shake_hands(HalfOpens::iterator at) {
    ServerHandshake& handshake = at->second.handshake;
    while (handshake.state() == ServerHandshake::State::waiting) {
      using Tls = TlsSession::State;
      Socket& socket = at->second.socket;
      const Tls tls = socket.shake_hands();
      if (tls == Tls::failed) return refuse(at, socket.shaking_trouble());
      // A new connection has room for so few bytes.
      if (tls == Tls::shaking && socket.shaking_events() == POLLOUT) return refuse(at, "it does not take an answer");
      if (tls == Tls::shaking) return;
      const std::span<std::byte> room = handshake.room();
      const ssize_t got = socket.receive(room);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        return refuse(at, handshake.is_untouched() ? "it has left without a word" : "it has left before its proof");
      }
      const ConstBytes reply = handshake.take(static_cast<std::size_t>(got));
      if (!reply.empty() && socket.send(reply) != static_cast<ssize_t>(reply.size())) {
        return refuse(at, "it does not take an answer");
      }
      if (const auto key = handshake.take_tls_key()) socket.encrypt(TlsRole::server, *key);
    }
    if (handshake.state() == ServerHandshake::State::refused) return refuse(at, handshake.refusal());
    auto node = half_open_.extract(at);
    admit(node.key(), std::move(node.mapped()));
  }

  void admit(std::uint64_t id, HalfOpen client) {
    Hello& hello = client.handshake.hello();
    const bool is_agent = hello.kind == HelloKind::agent;
    const std::string peer =
        compose("{} {} ({})", is_agent ? "process" : "the store's client of rank", hello.process, client.address);
    ConnectionLimits limits = options_.limits;
    if (!is_agent) limits.max_frame_bytes = StoreServer::max_bytes + max_hello_bytes;
    SecureConnection connection{std::move(client.socket), client.handshake.keys(), peer, limits};
    std::string why = complaint(hello, client.handshake.opening());
    const bool is_misfit = why.empty() && client.handshake.opening().is_by_tls() != options_.limits.has_tls;
    if (is_misfit) why = tls_misfit_text(peer, !options_.limits.has_tls, "the process that leads");
    if (!why.empty()) log_.note(compose("refused {}: {}", peer, why), Clock::now());
    try {
      const std::uint8_t answer = why.empty() ? Frame::welcome : is_misfit ? Frame::misfit : Frame::refusal;
      connection.post(answer, {why.empty() ? ticket_.bytes() : text_bytes(why)});
      connection.flush();
    } catch (const ConnectionError&) {
      return;  // it has already gone
    }
    if (!is_agent) {
      watch(connection.fd(), EPOLLIN | EPOLLOUT | EPOLLET, id, EPOLL_CTL_MOD);
      sessions_.emplace(id, Session{.connection = std::move(connection), .is_over = !why.empty()});
    } else if (why.empty() || is_misfit) {
      watch(connection.fd(), 0, id, EPOLL_CTL_DEL);
      agents_.push_back({.hello = std::move(hello), .connection = std::move(connection), .misfit = std::move(why)});
      agents_event_.ring();
    }
  }

  // Returns why a client that has proven itself is not wanted; empty if it is.
  [[nodiscard]] std::string complaint(const Hello& hello, const Opening& opening) {
    if (hello.job != options_.job) {
      return compose(R"(it belongs to the job "{}", and this is the job "{}")", hello.job, options_.job);
    }
    const bool is_agent = hello.kind == HelloKind::agent;
    if (is_agent && !expects_agents_) return "the run has begun, with all processes that it has";
    const std::uint32_t expected = is_agent ? options_.generation : store_generation_;
    if (hello.generation != expected) return outdated_text(hello.generation, expected);
    if (!opening.has_ticket()) return {};
    if (is_agent) return "a ticket is for the store alone";
    return tickets_used_.insert(opening.nonce).second ? std::string{} : "this very hello has come before";
  }

  static std::string outdated_text(std::uint32_t generation, std::uint32_t expected) {
    return compose("it is of generation {}, and the run is now at {}: what was started earlier has to end", generation,
                   expected);
  }

  void serve_session(std::uint64_t id, Session& session) {
    try {
      session.connection.flush();
      while (const std::optional<Frame> frame = session.connection.try_receive()) {
        if (!session.is_over) deliver(store_.handle(id, *frame));
        if (sessions_.count(id) == 0) return;
      }
    } catch (const ConnectionError& error) {
      if (error.cause() == ConnectionError::Cause::failed) log_.note(error.what(), Clock::now());
      end_session(id);
    } catch (const DataError& error) {
      log_.note(compose("{}: {}", session.connection.peer(), error.what()), Clock::now());
      end_session(id);
    }
  }

  // What is little is kept until all who have asked are heard: where many ranks meet, everybody gets many values at
  // once.
  void deliver(const std::vector<StoreReply>& replies) {
    constexpr std::size_t little = std::size_t{64} << 10U;
    for (const StoreReply& reply : replies) {
      const auto found = sessions_.find(reply.session);
      if (found == sessions_.end()) continue;
      found->second.connection.post(static_cast<std::uint8_t>(reply.type), {reply.payload});
      unsent_.insert(reply.session);
      if (found->second.connection.unsent_bytes() > little) send_to(reply.session);
    }
  }

  void send_all() {
    for (const std::uint64_t id : std::exchange(unsent_, {})) send_to(id);
  }

  void send_to(std::uint64_t id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    SecureConnection& connection = found->second.connection;
    try {
      connection.flush();
      if (connection.unsent_bytes() <= max_unsent_bytes) return;
      log_.note(compose("{} asks and does not listen", connection.peer()), Clock::now());
    } catch (const ConnectionError&) {  // it has gone
    }
    end_session(id);
  }

  void end_session(std::uint64_t id) {
    store_.forget(id);
    sessions_.erase(id);
  }

  const ListenerOptions options_;
  const Hmac secret_;
  const Ticket ticket_ = Ticket::make();
  RefusalLog log_;
  Socket socket_;
  Descriptor poller_;
  Event wake_{};
  Event agents_event_{};

  mutable std::mutex mutex_{};  // guards all below
  bool is_ending_ = false;
  std::uint64_t next_id_ = waking + 1;
  Clock::time_point accepts_again_ = Clock::time_point::max();  // the far future: it accepts now
  std::size_t accepts_again_below_ = 0;
  HalfOpens half_open_{};
  std::deque<AgentConnection> agents_{};
  std::map<std::uint64_t, Session> sessions_{};
  std::set<std::uint64_t> unsent_{};  // the sessions for which something was queued
  StoreServer store_{};
  std::uint32_t store_generation_ = 0;
  std::set<std::array<std::byte, 32>> tickets_used_{};  // the nonces of hellos by ticket, so that none comes twice
  bool expects_agents_ = true;

  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
