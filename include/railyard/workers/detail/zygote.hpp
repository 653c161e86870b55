// SPDX-License-Identifier: MIT
// The single-threaded process that forks, watches and ends the workers on behalf of the supervisor. Workers room.
#pragma once

#include "railyard/workers/detail/channel.hpp"
#include "railyard/workers/detail/held_locks.hpp"
#include "railyard/workers/detail/worker_process.hpp"

#include "railyard/core/detail/compose.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Lives in the process that start() has forked. It holds no lock (which it proves when asked to), has no other thread,
/// and lives for as long as the supervisor: so a worker can be forked from it at any time, and no worker outlives
/// either of them.
class Zygote {
 public:
  /// supervisor: the process that forked this one. Throws: Error if the system refuses what it needs.
  Zygote(const WorkerSetup& setup, Channel channel, pid_t supervisor)
      : setup_(&setup), channel_(std::move(channel)), supervisor_(supervisor) {
    // The subreaper of all it starts: orphans of workers come here, and can be ended, and are reaped.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::setpgid(0, 0);  // Ctrl-C is for the supervisor to decide about
    ::prctl(PR_SET_NAME, "railyard:start");
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &fallback, nullptr);  // an inherited SIG_IGN would hide how workers end
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    sigset_t wanted;
    ::sigemptyset(&wanted);
    ::sigaddset(&wanted, SIGCHLD);
    ::sigaddset(&wanted, SIGTERM);
    signals_ = adopt(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), "start: signalfd");
    // Three ways to learn that the supervisor is gone: its end of the channel closes (unless a process that it forked
    // meanwhile holds it), its pidfd (unless the kernel is old), and this signal (unless it comes from a mere thread).
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    supervisor_fd_ = Descriptor{open_pidfd(supervisor)};
    if (::getppid() != supervisor) ::_exit(70);
  }

  /// Serves until the supervisor closes the channel or dies, then ends all that is left.
  [[noreturn]] void run() {
    while (serve()) {
    }
    end_everything();
    ::_exit(0);
  }

 private:
  bool serve() {
    std::array<pollfd, 3> watched{{{.fd = channel_.fd(), .events = POLLIN, .revents = 0},
                                   {.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = supervisor_fd_.get(), .events = POLLIN, .revents = 0}}};
    ::poll(watched.data(), watched.size(), -1);
    if (watched[2].revents != 0) return false;
    if (watched[1].revents != 0 && !take_signals()) return false;
    if (watched[0].revents == 0) return true;
    ZygoteRequest request;
    std::vector<Descriptor> fds;
    switch (channel_.receive(request, fds, MSG_DONTWAIT)) {
      case Channel::Outcome::nothing:
        return true;
      case Channel::Outcome::closed:
        return false;
      case Channel::Outcome::packet:
        break;
    }
    switch (request.kind) {
      case ZygoteRequest::Kind::kill:
        for (const auto& [pid, rank] : workers_) ::kill(-pid, SIGKILL);
        return true;
      case ZygoteRequest::Kind::prove:
        return prove(Deadline::after(request.patience));
      case ZygoteRequest::Kind::spawn:
        break;
    }
    return spawn(request.rank, fds);
  }

  bool prove(const Deadline& deadline) {
    const int error = are_library_locks_free(deadline) ? 0 : EDEADLK;
    return channel_.send(ZygoteReply{.kind = ZygoteReply::Kind::proven, .error = error});
  }

  bool take_signals() {
    signalfd_siginfo info{};
    bool has_lost_parent = false;
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGTERM && ::getppid() != supervisor_) has_lost_parent = true;
    }
    return !has_lost_parent && reap();
  }

  bool spawn(int rank, std::vector<Descriptor>& fds) {
    if (workers_.empty()) renew_kept_files();
    make_kept_file(rank);
    const pid_t self = ::getpid();
    const pid_t pid = fds.size() == 2 ? ::fork() : (errno = EMFILE, -1);
    if (pid == 0) become_worker(rank, self, fds);
    ZygoteReply reply{.kind = ZygoteReply::Kind::spawned, .rank = rank, .pid = pid, .error = pid < 0 ? errno : 0};
    if (pid < 0) return channel_.send(reply);
    ::setpgid(pid, pid);  // the worker does the same: whoever comes first
    workers_[pid] = rank;
    const Descriptor pidfd{open_pidfd(pid)};  // it cannot be another's: only this process reaps it
    const int fd = pidfd.get();
    return pidfd.is_open() ? channel_.send(reply, std::span{&fd, 1}) : channel_.send(reply);
  }

  [[noreturn]] void become_worker(int rank, pid_t self, std::vector<Descriptor>& fds) noexcept {
    try {
      WorkerProcess::prepare(*setup_, rank, self, fds[0].get(), fds[1].get());
      fds.clear();
      channel_.close();
      signals_.reset();
      supervisor_fd_.reset();
      Descriptor own_file = std::move(kept_files_[static_cast<std::size_t>(rank)]);
      kept_files_.clear();
      WorkerProcess{*setup_, rank, std::move(own_file)}.run();
    } catch (...) {
      ::_exit(71);
    }
  }

  // What ranks share lies in files that are kept here: to make the pages anew takes longer than all else of a restart.
  // All that a worker has ever forked is a child of this process once the worker is gone, so without children nobody
  // can still write to a file. Otherwise it is left to them.
  void renew_kept_files() {
    const bool has_children = ::waitid(P_ALL, 0, nullptr, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (has_children) kept_files_.clear();
    kept_files_.resize(static_cast<std::size_t>(setup_->memory->num_workers()));
  }

  // Without one, a rank makes a file of its own, and says what is wrong if it cannot.
  void make_kept_file(int rank) {
    Descriptor& file = kept_files_[static_cast<std::size_t>(rank)];
    if (file.is_open()) return;
    const int made = ::memfd_create("railyard", MFD_CLOEXEC);
    try {
      if (made >= 0) file = adopt(made, "start: memory for what ranks share");
    } catch (const Error&) {  // no descriptor is left
    }
  }

  // A worker's process group is ended before the worker is reaped: until then its number cannot be anybody else's.
  bool reap() {
    while (true) {
      siginfo_t info{};
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return true;
      const auto found = workers_.find(info.si_pid);
      if (found != workers_.end()) ::kill(-info.si_pid, SIGKILL);
      int status = 0;
      ::waitpid(info.si_pid, &status, 0);
      if (found == workers_.end()) continue;
      const ZygoteReply reply{
          .kind = ZygoteReply::Kind::exited, .rank = found->second, .pid = found->first, .status = status};
      workers_.erase(found);
      if (!channel_.send(reply)) return false;
    }
  }

  void end_everything() {
    for (const auto& [pid, rank] : workers_) ::kill(-pid, SIGKILL);
    while (true) {
      siginfo_t info{};
      const bool has_children = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0;
      if (!has_children && errno == ECHILD) return;
      if (info.si_pid != 0) {
        workers_.erase(info.si_pid);
        continue;
      }
      if (workers_.empty()) kill_children();  // those that had left their worker's process group
      pollfd child{.fd = signals_.get(), .events = POLLIN, .revents = 0};
      ::poll(&child, 1, 100);
      signalfd_siginfo signal{};
      while (::read(signals_.get(), &signal, sizeof signal) > 0) {
      }
    }
  }

  static void kill_children() {
    const std::string self = compose("{}", ::getpid());
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc", error}) {
      const std::string name = entry.path().filename().string();
      if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file{entry.path() / "stat"};
      std::string text;
      std::getline(file, text);
      const auto end = text.rfind(')');
      if (end == std::string::npos || end + 4 >= text.size()) continue;
      if (text.compare(end + 4, self.size() + 1, self + " ") == 0) ::kill(std::atoi(name.c_str()), SIGKILL);
    }
  }

  const WorkerSetup* setup_;
  Channel channel_;
  pid_t supervisor_;
  Descriptor signals_;
  Descriptor supervisor_fd_;
  std::map<pid_t, int> workers_;
  std::vector<Descriptor> kept_files_{};  // by rank
};

}  // namespace detail
}  // namespace railyard::inline v0_1
