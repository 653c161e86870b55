// SPDX-License-Identifier: MIT
// Which of a host's GPUs a process is shown, as CUDA_VISIBLE_DEVICES says. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/nvml.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a worker can be given: a GPU, or one instance of a divided one.
struct VisibleDevice {
  std::string uuid{};  ///< empty if it is not known
  bool is_instance = false;
};

struct VisibleDevices {
  std::vector<VisibleDevice> devices{};
  std::string remark{};  ///< what of the list CUDA does not follow; empty if nothing
};

[[nodiscard]] inline std::optional<std::string> visible_devices_variable() {
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text == nullptr ? std::nullopt : std::optional<std::string>{text};
}

/// Says which GPUs this process is shown, for messages.
[[nodiscard]] inline std::string visible_devices_text() {
  const auto variable = visible_devices_variable();
  return variable ? compose("CUDA_VISIBLE_DEVICES is \"{}\"", *variable) : "CUDA_VISIBLE_DEVICES is not set";
}

/// Reads a list as CUDA does: all entries are of the kind of the first one; the first that names nothing ends the list;
/// one that names a device twice hides all. A UUID may be cut off where it is still the only one that begins so.
///
/// An index counts in CUDA's order, which is that of the PCI addresses, as here, only if CUDA_DEVICE_ORDER says so: how
/// many devices there are does not depend on it, as long as MIG divides all GPUs or none.
class VisibleDevicesList {
 public:
  VisibleDevicesList(const std::vector<Gpu>& gpus, std::string_view text) : gpus_(&gpus) {
    const std::string_view first = trimmed(text.substr(0, text.find(',')));
    is_by_uuid_ = first.starts_with("GPU-") || first.starts_with("MIG-");
    prefix_ = is_by_uuid_ ? first.substr(0, 4) : std::string_view{};
    if (first.empty()) return;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      if (!take(trimmed(text.substr(begin, end - begin)))) break;
      begin = end + 1;
    }
  }

  /// Of a GPU the number of its instance, or none.
  using Place = std::pair<std::size_t, std::optional<std::size_t>>;
  [[nodiscard]] const std::vector<Place>& places() const noexcept { return places_; }
  [[nodiscard]] const std::string& remark() const noexcept { return remark_; }

 private:
  [[nodiscard]] static std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
  }

  // Returns false where the list ends.
  [[nodiscard]] bool take(std::string_view entry) {
    const auto place = is_by_uuid_ ? place_of_uuid(entry) : place_of_index(entry);
    if (!place) {
      remark_ = compose("\"{}\" in it names none of them, and ends the list", entry);
      return false;
    }
    if (std::find(places_.begin(), places_.end(), *place) != places_.end()) {
      remark_ = compose("\"{}\" in it names one a second time, which hides all", entry);
      places_.clear();
      return false;
    }
    places_.push_back(*place);
    return true;
  }

  // Digits count up to whatever else there is, as with strtol.
  [[nodiscard]] std::optional<Place> place_of_index(std::string_view entry) const {
    const std::string text{entry};
    char* end = nullptr;
    const long index = std::strtol(text.c_str(), &end, 10);
    if (end == text.c_str() || index < 0 || static_cast<std::size_t>(index) >= gpus_->size()) return std::nullopt;
    return Place{static_cast<std::size_t>(index), std::nullopt};
  }

  [[nodiscard]] std::optional<Place> place_of_uuid(std::string_view entry) const {
    if (!entry.starts_with(prefix_)) return std::nullopt;
    std::vector<Place> found;
    for (std::size_t at = 0; at < gpus_->size(); ++at) {
      const Gpu& gpu = (*gpus_)[at];
      if (gpu.uuid.starts_with(entry)) found.emplace_back(at, std::nullopt);
      for (std::size_t part = 0; part < gpu.instances.size(); ++part) {
        const GpuInstance& instance = gpu.instances[part];
        if (instance.uuid.starts_with(entry) || instance.former_name == entry) found.emplace_back(at, part);
      }
    }
    return found.size() == 1 ? std::optional{found.front()} : std::nullopt;
  }

  const std::vector<Gpu>* gpus_;
  bool is_by_uuid_ = false;
  std::string_view prefix_{};
  std::vector<Place> places_{};
  std::string remark_{};
};

/// Returns what of the GPUs a process is shown by that value of the variable. Where an instance of a GPU is among them,
/// CUDA leaves out the GPUs that are not divided.
[[nodiscard]] inline VisibleDevices visible_devices(const std::vector<Gpu>& gpus,
                                                    const std::optional<std::string>& variable) {
  VisibleDevices visible;
  bool has_instances = false;
  const auto show = [&](const Gpu& gpu, std::optional<std::size_t> part) {
    if (!gpu.is_divided) visible.devices.push_back({.uuid = gpu.uuid});
    for (std::size_t at = 0; at < gpu.instances.size(); ++at) {
      if (part && *part != at) continue;
      has_instances = true;
      visible.devices.push_back({.uuid = gpu.instances[at].uuid, .is_instance = true});
    }
  };
  if (variable) {
    const VisibleDevicesList list{gpus, *variable};
    visible.remark = list.remark();
    for (const auto& [at, part] : list.places()) show(gpus[at], part);
  } else {
    for (const Gpu& gpu : gpus) show(gpu, std::nullopt);
  }
  if (has_instances) std::erase_if(visible.devices, [](const VisibleDevice& one) { return !one.is_instance; });
  return visible;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
