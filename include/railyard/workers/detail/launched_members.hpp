// SPDX-License-Identifier: MIT
// Which processes make the workers of a run, how many each, and where each worker stands. Workers room.
#pragma once

#include "railyard/workers/detail/agent_wire.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/joining.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a process tells the leader of itself when it comes.
struct Newcomer {
  std::int32_t num_workers = 1;
  std::string host{};  ///< a HostIdentity, and how people call it
  std::string host_name{};
  std::string settings{};
  JoinDevices devices{};
  std::uint32_t arrival = 0;  ///< of its process, see TorchArrivals; 0 where nobody counts

  [[nodiscard]] std::string encode() const {
    WireWriter writer;
    writer.put(num_workers);
    writer.put(arrival);
    for (const std::string* text : {&host, &host_name, &settings}) writer.put_text(*text);
    writer.put(devices.count);
    for (const std::string* text : {&devices.only, &devices.how}) writer.put_text(*text);
    return writer.text();
  }
  [[nodiscard]] static Newcomer decode(std::string_view text) {
    WireReader reader{text};
    Newcomer one{.num_workers = reader.take<std::int32_t>(), .arrival = reader.take<std::uint32_t>()};
    for (std::string* part : {&one.host, &one.host_name, &one.settings}) *part = reader.take_text();
    one.devices.count = reader.take<std::int32_t>();
    for (std::string* part : {&one.devices.only, &one.devices.how}) *part = reader.take_text();
    return one;
  }

  /// Of that process. Throws: ConfigError if it does not go with the one that leads.
  void check(int process, const Newcomer& leader, int leading) const {
    if (settings != leader.settings) {
      throw ConfigError{
          compose("process {} on {} was started with other settings than process {} on {}: \"{}\" there, \"{}\" here; "
                  "start the same program with the same arguments everywhere",
                  process, host_name, leading, leader.host_name, settings, leader.settings)};
    }
    if (num_workers < 1)
      throw ConfigError{compose("process {} on {} makes {} workers", process, host_name, num_workers)};
  }
};

/// Are the processes of a run, as the launcher counts them, also those that are lost.
struct LaunchedMembers {
  std::vector<int> workers{};          ///< how many each makes where it can
  std::vector<std::string> hosts{};    ///< what names the host of each
  std::vector<bool> has_part{};        ///< whether it was to make any when workers were started last
  std::vector<JoinDevices> devices{};  ///< which GPUs each is shown

  void add(int num_workers, std::string host, JoinDevices shown) {
    workers.push_back(num_workers);
    hosts.push_back(std::move(host));
    devices.push_back(std::move(shown));
  }
  void set(std::size_t process, int num_workers, std::string host, JoinDevices shown) {
    workers[process] = num_workers;
    hosts[process] = std::move(host);
    devices[process] = std::move(shown);
  }
};

/// Writes which processes have a part in a start, as a StartOrder does.
[[nodiscard]] inline std::string parts_text(const std::vector<bool>& has_part) {
  std::string text;
  for (const bool has : has_part) text += has ? '1' : '0';
  return text;
}

/// Returns what one of several processes makes of so many workers together: the first ones make one more where they
/// cannot be divided.
[[nodiscard]] inline int share_of(int num_workers, int process, int num_processes) noexcept {
  return num_workers / num_processes + (process < num_workers % num_processes ? 1 : 0);
}

/// Returns how many workers each process makes where there are to be so many, at least 1 and at most the sum of what
/// they can make: those that make the most make fewer, the last of them first.
[[nodiscard]] inline std::vector<int> deal(std::vector<int> workers, int num_workers) {
  int sum = 0;
  for (const int own : workers) sum += own;
  for (; sum > num_workers; --sum) {
    const auto most = std::max_element(workers.rbegin(), workers.rend());
    --*most;
  }
  return workers;
}

/// Gives each process's workers their places: ranks go on from process to process, those of one host side by side.
/// workers: of each process; one that makes none has no place. hosts: what names its host. Returns the layouts by
/// process.
[[nodiscard]] inline std::vector<GroupLayout> lay_out(const std::vector<int>& workers,
                                                      const std::vector<std::string>& hosts) {
  std::vector<std::string> nodes;
  std::vector<GroupLayout> layouts(workers.size());
  std::map<std::string, int> local_sizes;
  for (std::size_t at = 0; at < workers.size(); ++at) {
    layouts[at].num_workers = workers[at];
    if (workers[at] == 0) continue;
    const auto found = std::find(nodes.begin(), nodes.end(), hosts[at]);
    layouts[at].node = static_cast<int>(found - nodes.begin());
    if (found == nodes.end()) nodes.push_back(hosts[at]);
    layouts[at].first_local_rank = local_sizes[hosts[at]];
    local_sizes[hosts[at]] += workers[at];
  }
  int rank = 0;
  for (const std::string& node : nodes) {
    for (std::size_t at = 0; at < workers.size(); ++at) {
      if (hosts[at] != node || workers[at] == 0) continue;
      layouts[at].first_rank = rank;
      rank += workers[at];
    }
  }
  for (std::size_t at = 0; at < workers.size(); ++at) {
    layouts[at].world_size = rank;
    layouts[at].local_size = local_sizes[hosts[at]];
    layouts[at].num_nodes = static_cast<int>(nodes.size());
  }
  return layouts;
}

/// Throws: ConfigError if each worker is to have a GPU, and a process is shown too few. Who is shown no more than one
/// takes that; all others take those of their workers' numbers on the host.
inline void check_devices(const LaunchedMembers& members) {
  const std::vector<GroupLayout> layouts = lay_out(members.workers, members.hosts);
  std::map<std::pair<std::string, std::string>, std::size_t> owners;  // by host and GPU
  for (std::size_t at = 0; at < layouts.size(); ++at) {
    const JoinDevices& shown = members.devices[at];
    const int needed = layouts[at].first_local_rank + layouts[at].num_workers;
    if (shown.count < 0 || layouts[at].num_workers == 0) continue;
    const bool takes_only = shown.count == 1 && layouts[at].num_workers == 1;
    if (!takes_only && needed > shown.count) {
      throw ConfigError{compose(
          "process {} of {} makes the workers {} to {} of its host, each needs a GPU of its own "
          "(ScalingConfig::use_gpu), and the process is shown {} ({}): start fewer workers there, or show each process "
          "all GPUs of its host, or each that makes one worker its own",
          at, layouts.size(), layouts[at].first_local_rank + 1, needed, shown.count, shown.how)};
    }
    if (!takes_only || shown.only.empty()) continue;
    const auto [owner, is_first] = owners.try_emplace({members.hosts[at], shown.only}, at);
    if (is_first) continue;
    throw ConfigError{
        compose("processes {} and {} of {} are both shown {} alone, and each worker needs a GPU of its own "
                "(ScalingConfig::use_gpu; {}): start fewer processes there, or show them more GPUs",
                owner->second, at, layouts.size(), shown.only, shown.how)};
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
