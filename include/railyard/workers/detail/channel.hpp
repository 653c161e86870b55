// SPDX-License-Identifier: MIT
// Packets between the supervisor and the process that starts workers, descriptors included. Workers room.
#pragma once

#include "railyard/core/detail/system.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/types.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Asks for a worker (with its standard output and error as descriptors), for the end of workers by force, or whether
/// the fork has kept a lock of another thread.
struct ZygoteRequest {
  enum class Kind : std::uint8_t { spawn, kill, prove };
  Kind kind = Kind::spawn;
  int rank = 0;
  std::chrono::nanoseconds patience{0};  ///< for the proof
};

/// Says that a worker has been made (with its pidfd, if there are any on this kernel) or could not be, that it has
/// ended, or whether locks are free.
struct ZygoteReply {
  enum class Kind : std::uint8_t { spawned, exited, proven };
  Kind kind = Kind::spawned;
  int rank = 0;
  pid_t pid = 0;
  int error = 0;   ///< errno, 0 if the worker has been made, or all locks are free
  int status = 0;  ///< as of waitpid
};

/// Is one end of a pair of sockets that keep packets whole.
class Channel {
 public:
  explicit Channel(Descriptor socket) noexcept : socket_(std::move(socket)) {}

  [[nodiscard]] static std::pair<Channel, Channel> make_pair() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw_system("start: socketpair", errno);
    Descriptor second{ends[1]};
    Channel first{adopt(ends[0], "start: socketpair")};
    if (second.get() <= 2) second = adopt(::fcntl(second.get(), F_DUPFD_CLOEXEC, 3), "start: socketpair");
    return {std::move(first), Channel{std::move(second)}};
  }

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  void close() noexcept { socket_.reset(); }

  /// Returns false if the other end is gone.
  template <class Packet>
  [[nodiscard]] bool send(const Packet& packet, std::span<const int> fds = {}) noexcept {
    Packet copy = packet;
    iovec part{.iov_base = &copy, .iov_len = sizeof copy};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(max_fds * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(sizeof copy);
  }

  enum class Outcome : std::uint8_t { packet, nothing, closed };

  /// Takes one packet with its descriptors. flags: MSG_DONTWAIT to return at once.
  template <class Packet>
  [[nodiscard]] Outcome receive(Packet& packet, std::vector<Descriptor>& fds, int flags) {
    iovec part{.iov_base = &packet, .iov_len = sizeof packet};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(max_fds * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t got = 0;
    do {
      got = ::recvmsg(socket_.get(), &message, flags | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::nothing;
    if (got != static_cast<ssize_t>(sizeof packet)) return Outcome::closed;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t at = 0; at < count; ++at) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + at * sizeof fd, sizeof fd);
        fds.push_back(adopt(fd, "a descriptor from another process"));
      }
    }
    return Outcome::packet;
  }

 private:
  static constexpr std::size_t max_fds = 4;
  Descriptor socket_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
