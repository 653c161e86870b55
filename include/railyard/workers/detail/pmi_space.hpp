// SPDX-License-Identifier: MIT
// The key-value space of a launcher that speaks PMI: mpiexec of MPICH (Hydra), and srun --mpi=pmi2. Workers room.
#pragma once

#include "railyard/workers/detail/key_value_space.hpp"
#include "railyard/workers/detail/pmi_lines.hpp"
#include "railyard/workers/detail/socket.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sys/socket.h>
#include <sys/stat.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Speaks version 1.1 of PMI's wire protocol over the socket that a process inherits, of which PMI_FD is the number:
/// one line for each request and each answer. Launchers of version 2 take it as well. The socket stays open, as its
/// number stands in the environment.
class PmiSpace final : public KeyValueSpace {
 public:
  /// Throws: SpaceError if nobody who speaks PMI is at the other end.
  PmiSpace(int fd, const Deadline& deadline) : fd_(fd) {
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISSOCK(status.st_mode)) {
      throw SpaceError{
          compose("PMI_FD is {}, which is no socket of this process: was it closed on the way here?", fd_)};
    }
    check(ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline));
    has_begun_ = true;
    const PmiLine line = ask("cmd=get_my_kvsname", "my_kvsname", deadline);
    name_ = line.field("kvsname").value_or("");
    if (name_.empty()) fail(compose(R"(gives no name of a space ("{}"))", line.beginning()));
  }
  ~PmiSpace() override { leave(); }

  void put(const std::string& key, const std::string& value, const Deadline& deadline) override {
    check(ask(compose("cmd=put kvsname={} key={} value={}", name_, key, value), "put_result", deadline));
  }
  void come_to_fence(const Deadline& deadline) override { send("cmd=barrier_in", deadline); }
  [[nodiscard]] bool wait_at_fence(const Deadline& deadline) override {
    const auto line = receive(deadline);
    if (line && !line->is("barrier_out")) fail(compose(R"(answered "{}" at its barrier)", line->beginning()));
    if (line) check(*line);
    return line.has_value();
  }
  [[nodiscard]] std::optional<std::string> get(int, const std::string& key, const Deadline& deadline) override {
    const PmiLine line = ask(compose("cmd=get kvsname={} key={}", name_, key), "get_result", deadline);
    const auto value = line.field("value");
    return line.succeeded() && value ? std::optional{std::string{*value}} : std::nullopt;
  }

  void leave() noexcept override {
    if (!std::exchange(has_begun_, false)) return;
    try {
      // Without it the launcher would kill the whole job when the process ends, however it does.
      [[maybe_unused]] const auto line = ask("cmd=finalize", "finalize_ack", Deadline::after(leave_time));
    } catch (const Error&) {  // it has gone, which is nothing that anybody waits for now
    }
  }

 private:
  static constexpr std::chrono::seconds leave_time{5};

  [[noreturn]] void fail(const std::string& what) {
    has_begun_ = false;
    throw SpaceError{compose("the launcher's PMI (PMI_FD {}) {}", fd_, what)};
  }
  void check(const PmiLine& line) {
    if (!line.succeeded()) fail(compose(R"(refuses what was asked: "{}")", line.beginning()));
  }

  [[nodiscard]] PmiLine ask(const std::string& request, std::string_view answer, const Deadline& deadline) {
    send(request, deadline);
    auto line = receive(deadline);
    if (!line) fail(compose("has not answered in {}", deadline.budget_text()));
    if (!line->is(answer)) fail(compose(R"(answered "{}" where {} was to come)", line->beginning(), answer));
    return std::move(*line);
  }

  void send(const std::string& request, const Deadline& deadline) {
    const std::string bytes = request + "\n";
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const ssize_t sent = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        rest.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        if (!wait_for(fd_, POLLOUT, deadline)) fail(compose("takes nothing for {}", deadline.budget_text()));
      } else if (errno != EINTR) {
        fail(compose("is lost: {}", is_closed_by_peer(errno) ? closed_text : explain_errno(errno)));
      }
    }
  }

  // Nothing at the deadline.
  [[nodiscard]] std::optional<PmiLine> receive(const Deadline& deadline) {
    try {
      auto line = reader_.next();
      while (!line) {
        if (!wait_for(fd_, POLLIN, deadline)) return {};
        const auto room = reader_.room();
        const ssize_t got = ::recv(fd_, room.data(), room.size(), MSG_DONTWAIT);
        if (got > 0) line = reader_.take(static_cast<std::size_t>(got));
        if (got == 0 || (got < 0 && is_closed_by_peer(errno))) fail(compose("is lost: {}", closed_text));
        if (got < 0 && errno != EAGAIN && errno != EINTR) fail(compose("is lost: {}", explain_errno(errno)));
      }
      return line;
    } catch (const DataError& error) {
      fail(compose("talks nonsense: {}", error.what()));
    }
  }

  static constexpr std::string_view closed_text =
      "it has closed the connection; has the launcher ended, or another program of this process used it before?";

  int fd_;
  bool has_begun_ = false;
  std::string name_{};
  PmiLineReader reader_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
