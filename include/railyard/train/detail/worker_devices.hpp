// SPDX-License-Identifier: MIT
// Which GPU each worker of this process has. Train room.
#pragma once

#include "railyard/train/scaling_config.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/found_devices.hpp"
#include "railyard/core/joining.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Are the GPUs that this process is shown, of which each worker has one; none where none are asked for.
class WorkerDevices {
 public:
  WorkerDevices() = default;
  /// share_process: all workers are of one process, and of instances of MIG that can use no more than one.
  WorkerDevices(FoundDevices found, bool share_process) : found_(std::move(found)) {
    if (!share_process || !found_->are_instances()) return;
    found_->devices.resize(1);
    found_->how += "; a process can use but one instance of MIG, so that threads cannot have one each: take Processes";
  }

  [[nodiscard]] bool are_asked_for() const noexcept { return found_.has_value(); }

  /// Throws: ConfigError if there are fewer than so many workers.
  void require(int num_workers) const {
    if (!found_ || found_->count() >= num_workers) return;
    throw_too_few_devices(num_workers == 1
                              ? std::string{"a worker needs a GPU of its own (ScalingConfig::use_gpu)"}
                              : compose("{} workers need a GPU each (ScalingConfig::use_gpu)", num_workers),
                          *found_);
  }

  /// Returns which one a worker has, by its number among those that its process sees; -1 if none are asked for. The
  /// process that is shown no more than one has that, whatever the number of its worker on the host. Called in the
  /// worker's process before it uses CUDA: of instances of MIG it is shown its own alone.
  [[nodiscard]] int give(const World& world) const {
    if (!found_) return -1;
    const int index = found_->count() == 1 ? 0 : world.local_rank;
    if (!found_->are_instances()) return index;
    ::setenv("CUDA_VISIBLE_DEVICES", found_->devices[static_cast<std::size_t>(index)].uuid.c_str(), 1);
    return 0;
  }

  /// Returns what other processes of the run are told of them.
  [[nodiscard]] JoinDevices told() const {
    if (!found_) return {};
    return {.count = found_->count(),
            .only = found_->count() == 1 ? found_->devices.front().uuid : std::string{},
            .how = compose("on host {} {}", host_name(), found_->how)};
  }

  /// Returns for how many workers there are GPUs now; those that have been lost since are not counted.
  [[nodiscard]] int count_now() const {
    const NvmlAnswer nvml = ask_nvml();  // the driver would have to be asked by a child, while workers train
    return nvml.problem.empty() ? std::min(devices_of(nvml).count(), found_->count()) : found_->count();
  }

 private:
  std::optional<FoundDevices> found_{};
};

/// Makes a range of workers follow the GPUs, and what else there is room for only if the user says so.
[[nodiscard]] inline ScalingConfig limit_to_devices(ScalingConfig config, const WorkerDevices& devices) {
  if (!devices.are_asked_for() || !config.num_workers.is_elastic()) return config;
  config.capacity = [own = std::move(config.capacity), devices] {
    return own ? std::min(own(), devices.count_now()) : devices.count_now();
  };
  return config;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
