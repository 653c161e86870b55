// SPDX-License-Identifier: MIT
// What equal bits depend on beside the program: which CPU, which releases. Train room.
#pragma once

#include "railyard/core/value.hpp"
#include "railyard/core/version.hpp"

#include <fstream>
#include <string>
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
}

[[nodiscard]] inline std::string text_of_value(const Value& value) {
  return value.visit([](const auto& held) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(held)>, std::string>) {
      return held;
    } else {
      return std::to_string(held);
    }
  });
}

/// Says what differs, "threads 4 instead of 2, ..."; empty if nothing does that both know.
[[nodiscard]] inline std::string difference_of(const NamedValues& now, const NamedValues& then) {
  std::string text;
  for (const auto& [name, value] : now) {
    const Value* former = then.find(name);
    if (former == nullptr || *former == value) continue;
    text += (text.empty() ? "" : ", ") + name + " " + text_of_value(value) + " instead of " + text_of_value(*former);
  }
  return text;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
