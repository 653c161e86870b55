// SPDX-License-Identifier: MIT
// A control group with little memory, for a process that is to find it short.
#pragma once

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard_test {

/// Is a memory cgroup (version 1 or 2) with a limit, below that of this process.
class MemoryGroup {
 public:
  /// Returns nullptr where none can be made.
  static std::unique_ptr<MemoryGroup> make(std::size_t limit) {
    std::ifstream cgroups{"/proc/self/cgroup"};
    for (std::string line; std::getline(cgroups, line);) {
      const auto at = line.find(":memory:");
      const bool is_first = at != std::string::npos;
      if (!is_first && !line.starts_with("0::")) continue;
      std::string path = is_first ? "/sys/fs/cgroup/memory" + line.substr(at + 8) : "/sys/fs/cgroup" + line.substr(3);
      path += fmt::format("/railyard-test-{}", ::getpid());
      if (::mkdir(path.c_str(), 0755) != 0) continue;
      auto group = std::unique_ptr<MemoryGroup>{new MemoryGroup{path}};
      if (group->write(is_first ? "memory.limit_in_bytes" : "memory.max", fmt::to_string(limit))) return group;
    }
    return nullptr;
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;
  ~MemoryGroup() {
    for (int tries = 0; tries < 1000 && ::rmdir(path_.c_str()) != 0 && errno == EBUSY; ++tries) ::usleep(1000);
  }
  /// Moves this process there.
  void enter() const { write("cgroup.procs", fmt::to_string(::getpid())); }

 private:
  explicit MemoryGroup(std::string path) : path_(std::move(path)) {}
  bool write(const std::string& file, const std::string& text) const {
    std::ofstream stream{path_ + "/" + file};
    stream << text << std::flush;
    return stream.good();
  }
  std::string path_;
};

}  // namespace railyard_test
