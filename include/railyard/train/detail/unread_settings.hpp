// SPDX-License-Identifier: MIT
// Refuses settings that would do nothing. Train room.
#pragma once

#include "railyard/train/scaling_config.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <string_view>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the name of the first field that is not as it is by default; nothing if all are.
[[nodiscard]] inline std::string_view first_set_field(const LaunchConfig& launch) {
  const LaunchConfig unset;
  if (launch.process != unset.process) return "process";
  if (launch.num_processes != unset.num_processes) return "num_processes";
  if (launch.leader != unset.leader) return "leader";
  if (launch.job != unset.job) return "job";
  if (launch.network != unset.network) return "network";
  if (launch.rendezvous != unset.rendezvous) return "rendezvous";
  if (launch.secret_file != unset.secret_file) return "secret_file";
  if (launch.tls != unset.tls) return "tls";
  return {};
}

/// scaling_name: of the policy; joins: whether its processes have to find each other.
/// Throws: ConfigError that names the first setting which nobody would look at.
inline void refuse_unread_settings(const ScalingConfig& scaling, std::string_view scaling_name, bool joins) {
  if (const std::string_view field = first_set_field(scaling.launch); !joins && !field.empty()) {
    throw ConfigError{
        compose("ScalingConfig::launch.{} is set, but {} makes all its workers itself, and has no other process to "
                "find: leave it out, or train with Launched",
                field, scaling_name)};
  }
  if (scaling.num_workers.is_elastic()) return;
  const bool has_interval = scaling.capacity_interval != ScalingConfig{}.capacity_interval;
  if (!scaling.capacity && !has_interval) return;
  throw ConfigError{compose(
      "ScalingConfig::{} is set, but ScalingConfig::num_workers is {}, whatever there is room for: leave it "
      "out, or give the least and the most, such as .num_workers = {{1, {}}}",
      scaling.capacity ? "capacity" : "capacity_interval", scaling.num_workers.max(), scaling.num_workers.max() + 1)};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
