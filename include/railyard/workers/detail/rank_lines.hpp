// SPDX-License-Identifier: MIT
// Connects the ranks of several hosts by lines whose ends have proven that they know the run's secret. Workers room.
#pragma once

#include "railyard/workers/detail/hmac.hpp"
#include "railyard/workers/detail/pair_handshake.hpp"
#include "railyard/workers/detail/refusal_log.hpp"
#include "railyard/workers/detail/secure_connection.hpp"
#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/hexadecimal.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/rank_connector.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a line on a socket of TCP, with TLS or without.
class SocketRankLine final : public RankLine {
 public:
  SocketRankLine(Socket socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  [[nodiscard]] std::size_t send(const std::byte* bytes, std::size_t size) override {
    return counted(socket_.send({bytes, size}), "sending");
  }
  [[nodiscard]] std::size_t receive(std::byte* bytes, std::size_t size) override {
    const ssize_t got = socket_.receive({bytes, size});
    if (got == 0 && size > 0) {
      throw ConnectionError{ConnectionError::Cause::closed, compose("{} has closed the connection", peer_)};
    }
    return counted(got, "receiving");
  }
  [[nodiscard]] int fd() const noexcept override { return socket_.fd(); }
  void hang_up() noexcept override { ::shutdown(socket_.fd(), SHUT_RDWR); }
  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

 private:
  [[nodiscard]] std::size_t counted(ssize_t count, std::string_view doing) const {
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    throw ConnectionError{is_closed_by_peer(errno) ? ConnectionError::Cause::closed : ConnectionError::Cause::failed,
                          compose("the line to {} is lost while {}: {}", peer_, doing, socket_.explain(errno))};
  }

  Socket socket_;
  std::string peer_;
};

/// Bounds what a rank does for those who have not proven themselves, and says how its lines go.
struct RankLineLimits {
  std::chrono::milliseconds lost_after{15'000};  ///< how long the other host may leave what it got unacknowledged
  std::chrono::milliseconds handshake_time{5000};
  std::size_t max_half_open = 256;  ///< besides the ranks that are expected
  bool has_tls = false;             ///< what the lines carry goes by TLS
};

/// Is one connect() of one rank: calls the ranks before it, and listens for those after it until they have come. Only
/// so long anything listens.
class RankMeeting {
 public:
  using Clock = Deadline::Clock;
  using Tell = std::function<void(const std::string&)>;

  RankMeeting(const World& world, Store& store, const std::string& group, const std::string& host, const Hmac& secret,
              const RankLineLimits& limits, Tell tell, const Deadline& deadline)
      : rank_(world.rank),
        limits_(limits),
        deadline_(deadline),
        log_(std::move(tell)),
        socket_(listen_at(host, 0)),
        lines_(static_cast<std::size_t>(world.size)),
        num_missing_(world.size - 1 - world.rank) {
    const auto key = [&](int rank) { return compose("{}{}", group, rank); };
    std::vector<std::string> keys;
    for (int rank = 0; rank < world.rank; ++rank) keys.push_back(key(rank));
    store.expect(keys);
    // What nobody knows beforehand makes the place one of its own, wherever its address is used again.
    const SocketAddress self = SocketAddress::of_self(socket_.fd());
    std::array<std::byte, 16> random{};
    fill_random(random);
    std::string place = compose("{} {} ", self.port(), self.host());
    place += hexadecimal(random);
    store.set(key(world.rank), place);
    place_ = self.text();
    proofs_.emplace(secret, place);
    for (int rank = 0; rank < world.rank; ++rank) {
      const auto theirs = store.get(key(rank), deadline);
      if (!theirs) throw Error{compose("rank {} has not said where it listens in {}", rank, deadline.budget_text())};
      calls_.emplace_back(rank, *theirs, secret);
    }
  }

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> meet() {
    while (true) {
      advance_calls();
      advance_listening();
      if (num_missing_ == 0 && calls_.empty()) return std::move(lines_);
      if (deadline_.expired()) throw_late();
      wait();
    }
  }

 private:
  // To a rank that listens. Tries again until it is let in.
  struct Call {
    Call(int to, const std::string& place, const Hmac& secret) : rank(to), proofs(secret, place) {
      const auto space = std::min(place.find(' '), place.size());
      const auto end = std::min(place.rfind(' '), place.size());
      const auto read = std::from_chars(place.data(), place.data() + space, port);
      if (read.ec == std::errc{} && port > 0 && port < 65536 && end > space) {
        host = place.substr(space + 1, end - space - 1);
      } else {
        throw Error{compose("rank {} has left \"{}\" as the place where it listens", to, place)};
      }
    }
    [[nodiscard]] std::string address() const { return address_text(host, port); }

    int rank;
    int port = 0;
    std::string host{};
    PairProofs proofs;
    Socket connecting{};
    std::optional<PairCalling> handshake{};
    Clock::time_point since{};
    Clock::time_point again{};
    std::chrono::milliseconds pause{5};
    std::string cause = "it has not been tried";
  };
  struct HalfOpen {
    HalfOpen(Socket socket, const PairProofs& proofs, int rank, bool has_tls)
        : address(SocketAddress::of_peer(socket.fd()).text()), handshake(std::move(socket), proofs, rank, has_tls) {}
    std::string address;
    Clock::time_point since = Clock::now();
    PairListening handshake;
  };

  using State = PairHandshake::State;
  // So long an honest rank's handshake may take before it can be the one that has to go.
  static constexpr std::chrono::milliseconds safe_age{250};

  void advance_calls() {
    for (auto call = calls_.begin(); call != calls_.end();) call = advance(*call) ? calls_.erase(call) : ++call;
  }

  // Returns true once the line is there.
  [[nodiscard]] bool advance(Call& call) {
    const auto now = Clock::now();
    if (!call.handshake && !call.connecting.is_open()) {
      if (now < call.again) return false;
      begin(call);
    }
    if (call.connecting.is_open()) {
      pollfd one{.fd = call.connecting.fd(), .events = POLLOUT, .revents = 0};
      if (::poll(&one, 1, 0) == 1) {
        if (const int error = connect_outcome(call.connecting); error != 0) {
          return give_up(call, std::generic_category().message(error));
        }
        tune_connection(call.connecting.fd(), limits_.lost_after);
        call.handshake.emplace(std::move(call.connecting), call.proofs, rank_, call.rank, limits_.has_tls);
      }
    }
    if (call.handshake) {
      const State state = call.handshake->advance();
      if (state == State::failed) return give_up(call, call.handshake->trouble());
      if (state == State::proven) {
        add(call.rank, call.handshake->take_socket(), call.address());
        return true;
      }
    }
    if (now > gives_up_at(call)) return give_up(call, "it has not answered");
    return false;
  }

  // A call that may have been taken is not given up while the connection lasts: the other rank would listen no more.
  [[nodiscard]] Clock::time_point gives_up_at(const Call& call) const {
    if (call.handshake && call.handshake->may_be_taken()) return deadline_.time();
    return call.since + 3 * limits_.handshake_time;
  }

  void begin(Call& call) {
    call.since = Clock::now();
    int status = 0;
    const AddressList addresses = resolve(call.host, call.port, status);
    if (addresses == nullptr) {
      static_cast<void>(give_up(call, ::gai_strerror(status)));
      return;
    }
    const int fd = ::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    call.connecting = Socket{adopt(fd, "a socket to another rank")};
    if (::connect(fd_of(call), addresses->ai_addr, addresses->ai_addrlen) != 0 && errno != EINPROGRESS) {
      static_cast<void>(give_up(call, std::generic_category().message(errno)));
    }
  }
  [[nodiscard]] static int fd_of(const Call& call) noexcept {
    return call.handshake ? call.handshake->socket().fd() : call.connecting.fd();
  }

  [[nodiscard]] bool give_up(Call& call, std::string cause) const {
    call.cause = std::move(cause);
    call.handshake.reset();
    call.connecting.close();
    call.again = Clock::now() + call.pause;
    call.pause = std::min(2 * call.pause, std::chrono::milliseconds{500});
    return false;
  }

  void advance_listening() {
    if (num_missing_ > 0) accept_some();
    for (auto at = half_open_.begin(); at != half_open_.end();) {
      const State state = at->handshake.advance();
      if (state == State::proven) {
        admit(*at);
      } else if (state == State::failed) {
        refuse(*at, at->handshake.trouble());
      } else if (Clock::now() - at->since > limits_.handshake_time) {
        refuse(*at, "it has not proven itself in time");
      } else {
        ++at;
        continue;
      }
      at = half_open_.erase(at);
    }
    log_.tell_rest(Clock::now());
  }

  void accept_some() {
    constexpr int most_at_once = 64;
    for (int at = 0; at < most_at_once && !is_crowded(); ++at) {
      const int fd = ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;  // nobody is there
        if (half_open_.empty()) throw_system("a connection of another rank", errno);
        refuse(half_open_.front(), compose("it has not proven itself, and there is no room: {}", explain_errno(errno)));
        half_open_.pop_front();
        return;
      }
      Socket socket{adopt(fd, "a connection of another rank")};
      tune_connection(socket.fd(), limits_.lost_after);
      half_open_.emplace_back(std::move(socket), *proofs_, rank_, limits_.has_tls);
      if (half_open_.size() > max_half_open()) {
        refuse(half_open_.front(), "it has not proven itself, and others are waiting");
        half_open_.pop_front();
      }
    }
  }
  [[nodiscard]] std::size_t max_half_open() const noexcept { return limits_.max_half_open + lines_.size(); }
  // Where all have only just come, the next one waits in the kernel's queue.
  [[nodiscard]] bool is_crowded() const {
    return half_open_.size() >= max_half_open() && Clock::now() - half_open_.front().since < safe_age;
  }

  void refuse(const HalfOpen& one, const std::string& why) {
    const std::string line = compose("rank {} refused a connection from {}: {}", rank_, one.address, why);
    log_.note(line, Clock::now());
    last_refusal_ = line;
  }

  void admit(HalfOpen& one) {
    const int from = one.handshake.opening().from;
    if (from <= rank_ || from >= static_cast<int>(lines_.size())) return refuse(one, compose("it is rank {}", from));
    if (lines_[static_cast<std::size_t>(from)] == nullptr) --num_missing_;  // else it has come again, and knows better
    add(from, one.handshake.take_socket(), one.address);
  }

  void add(int rank, Socket socket, const std::string& address) {
    lines_[static_cast<std::size_t>(rank)] =
        std::make_unique<SocketRankLine>(std::move(socket), compose("rank {} ({})", rank, address));
  }

  void wait() {
    polled_.clear();
    auto until = std::min(deadline_.time(), log_.due());
    for (const Call& call : calls_) {
      if (call.handshake) {
        polled_.push_back({fd_of(call), call.handshake->events(), 0});
      } else if (call.connecting.is_open()) {
        polled_.push_back({fd_of(call), POLLOUT, 0});
      }
      until = std::min(until, fd_of(call) < 0 ? call.again : gives_up_at(call) + slack);
    }
    if (num_missing_ > 0 && is_crowded()) {
      until = std::min(until, half_open_.front().since + safe_age);
    } else if (num_missing_ > 0) {
      polled_.push_back({socket_.fd(), POLLIN, 0});
    }
    for (const HalfOpen& one : half_open_) polled_.push_back({one.handshake.socket().fd(), one.handshake.events(), 0});
    if (!half_open_.empty()) until = std::min(until, half_open_.front().since + limits_.handshake_time + slack);
    const timespec time = to_timespec(until - Clock::now());
    ::ppoll(polled_.data(), polled_.size(), &time, nullptr);
  }
  static constexpr std::chrono::milliseconds slack{1};

  [[noreturn]] void throw_late() const {
    if (!calls_.empty()) {
      const Call& call = calls_.front();
      throw Error{compose(
          "rank {} does not reach rank {} at {} within {}: {}; see whether both hosts let each other in on all ports, "
          "and whether this is the network between them (ScalingConfig::launch.network)",
          rank_, call.rank, call.address(), deadline_.budget_text(), call.cause)};
    }
    std::string missing;
    for (int rank = rank_ + 1; rank < static_cast<int>(lines_.size()); ++rank) {
      if (!lines_[static_cast<std::size_t>(rank)]) missing += compose("{}{}", missing.empty() ? "" : ", ", rank);
    }
    throw Error{compose(
        "rank(s) {} did not connect to rank {} at {} within {}{}; see whether this host lets the others in on all "
        "ports, "
        "and whether this is the network between them (ScalingConfig::launch.network)",
        missing, rank_, place_, deadline_.budget_text(), last_refusal_.empty() ? "" : " (" + last_refusal_ + ")")};
  }

  int rank_;
  RankLineLimits limits_;
  Deadline deadline_;
  RefusalLog log_;
  Socket socket_;
  std::vector<std::unique_ptr<RankLine>> lines_;
  int num_missing_;  // of the ranks that call this one
  std::string place_{};
  std::optional<PairProofs> proofs_{};
  std::list<Call> calls_{};
  std::list<HalfOpen> half_open_{};
  std::vector<pollfd> polled_{};
  std::string last_refusal_{};
};

/// Connects ranks that know the run's secret.
class SecretConnector final : public RankConnector {
 public:
  using Tell = RankMeeting::Tell;

  /// run: what two runs with one secret, and two generations of one, differ by. tell: is told of those who were
  /// refused.
  SecretConnector(const Hmac& secret, const std::string& run, Tell tell, RankLineLimits limits = {})
      : key_(derive(secret, run)), tell_(std::move(tell)), limits_(limits) {}

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> connect(const World& world, Store& store,
                                                               const std::string& group, const std::string& host,
                                                               const Deadline& deadline) override {
    return RankMeeting{world, store, group, host, key_, limits_, tell_, deadline}.meet();
  }
  [[nodiscard]] bool encrypts() const noexcept override { return limits_.has_tls; }

 private:
  static Hmac derive(const Hmac& secret, const std::string& run) {
    Digest key = Hmac{secret}.of({text_bytes("railyard: lines between ranks of "), text_bytes(run)});
    Hmac keyed = secret.with_key(key);
    OPENSSL_cleanse(key.data(), key.size());
    return keyed;
  }

  const Hmac key_;
  Tell tell_;
  RankLineLimits limits_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
