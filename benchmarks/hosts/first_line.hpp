// SPDX-License-Identifier: MIT
// How long processes of one host that a launcher has started take to find each other.
#pragma once

#include <railyard/collectives/gloo.hpp>
#include <railyard/core/detail/system.hpp>
#include <railyard/train/trainer.hpp>
#include <railyard/workers/detail/socket.hpp>
#include <railyard/workers/launched.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace bench {

/// Notes when each process began to join, and when its rank was at its first line. The clock is the same for all
/// processes of a host.
class FirstLine {
 public:
  explicit FirstLine(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_ / "times");
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }
  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

  void note_start(int process) const { note("start", process); }
  void note_line(int rank) const { note("line", rank); }

  /// From the last start to the last first line. Unit: milliseconds.
  [[nodiscard]] double ms() const {
    std::map<char, std::int64_t> last;
    for (const auto& entry : std::filesystem::directory_iterator{folder_ / "times"}) {
      std::int64_t time = 0;
      std::ifstream{entry.path()} >> time;
      auto& newest = last[entry.path().filename().string()[0]];
      newest = std::max(newest, time);
    }
    return static_cast<double>(last['l'] - last['s']) / 1e6;
  }

 private:
  void note(const char* what, int number) const {
    std::ofstream{folder_ / "times" / fmt::format("{}{}", what, number)} << railyard::detail::monotonic_ns();
  }

  std::filesystem::path folder_;
};

/// Forks processes as a launcher starts them; each calls join(first_line, process, num_processes). Returns the
/// milliseconds from the last start to the last first line. folder: one that is not there yet.
template <class Join>
double first_line_ms(const std::filesystem::path& folder, int num_processes, const Join& join) {
  const FirstLine first{folder};
  std::vector<pid_t> children;
  for (int process = 0; process < num_processes; ++process) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    try {
      join(first, process, num_processes);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  bool has_failed = false;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    has_failed = has_failed || status != 0;
  }
  if (has_failed) throw std::runtime_error{"a launched process has failed"};
  return first.ms();
}

/// Returns one that nobody listens on now.
[[nodiscard]] inline int free_port() {
  const auto socket = railyard::detail::listen_at("127.0.0.1", 0);
  return railyard::detail::SocketAddress::of_self(socket.fd()).port();
}

/// Joins a run as one of its processes; leader: as LaunchConfig has it, empty to find it in the folder.
inline void join_launched(const FirstLine& first, int process, int num_processes, const std::string& leader = {}) {
  namespace ry = railyard;
  ::setenv("XDG_RUNTIME_DIR", first.folder().c_str(), 1);
  ry::ScalingConfig scaling{.num_workers = 1};
  scaling.launch = {.process = process, .num_processes = num_processes, .job = first.folder().filename()};
  if (leader.empty()) {
    scaling.launch.rendezvous = first.folder();
  } else {
    scaling.launch.leader = leader;
  }
  ry::Trainer<ry::Gloo, ry::Launched> trainer{[&](ry::Worker& worker) { first.note_line(worker.rank()); },
                                              scaling,
                                              {.storage_path = first.folder(), .progress = ry::Progress::quiet}};
  first.note_start(process);
  trainer.fit().value_or_throw();
}

}  // namespace bench
