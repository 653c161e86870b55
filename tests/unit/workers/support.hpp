// SPDX-License-Identifier: MIT
// What the tests of workers share: collecting a group's events, counting what a process holds, and processes of their
// own that faults can be made in.
#pragma once

#include "railyard/core/detail/system.hpp"
#include "railyard/workers/detail/exit_reason.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace workers_test {

namespace ry = railyard;
using namespace std::chrono_literals;  // the literals of the tests' deadlines
using Kind = ry::WorkerExit::Kind;

inline ry::Deadline soon() { return ry::Deadline::after(30s); }

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span{text}); }
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What a group did from some moment to its end.
struct Story {
  std::map<int, std::vector<std::string>> messages{};
  std::map<int, std::vector<std::string>> out{};
  std::map<int, std::vector<std::string>> err{};
  std::map<int, std::vector<ry::WorkerExit>> exits{};
  std::map<int, std::vector<std::string>> silent{};
  std::vector<int> signals{};
  std::vector<std::string> broken{};
  std::vector<int> late{};  ///< ranks of which something came after their exit

  void add(ry::GroupEvent event) {
    if (auto* message = std::get_if<ry::MessageEvent>(&event)) {
      note_late(message->rank);
      messages[message->rank].push_back(text_of(message->bytes));
    } else if (auto* output = std::get_if<ry::OutputEvent>(&event)) {
      note_late(output->rank);
      (output->is_error ? err : out)[output->rank].push_back(output->line);
    } else if (auto* exit = std::get_if<ry::ExitEvent>(&event)) {
      exits[exit->rank].push_back(exit->exit);
    } else if (auto* silence = std::get_if<ry::SilenceEvent>(&event)) {
      silent[silence->rank].push_back(silence->message);
    } else if (auto* signal = std::get_if<ry::SignalEvent>(&event)) {
      signals.push_back(signal->signal);
    } else if (auto* end = std::get_if<ry::BrokenEvent>(&event)) {
      broken.push_back(end->message);
    }
  }
  void note_late(int rank) {
    if (exits.count(rank) != 0) late.push_back(rank);
  }
  const ry::WorkerExit& exit_of(int rank) const { return exits.at(rank).front(); }
};

/// Takes events until `is_enough` is true or there are no more.
inline void follow(ry::WorkerGroup& group, Story& story, const std::function<bool()>& is_enough) {
  const auto deadline = soon();
  while (!is_enough()) {
    auto event = group.next(deadline);
    if (!event) return;
    story.add(std::move(*event));
  }
}

inline Story follow_to_end(ry::WorkerGroup& group) {
  Story story;
  follow(group, story, [] { return false; });
  return story;
}

inline std::size_t count_entries(const char* path) {
  std::size_t count = 0;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{path, error}) ++count;
  return count;
}

/// Names of shared memory of ours. Folders are none: those of other tests come and go meanwhile.
inline std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{"/dev/shm", error}) {
    std::string name = entry.path().filename().string();
    if (name.find("railyard") != std::string::npos && entry.is_regular_file(error)) names.insert(std::move(name));
  }
  return names;
}

/// A user who has no processes. Limits count those of all programs, so each test that runs meanwhile has its own.
inline uid_t unknown_user() { return static_cast<uid_t>(20'000 + ::getpid() % 40'000); }

/// The processes whose parent is `parent`, zombies included.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc", error}) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file{entry.path() / "stat"};
    std::string text;
    std::getline(file, text);
    const auto end = text.rfind(')');
    if (end == std::string::npos || end + 4 >= text.size()) continue;
    if (std::atoi(text.c_str() + end + 4) == parent) children.push_back(std::atoi(name.c_str()));
  }
  return children;
}

/// How many sockets this process listens on: ports, and names of its own.
inline std::size_t count_listeners() {
  std::size_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd", error}) {
    int listens = 0;
    socklen_t size = sizeof listens;
    const int fd = std::atoi(entry.path().filename().c_str());
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) ++count;
  }
  return count;
}

/// What this process holds and a group could leave behind.
struct Holdings {
  std::size_t descriptors = count_entries("/proc/self/fd");
  std::size_t threads = count_entries("/proc/self/task");
  std::size_t children = children_of(::getpid()).size();
  std::set<std::string> names = shared_memory_names();
  std::size_t mappings = count_mappings();
  std::size_t listeners = count_listeners();

  static std::size_t count_mappings() {
    std::ifstream file{"/proc/self/maps"};
    std::size_t count = 0;
    for (std::string line; std::getline(file, line);) count += line.find("/dev/zero") != std::string::npos;
    return count;
  }
  /// Whether there is no more than there was: a file in memory that has gone meanwhile may be another program's.
  [[nodiscard]] bool is_as(const Holdings& before) const {
    return descriptors == before.descriptors && threads == before.threads && children == before.children &&
           mappings == before.mappings && listeners == before.listeners &&
           std::includes(before.names.begin(), before.names.end(), names.begin(), names.end());
  }
};

/// Does this process come back to what it held before? A thread that was joined is still listed for a moment.
inline bool come_back_to(const Holdings& before) {
  const auto deadline = railyard::Deadline::after(std::chrono::seconds{20});
  Holdings now;
  while (!now.is_as(before) && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    now = Holdings{};
  }
  if (now.is_as(before)) return true;
  const auto say = [](const char* when, const Holdings& held) {
    std::fprintf(stderr,
                 "%s: %zu descriptors, %zu threads, %zu children, %zu files in memory, %zu mappings, %zu listeners\n",
                 when, held.descriptors, held.threads, held.children, held.names.size(), held.mappings, held.listeners);
  };
  say("before", before);
  say("now", now);
  return false;
}

/// Does the process end (or is it gone already) by the deadline?
inline bool ends(pid_t pid, const ry::Deadline& deadline = soon()) {
  const ry::detail::Descriptor pidfd{ry::detail::open_pidfd(pid)};
  if (!pidfd.is_open()) return errno == ESRCH;
  pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  const auto time = ry::detail::to_timespec(deadline.remaining());
  return ::ppoll(&ended, 1, &time, nullptr) == 1;
}

/// Inherits, while it lives, what the descendants of this process leave behind.
class Subreaper {
 public:
  Subreaper() {
    ::sigemptyset(&child_);
    ::sigaddset(&child_, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &child_, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
  ~Subreaper() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  /// Waits until this process has no child any more. Returns false if one lives on past the deadline.
  bool all_end(const ry::Deadline& deadline = soon()) const {
    while (true) {
      const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
      if (pid < 0 && errno == ECHILD) return true;
      if (pid != 0) continue;
      if (deadline.expired()) return false;
      const auto time = ry::detail::to_timespec(std::min<std::chrono::nanoseconds>(deadline.remaining(), 1s));
      ::sigtimedwait(&child_, nullptr, &time);
    }
  }

 private:
  sigset_t child_{};
  sigset_t before_{};
};

/// Runs a function in a process of its own, with a pipe to tell things through.
class Forked {
 public:
  using Tell = std::function<void(pid_t)>;
  explicit Forked(const std::function<int(const Tell&)>& function) {
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) throw std::runtime_error{"pipe"};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::fcntl(ends[1], F_SETFD, FD_CLOEXEC);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);  // Catch2 has handlers
      int status = 99;
      try {
        status = function(
            [&](pid_t number) { [[maybe_unused]] const auto written = ::write(ends[1], &number, sizeof number); });
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      ::_exit(status);
    }
    ::close(ends[1]);
    reader_ = ry::detail::Descriptor{ends[0]};
  }
  ~Forked() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The next number that the process told, or -1.
  [[nodiscard]] pid_t hear() const {
    pid_t number = -1;
    pollfd one{.fd = reader_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&one, 1, 30'000) != 1) return -1;
    return ::read(reader_.get(), &number, sizeof number) == static_cast<ssize_t>(sizeof number) ? number : -1;
  }
  /// Its exit status, or minus the signal that ended it; -1000 if it does not end.
  [[nodiscard]] int status() {
    if (!ends(pid_)) return -1000;
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  ry::detail::Descriptor reader_;
};

/// A number that this process and all it forks can see.
class SharedNumber {
 public:
  SharedNumber()
      : at_(::new (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                std::atomic<int>{0}) {}
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  ~SharedNumber() { ::munmap(at_, 4096); }
  std::atomic<int>& operator*() const { return *at_; }

 private:
  std::atomic<int>* at_;
};

}  // namespace workers_test
