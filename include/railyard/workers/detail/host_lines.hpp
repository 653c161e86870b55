// SPDX-License-Identifier: MIT
// Lines between ranks of one host, by sockets that no network leads to. Workers room.
#pragma once

#include "railyard/workers/detail/refusal_log.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/hexadecimal.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/rank_connector.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a line on a Unix socket.
class HostLine final : public RankLine {
 public:
  HostLine(Descriptor socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}
  HostLine(const HostLine&) = delete;
  HostLine& operator=(const HostLine&) = delete;
  ~HostLine() override { hang_up(); }  // the other end hears of it even if a forked process still holds this one

  [[nodiscard]] std::size_t send(const std::byte* bytes, std::size_t size) override {
    return counted(::send(fd(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT), "sending");
  }
  [[nodiscard]] std::size_t receive(std::byte* bytes, std::size_t size) override {
    const ssize_t got = ::recv(fd(), bytes, size, MSG_DONTWAIT);
    if (got == 0 && size > 0) throw Error{compose("{} has closed the connection", peer_)};
    return counted(got, "receiving");
  }
  [[nodiscard]] int fd() const noexcept override { return socket_.get(); }
  void hang_up() noexcept override { ::shutdown(fd(), SHUT_RDWR); }
  [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

 private:
  [[nodiscard]] std::size_t counted(ssize_t count, std::string_view doing) const {
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    throw Error{compose("the line to {} is lost while {}: {}", peer_, doing, explain_errno(errno))};
  }

  Descriptor socket_;
  std::string peer_;
};

/// Is where a rank listens, and what shows that somebody has read that in the store of the group: what a caller says,
/// and what it is answered.
struct HostPlace {
  using Token = std::array<std::byte, 16>;
  std::string name{};  ///< of the socket, which the kernel has given and no file stands for
  Token call{};
  Token answer{};

  [[nodiscard]] std::string text() const {
    return compose("{} {} {}", hexadecimal(std::as_bytes(std::span{name})), hexadecimal(call), hexadecimal(answer));
  }
  /// Nothing if it is none.
  [[nodiscard]] static std::optional<HostPlace> read(std::string_view text) {
    HostPlace place;
    const auto first = std::min(text.find(' '), text.size());
    const auto second = std::min(text.find(' ', first + 1), text.size());
    const auto name = from_hexadecimal(text.substr(0, first));
    if (!name || name->empty() || second == text.size() ||
        !read_token(text.substr(first + 1, second - first - 1), place.call) ||
        !read_token(text.substr(second + 1), place.answer)) {
      return std::nullopt;
    }
    place.name = *name;
    return place;
  }

  /// Takes the same time wherever they differ.
  [[nodiscard]] static bool are_equal(const Token& one, const Token& other) noexcept {
    unsigned difference = 0;
    for (std::size_t at = 0; at < one.size(); ++at) difference |= std::to_integer<unsigned>(one[at] ^ other[at]);
    return difference == 0;
  }

 private:
  [[nodiscard]] static bool read_token(std::string_view digits, Token& token) {
    const auto bytes = from_hexadecimal(digits);
    if (!bytes || bytes->size() != token.size()) return false;
    std::memcpy(token.data(), bytes->data(), token.size());
    return true;
  }
};

/// Is one connect() of one rank: calls the ranks before it, and listens for those after it until they have come. Who is
/// not of this user is turned away by what the kernel says of him, before a byte of his is read; everybody else has to
/// show what only the ranks of the group know.
class HostMeeting {
 public:
  using Clock = Deadline::Clock;
  using Tell = std::function<void(const std::string&)>;
  static constexpr std::size_t max_half_open = 256;  ///< besides the ranks that are expected
  static constexpr std::chrono::milliseconds greeting_time{5000};

  HostMeeting(const World& world, Store& store, const std::string& group, Tell tell, const Deadline& deadline)
      : rank_(world.rank),
        deadline_(deadline),
        log_(std::move(tell)),
        socket_(open_socket()),
        lines_(static_cast<std::size_t>(world.size)),
        num_missing_(world.size - 1 - world.rank) {
    const auto key = [&](int rank) { return compose("{}{}", group, rank); };
    std::vector<std::string> keys;
    for (int rank = 0; rank < world.rank; ++rank) keys.push_back(key(rank));
    store.expect(keys);
    listen();
    store.set(key(world.rank), place_.text());
    for (int rank = 0; rank < world.rank; ++rank) {
      const auto theirs = store.get(key(rank), deadline);
      if (!theirs) throw Error{compose("rank {} has not said where it listens in {}", rank, deadline.budget_text())};
      auto place = HostPlace::read(*theirs);
      if (!place) throw Error{compose("rank {} has left \"{}\" as the place where it listens", rank, *theirs)};
      calls_.push_back({.rank = rank, .place = std::move(*place)});
    }
  }

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> meet() {
    AwakeTime time;
    while (true) {
      calls_.remove_if([this](Call& call) { return advance(call); });
      if (num_missing_ > 0) accept_some();
      greeters_.remove_if([this](Greeter& greeter) { return is_done(greeter); });
      log_.tell_rest(Clock::now());
      if (num_missing_ == 0 && calls_.empty()) return std::move(lines_);
      if (time.is_over(deadline_)) throw_late();
      wait(time.until_next_look(deadline_));
    }
  }

 private:
  struct Greeting {
    HostPlace::Token token{};
    std::int32_t rank = 0;
  };
  struct Call {
    int rank = 0;
    HostPlace place{};
    Descriptor socket{};
    bool is_connected = false;
    std::size_t num_received = 0;
    HostPlace::Token answer{};
  };
  struct Greeter {
    Descriptor socket;
    std::string name;
    Clock::time_point since = Clock::now();
    std::size_t num_received = 0;
    std::array<std::byte, sizeof(Greeting)> bytes{};
  };

  static Descriptor open_socket() {
    return adopt(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "a socket for other ranks");
  }

  void listen() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t size = sizeof address.sun_family;  // the kernel chooses a name that nobody else has
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
      throw_system("binding a socket for other ranks", errno);
    }
    size = sizeof address;
    if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        ::listen(socket_.get(), SOMAXCONN) != 0) {
      throw_system("listening for other ranks", errno);
    }
    place_.name.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
    for (HostPlace::Token* token : {&place_.call, &place_.answer}) {
      if (::getrandom(token->data(), token->size(), 0) != static_cast<ssize_t>(token->size())) {
        throw_system("random numbers for lines between ranks", errno);
      }
    }
  }

  // Returns who the other end is, as the kernel knows it.
  [[nodiscard]] static ucred peer_of(const Descriptor& socket) noexcept {
    ucred peer{};
    socklen_t size = sizeof peer;
    peer.uid = static_cast<uid_t>(-1);
    ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
    return peer;
  }

  // Returns true once the line is there.
  [[nodiscard]] bool advance(Call& call) {
    if (!call.is_connected && !connect(call)) return false;
    while (call.num_received < call.answer.size()) {
      const ssize_t got = ::recv(call.socket.get(), call.answer.data() + call.num_received,
                                 call.answer.size() - call.num_received, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (got <= 0) throw Error{compose("rank {} has ended while rank {} connected to it", call.rank, rank_)};
      call.num_received += static_cast<std::size_t>(got);
    }
    if (!HostPlace::are_equal(call.answer, call.place.answer)) {
      throw Error{compose("where rank {} should listen, somebody else does", call.rank)};
    }
    add(call.rank, std::move(call.socket));
    return true;
  }

  [[nodiscard]] bool connect(Call& call) const {
    if (!call.socket.is_open()) call.socket = open_socket();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::size_t name_size = std::min(call.place.name.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, call.place.name.data(), name_size);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_size);
    if (::connect(call.socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
      if (errno == EAGAIN || errno == EINTR) return false;  // many call there: the next look may find room
      throw Error{compose("rank {} does not reach rank {} of this host: {}", rank_, call.rank, explain_errno(errno))};
    }
    if (peer_of(call.socket).uid != ::geteuid()) {
      throw Error{compose("where rank {} should listen, another user's process does", call.rank)};
    }
    const Greeting greeting{.token = call.place.call, .rank = rank_};
    if (::send(call.socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof greeting)) {
      throw Error{compose("rank {} has ended while rank {} connected to it", call.rank, rank_)};
    }
    call.is_connected = true;
    return true;
  }

  void accept_some() {
    constexpr int most_at_once = 64;
    for (int at = 0; at < most_at_once; ++at) {
      const int fd = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;  // nobody is there
        if (greeters_.empty()) throw_system("a connection of another rank", errno);
        return refuse_oldest("it has not proven itself, and there is no room");
      }
      Descriptor socket = adopt(fd, "a connection of another rank");
      const ucred peer = peer_of(socket);
      const std::string name = compose("process {} of user {}", peer.pid, peer.uid);
      if (peer.uid != ::geteuid()) {
        refuse(name, "it is another user's");
        continue;
      }
      greeters_.push_back({.socket = std::move(socket), .name = name});
      if (greeters_.size() > max_half_open + lines_.size())
        refuse_oldest("it has not proven itself, and others are waiting");
    }
  }

  void refuse(const std::string& name, std::string_view why) {
    last_refusal_ = compose("rank {} refused a connection from {}: {}", rank_, name, why);
    log_.note(last_refusal_, Clock::now());
  }
  void refuse_oldest(std::string_view why) {
    refuse(greeters_.front().name, why);
    greeters_.pop_front();
  }

  // Returns true once it is let in, or turned away.
  [[nodiscard]] bool is_done(Greeter& greeter) {
    while (greeter.num_received < greeter.bytes.size()) {
      const ssize_t got = ::recv(greeter.socket.get(), greeter.bytes.data() + greeter.num_received,
                                 greeter.bytes.size() - greeter.num_received, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (Clock::now() - greeter.since <= greeting_time) return false;
        refuse(greeter.name, "it has not proven itself in time");
        return true;
      }
      if (got <= 0) {
        refuse(greeter.name, "it has left before its proof");
        return true;
      }
      greeter.num_received += static_cast<std::size_t>(got);
    }
    Greeting greeting;
    std::memcpy(&greeting, greeter.bytes.data(), sizeof greeting);
    if (!HostPlace::are_equal(greeting.token, place_.call)) {
      refuse(greeter.name, "it is no rank of this group");
    } else if (greeting.rank <= rank_ || greeting.rank >= static_cast<int>(lines_.size()) || is_there(greeting.rank)) {
      refuse(greeter.name, compose("it is rank {}", greeting.rank));
    } else if (::send(greeter.socket.get(), place_.answer.data(), place_.answer.size(), MSG_NOSIGNAL) !=
               static_cast<ssize_t>(place_.answer.size())) {
      refuse(greeter.name, "it has left before its answer");
    } else {
      add(greeting.rank, std::move(greeter.socket));
      --num_missing_;
    }
    return true;
  }

  [[nodiscard]] bool is_there(int rank) const noexcept { return lines_[static_cast<std::size_t>(rank)] != nullptr; }
  void add(int rank, Descriptor socket) {
    lines_[static_cast<std::size_t>(rank)] = std::make_unique<HostLine>(std::move(socket), compose("rank {}", rank));
  }

  void wait(std::chrono::nanoseconds at_most) {
    polled_.clear();
    for (const Call& call : calls_) {
      if (call.is_connected) {
        polled_.push_back({call.socket.get(), POLLIN, 0});
      } else {
        at_most = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds{1});
      }
    }
    if (num_missing_ > 0) polled_.push_back({socket_.get(), POLLIN, 0});
    for (const Greeter& greeter : greeters_) polled_.push_back({greeter.socket.get(), POLLIN, 0});
    const timespec time = to_timespec(at_most);
    ::ppoll(polled_.data(), polled_.size(), &time, nullptr);
  }

  [[noreturn]] void throw_late() const {
    if (!calls_.empty()) {
      throw Error{
          compose("rank {} has not let rank {} in within {}", calls_.front().rank, rank_, deadline_.budget_text())};
    }
    std::vector<int> missing;
    for (int rank = rank_ + 1; rank < static_cast<int>(lines_.size()); ++rank) {
      if (!is_there(rank)) missing.push_back(rank);
    }
    throw Error{compose("rank(s) {} did not connect to rank {} of this host within {}{}", joined(missing, ", "), rank_,
                        deadline_.budget_text(), last_refusal_.empty() ? "" : " (" + last_refusal_ + ")")};
  }

  int rank_;
  Deadline deadline_;
  RefusalLog log_;
  Descriptor socket_;
  HostPlace place_{};
  std::vector<std::unique_ptr<RankLine>> lines_;
  int num_missing_;  // of the ranks that call this one
  std::list<Call> calls_{};
  std::list<Greeter> greeters_{};
  std::vector<pollfd> polled_{};
  std::string last_refusal_{};
};

/// Connects ranks that one process, or one that has forked all of them, has made on this host: what a rank knows that
/// may connect stands in the memory of their group.
class HostConnector final : public RankConnector {
 public:
  using Tell = HostMeeting::Tell;

  /// tell: is told of those who were refused.
  explicit HostConnector(Tell tell) : tell_(std::move(tell)) {}
  /// Says it on the standard error.
  [[nodiscard]] static std::shared_ptr<HostConnector> make() {
    return std::make_shared<HostConnector>(
        [](const std::string& line) { std::fprintf(stderr, "railyard: %s\n", line.c_str()); });
  }

  [[nodiscard]] std::vector<std::unique_ptr<RankLine>> connect(const World& world, Store& store,
                                                               const std::string& group, const std::string& /*host*/,
                                                               const Deadline& deadline) override {
    return HostMeeting{world, store, group, tell_, deadline}.meet();
  }

 private:
  Tell tell_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
