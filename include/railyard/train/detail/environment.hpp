// SPDX-License-Identifier: MIT
// What equal bits depend on: which build of the program, which CPU, which releases. Train room.
#pragma once

#include "railyard/train/detail/build_id.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/value.hpp"
#include "railyard/core/version.hpp"

#include <fstream>
#include <string>
#include <string_view>
#include <type_traits>

#include <sys/utsname.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns the model of this host's CPUs and the widest vectors that they compute with, such as "AMD EPYC 7763, avx2":
/// libraries choose their kernels, and with them the order of sums, by that.
[[nodiscard]] inline std::string cpu_kind() {
  std::ifstream file{"/proc/cpuinfo"};
  std::string kind;
  for (std::string line; kind.empty() && std::getline(file, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) kind = line.substr(line.find(": ") + 2);
  }
  struct utsname system {};
  if (kind.empty() && ::uname(&system) == 0) kind = system.machine;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kind + ", avx512f";
  if (__builtin_cpu_supports("avx2")) return kind + ", avx2";
#endif
  return kind;
}

/// Adds what this room knows of it; rooms above know more.
inline void note_environment(NamedValues& environment) {
  environment.set("railyard", std::string{version});
  environment.set("cpu", cpu_kind());
  environment.set("build", program_build());
}

inline constexpr std::string_view option_prefix = "option ";

/// Adds what an optimizer was made with, out of its state. That alone can be compared with what the next program makes
/// it with: of the options that a checkpoint puts back, a schedule may have changed any.
inline void note_options(std::string_view part, const NamedValues& state, NamedValues& environment) {
  for (const auto& [name, value] : state) {
    if (!name.starts_with("groups.") || name.ends_with(".parameters")) continue;
    environment.set(compose("{}{}.{}", option_prefix, part, name), value);
  }
}

[[nodiscard]] inline std::string text_of_value(const Value& value) {
  return value.visit([](const auto& held) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(held)>, std::string>) {
      return held.empty() ? std::string{"none"} : held;
    } else {
      return compose("{}", held);
    }
  });
}

/// Says what differs of the options, or of all else.
[[nodiscard]] inline std::string difference_in(const NamedValues& now, const NamedValues& then, bool of_options) {
  std::string text;
  for (const auto& [name, value] : now) {
    const Value* former = then.find(name);
    if (name.starts_with(option_prefix) != of_options || former == nullptr || *former == value) continue;
    text += compose("{}{} {} instead of {}", text.empty() ? "" : ", ",
                    name.substr(of_options ? option_prefix.size() : 0), text_of_value(value), text_of_value(*former));
  }
  return text;
}
/// Says what differs, "threads 4 instead of 2, ..."; empty if nothing does that both know.
[[nodiscard]] inline std::string difference_of(const NamedValues& now, const NamedValues& then) {
  return difference_in(now, then, false);
}
/// The same of what optimizers were made with.
[[nodiscard]] inline std::string difference_of_options(const NamedValues& now, const NamedValues& then) {
  return difference_in(now, then, true);
}

}  // namespace detail
}  // namespace railyard::inline v0_1
