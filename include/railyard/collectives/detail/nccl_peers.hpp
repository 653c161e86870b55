// SPDX-License-Identifier: MIT
// Learns of the death of ranks on the same host, which NCCL does not notice over NVLink. Collectives room.
#pragma once

#include "railyard/core/detail/system.hpp"
#include "railyard/core/world.hpp"

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Watches those processes of a group that this one can see.
class NcclPeers {
 public:
  /// Returns what identifies this process to the others: its host and its namespace of processes, then its number.
  [[nodiscard]] static std::string own_identity() {
    struct stat space {};
    static_cast<void>(::stat("/proc/self/ns/pid", &space));
    return compose("{}/{}/{} {}", host_name(), space.st_dev, space.st_ino, ::getpid());
  }

  /// identities: of all ranks, by rank.
  void watch(const std::vector<std::string>& identities) {
    const std::string own = own_identity();
    const auto place = [](const std::string& identity) { return identity.substr(0, identity.rfind(' ')); };
    for (std::size_t rank = 0; rank < identities.size(); ++rank) {
      const std::string& identity = identities[rank];
      if (identity == own || place(identity) != place(own)) continue;
      const int pid = std::atoi(identity.c_str() + identity.rfind(' '));
      const int pidfd = open_pidfd(pid);
      if (pidfd >= 0) watched_.emplace_back(static_cast<int>(rank), Descriptor{pidfd});
    }
  }

  /// Returns the ranks whose processes have ended.
  [[nodiscard]] std::vector<int> ended() const {
    std::vector<int> ranks;
    for (const auto& [rank, pidfd] : watched_) {
      pollfd state{pidfd.get(), POLLIN, 0};
      if (::poll(&state, 1, 0) == 1) ranks.push_back(rank);
    }
    return ranks;
  }

 private:
  std::vector<std::pair<int, Descriptor>> watched_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
