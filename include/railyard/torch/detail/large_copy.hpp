// SPDX-License-Identifier: MIT
// Copies what is larger than caches as fast as memory goes. Torch room.
#pragma once

#include "railyard/core/version.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

#if defined(__x86_64__)

inline constexpr std::size_t copied_page_bytes = 4096;
inline constexpr std::size_t pages_at_once = 4;

/// Copies four pages side by side, past the caches: memory answers several places at once sooner than one after
/// another, and what is written is not read first. to: aligned to 64 bytes.
[[gnu::target("avx512f")]] inline void copy_pages_avx512(std::byte* to, const std::byte* from) noexcept {
  for (std::size_t at = 0; at < copied_page_bytes; at += 128) {
    for (std::size_t page = at; page < pages_at_once * copied_page_bytes; page += copied_page_bytes) {
      _mm_prefetch(reinterpret_cast<const char*>(from + page + 256), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(from + page + 320), _MM_HINT_T0);
      const __m512i first = _mm512_loadu_si512(from + page);
      const __m512i second = _mm512_loadu_si512(from + page + 64);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + page), first);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + page + 64), second);
    }
  }
}
/// The same with half of the width.
[[gnu::target("avx2")]] inline void copy_pages_avx2(std::byte* to, const std::byte* from) noexcept {
  for (std::size_t at = 0; at < copied_page_bytes; at += 64) {
    for (std::size_t page = at; page < pages_at_once * copied_page_bytes; page += copied_page_bytes) {
      _mm_prefetch(reinterpret_cast<const char*>(from + page + 256), _MM_HINT_T0);
      const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + page));
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + page + 32));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + page), first);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + page + 32), second);
    }
  }
}

/// Copies memory which does not overlap, and which nobody reads again soon where it goes to. From 256 KiB on that takes
/// two thirds of memcpy()'s time, which goes past the caches only with blocks as large as most of them together.
inline void copy_large(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  constexpr std::size_t smallest = std::size_t{256} << 10U;
  constexpr std::size_t step = pages_at_once * copied_page_bytes;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (size >= smallest && (has_avx512 || __builtin_cpu_supports("avx2") != 0)) {
    const std::size_t begin = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, begin);
    std::size_t at = begin;
    for (; at + step <= size; at += step) {
      has_avx512 ? copy_pages_avx512(to + at, from + at) : copy_pages_avx2(to + at, from + at);
    }
    _mm_sfence();
    to += at;
    from += at;
    size -= at;
  }
  if (size > 0) std::memcpy(to, from, size);
}

#else

inline void copy_large(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  if (size > 0) std::memcpy(to, from, size);
}

#endif

}  // namespace detail
}  // namespace railyard::inline v0_1
