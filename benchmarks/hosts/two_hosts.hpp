// SPDX-License-Identifier: MIT
// Two hosts that are network namespaces of this one, with 1 Gbit/s between them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

namespace bench {

inline int run(const std::string& command) { return std::system((command + " >&2").c_str()); }

// Writes the secret of the processes of all hosts to the file "secret" in this folder.
inline void write_secret() {
  const auto secret = std::filesystem::current_path() / "secret";
  std::ofstream{secret} << "0123456789abcdef0123456789abcdef\n";
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

// Makes a T that all processes see which are forked from now on, for as long as they live.
template <class T>
[[nodiscard]] T& make_shared_by_processes() {
  void* const memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error{"no memory for all processes"};
  return *new (memory) T;
}

// Two network namespaces that see each other at 1 Gbit/s, for as long as it lives.
class TwoHosts {
 public:
  TwoHosts() {
    is_there_ = true;
    for (int host = 0; host < 2; ++host) is_there_ = is_there_ && run("ip netns add " + name(host)) == 0;
    if (!is_there_) return;
    is_there_ = run(fmt::format("ip link add {0} netns {0} type veth peer name {1} netns {1}", name(0), name(1))) == 0;
    for (int host = 0; is_there_ && host < 2; ++host) {
      const std::string at = "ip netns exec " + name(host) + " ";
      is_there_ =
          run(at + "ip link set lo up") == 0 &&
          run(fmt::format("{}ip address add {}/24 dev {}", at, address(host), name(host))) == 0 &&
          run(fmt::format("{}ip link set {} up", at, name(host))) == 0 &&
          run(fmt::format("{}tc qdisc add dev {} root tbf rate 1gbit burst 256kb latency 50ms", at, name(host))) == 0;
    }
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  ~TwoHosts() {
    for (int host = 0; host < 2; ++host) run("ip netns delete " + name(host) + " 2>/dev/null");
  }

  [[nodiscard]] bool are_there() const noexcept { return is_there_; }
  [[nodiscard]] static std::string address(int host) { return fmt::format("10.78.0.{}", host + 1); }

  // Of the network namespace, and of the host's interface to the other one.
  [[nodiscard]] std::string name(int host) const { return fmt::format("ry{}-{}", host, process_); }

  // The calling thread, and those that it makes from now on, are on that host.
  void enter(int host) const {
    const int space = ::open(("/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) throw std::runtime_error{"a host cannot be entered"};
    ::close(space);
  }
  // What the calling thread's host has sent so far. Units: bytes, with all headers.
  [[nodiscard]] double sent_bytes(int host) const {
    std::ifstream file{"/proc/thread-self/net/dev"};
    for (std::string line; std::getline(file, line);) {
      const std::size_t colon = line.find(':');
      if (colon == std::string::npos || line.substr(0, colon).find(name(host)) == std::string::npos) continue;
      std::istringstream numbers{line.substr(colon + 1)};
      double value = 0;
      for (int field = 0; field < 9; ++field) numbers >> value;  // the ninth counts bytes sent
      return value;
    }
    throw std::runtime_error{"a host has no network"};
  }

 private:
  pid_t process_ = ::getpid() % 100'000;
  bool is_there_ = false;
};

}  // namespace bench
