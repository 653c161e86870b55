// SPDX-License-Identifier: MIT
// Which names the files of a checkpoint may have, and what they mean. Checkpoint room.
#pragma once

#include "railyard/checkpoint/detail/crc32c.hpp"
#include "railyard/checkpoint/detail/json.hpp"

#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view user_folder = "files/";

[[nodiscard]] inline bool has_control_characters(std::string_view text) noexcept {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '\x7F') return true;
  }
  return false;
}

/// Returns text as a message may show it.
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string shown{text};
  std::replace_if(
      shown.begin(), shown.end(),
      [](char c) {
        return has_control_characters({&c, 1});
      },
      '?');
  return shown;
}

/// Says why name cannot be that of a file or directory, or nothing if it can.
[[nodiscard]] inline std::string_view fault_of_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > 200) return "it is longer than 200 bytes";  // file systems end at 255, and something is appended
  if (name.find('/') != std::string_view::npos) return "it contains '/'";
  if (name == "." || name == "..") return "it does not name a file of its own";
  if (has_control_characters(name)) return "it contains control characters";
  if (!is_utf8(name)) return "it is not UTF-8";
  return {};
}

/// Says why a file of a checkpoint cannot have this name, or nothing if it can: one name, or more below "files/".
[[nodiscard]] inline std::string_view fault_of_path(std::string_view path) {
  if (!path.starts_with(user_folder)) return fault_of_name(path);
  if (path.size() > 2000) return "it is longer than 2000 bytes";
  for (;;) {
    const auto slash = path.find('/');
    if (const auto fault = fault_of_name(path.substr(0, slash)); !fault.empty()) return fault;
    if (slash == std::string_view::npos) return {};
    path.remove_prefix(slash + 1);
  }
}

/// Says why a part of the training cannot have this name, or nothing if it can.
[[nodiscard]] inline std::string_view fault_of_part(std::string_view name) {
  if (name.find(".rank-") != std::string_view::npos) return "it contains \".rank-\", by which files of ranks are told";
  return fault_of_name(name);
}

inline constexpr std::string_view preprocessor_prefix = "preprocessor.";

/// Returns the name of the part that holds what was learned of the samples of a dataset.
[[nodiscard]] inline std::string preprocessor_part(std::string_view dataset) {
  std::string name{preprocessor_prefix};
  for (const char c : dataset) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' || c == ' ';
    name += is_plain ? std::string{c} : compose("%{:02x}", static_cast<unsigned char>(c));
  }
  if (name.size() <= 150) return name;
  return compose("{}%{:08x}", name.substr(0, 100), crc32c(std::as_bytes(std::span{dataset})));
}

[[nodiscard]] inline std::string tensors_name(std::string_view part) { return compose("{}.safetensors", part); }
[[nodiscard]] inline std::string tensors_name(std::string_view part, int rank) {
  return compose("{}.rank-{}.safetensors", part, rank);
}
inline constexpr std::string_view state_name = "state.json";
[[nodiscard]] inline std::string state_name_of(int rank) { return compose("state.rank-{}.json", rank); }

/// Returns the number that stands between prefix and suffix, or nothing if name is not made like that.
template <class T>
[[nodiscard]] std::optional<T> number_between(std::string_view prefix, std::string_view name, std::string_view suffix) {
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  T number{};
  const auto [stopped, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (name.empty() || name.front() == '-' || error != std::errc{} || stopped != name.data() + name.size()) return {};
  return number;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
