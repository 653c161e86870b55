// SPDX-License-Identifier: MIT
// Whether the tests were compiled with a sanitizer, in the words of either compiler.
#pragma once

namespace railyard_test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif
#else
inline constexpr bool is_sanitized = false;
#endif

/// What of many repetitions is left with a sanitizer, which takes many times as long for each.
template <class Number>
[[nodiscard]] constexpr Number fewer(Number number) noexcept {
  return is_sanitized ? (number + 2) / 3 : number;
}

}  // namespace railyard_test
