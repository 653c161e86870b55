// SPDX-License-Identifier: MIT
// The GPUs that the workers of this process may have, counted without initialising CUDA in it. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/cuda_driver.hpp"
#include "railyard/core/detail/nvml.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/detail/visible_devices.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what has been found, and how.
struct FoundDevices {
  std::vector<VisibleDevice> devices{};
  std::string how{};     ///< who has counted what, in words
  std::string remedy{};  ///< what to do where that is too few

  [[nodiscard]] int count() const noexcept { return static_cast<int>(devices.size()); }
  /// Whether a process can use but one of them, which CUDA_VISIBLE_DEVICES has to name: so it is with instances of MIG.
  [[nodiscard]] bool are_instances() const noexcept { return !devices.empty() && devices.front().is_instance; }
};

/// Returns "1 GPU" or "2 GPUs".
[[nodiscard]] inline std::string gpus_text(int count) { return compose("{} GPU{}", count, count == 1 ? "" : "s"); }

/// Says what to do about a process that is shown too few.
[[nodiscard]] inline std::string device_remedy(const NvmlAnswer& nvml, const DriverCount& driver) {
  if (nvml.has_mismatch || driver.code == cuda_driver_mismatch) {
    return "the loaded driver and the installed libraries are of two releases: start the machine anew after an upgrade";
  }
  if (nvml.problem.empty() || driver.problem.empty()) {
    return "show this process more of them (CUDA_VISIBLE_DEVICES, --gpus of the job or the container)";
  }
  return "see what nvidia-smi says here: is the NVIDIA driver installed and loaded, and was the container started with "
         "GPUs (--gpus all)? On CPUs train with Gloo, and without ScalingConfig::use_gpu";
}

[[nodiscard]] inline FoundDevices devices_of(const NvmlAnswer& nvml) {
  const auto num_divided =
      std::count_if(nvml.gpus.begin(), nvml.gpus.end(), [](const Gpu& gpu) { return gpu.is_divided; });
  auto [devices, remark] = visible_devices(nvml.gpus, visible_devices_variable());
  return {.devices = std::move(devices),
          .how = compose("NVML finds {}{}, {}{}{}", gpus_text(static_cast<int>(nvml.gpus.size())),
                         num_divided == 0 ? std::string{} : compose(", {} of them divided by MIG", num_divided),
                         visible_devices_text(), remark.empty() ? "" : "; ", remark),
          .remedy = device_remedy(nvml, {})};
}

/// Asks NVML, and where it does not answer the CUDA driver, in a child. Where neither answers there is no device.
[[nodiscard]] inline FoundDevices find_devices(const Deadline& deadline) {
  const NvmlAnswer nvml = ask_nvml();
  if (nvml.problem.empty()) return devices_of(nvml);
  const DriverCount driver = ask_cuda_driver(deadline);
  const std::string counted =
      driver.problem.empty() ? compose("the CUDA driver counts {}", gpus_text(driver.count)) : driver.problem;
  return {.devices = std::vector<VisibleDevice>(static_cast<std::size_t>(driver.count)),
          .how = compose("{}, {}; {}", counted, visible_devices_text(), nvml.problem),
          .remedy = device_remedy(nvml, driver)};
}

/// Says that there are too few. subject: who asks for how many. Throws: ConfigError.
[[noreturn]] inline void throw_too_few_devices(std::string_view subject, const FoundDevices& found) {
  throw ConfigError{compose("{}, and on host {} this process is shown {} ({}): {}{}", subject, host_name(),
                            found.are_instances()
                                ? compose("{} instance{} of MIG", found.count(), found.count() == 1 ? "" : "s")
                                : gpus_text(found.count()),
                            found.how, found.count() == 0 ? "" : "ask for fewer, or ", found.remedy)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
