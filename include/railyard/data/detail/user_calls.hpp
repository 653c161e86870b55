// SPDX-License-Identifier: MIT
// Calls of what a user gave, whose exceptions say where they came from. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

// Names the samples that something is wrong with, or one of them.
[[nodiscard]] inline std::string text_of_samples(std::uint64_t first, std::uint64_t last, std::size_t count) {
  if (count == 1) return compose("sample {}", first);
  if (last - first == count - 1) return compose("samples {} to {}", first, last);
  return compose("{} samples between {} and {}", count, first, last);
}
[[nodiscard]] inline std::string text_of_samples(std::span<const std::uint64_t> ids) {
  const auto [first, last] = std::minmax_element(ids.begin(), ids.end());
  return text_of_samples(*first, *last, ids.size());
}

// Calls what a user gave, and says where its exceptions came from. samples: gives the text of which sample it was.
template <class Call, std::invocable Text>
decltype(auto) call_user(Call&& call, const std::string& where, Text&& samples) {
  const auto say = [&](const char* what) { return DataError{compose("{}: {}: {}", where, samples(), what)}; };
  try {
    return call();
  } catch (const std::exception& failure) {
    throw say(failure.what());
  } catch (...) {
    throw say("an exception that is no std::exception");
  }
}
template <class Call>
decltype(auto) call_user(Call&& call, const std::string& where, std::uint64_t id) {
  return call_user(std::forward<Call>(call), where, [id] { return text_of_samples(id, id, 1); });
}

}  // namespace detail
}  // namespace railyard::inline v0_1
