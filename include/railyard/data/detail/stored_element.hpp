// SPDX-License-Identifier: MIT
// How numbers are stored in binary files, and what becomes of them in a column. Data room.
#pragma once

#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace railyard::inline v0_1 {
namespace detail {

/// Turns count stored elements into those of a column.
using DecodeElements = void (*)(const std::byte* from, std::size_t count, std::byte* to);

/// Says how an element is stored, and as what it comes into a column.
struct StoredElement {
  std::size_t size = 1;
  Dtype dtype = Dtype::u8;
  DecodeElements decode = nullptr;  ///< none: the bytes are those of the column
};

// Not by the value of From, which may be a bool of another byte than 0 or 1.
template <class From, class To, bool is_swapped>
void decode_elements(const std::byte* from, std::size_t count, std::byte* to) {
  for (std::size_t at = 0; at < count; ++at) {
    std::array<std::byte, sizeof(From)> bytes;
    std::memcpy(bytes.data(), from + at * sizeof(From), sizeof(From));
    if constexpr (is_swapped) std::reverse(bytes.begin(), bytes.end());
    const To value = static_cast<To>(std::bit_cast<From>(bytes));
    std::memcpy(to + at * sizeof(To), &value, sizeof(To));
  }
}

/// Describes elements of the type From that become those of the type To.
template <class From, class To = From>
[[nodiscard]] constexpr StoredElement stored(std::endian order) noexcept {
  static_assert(!std::is_same_v<From, bool>, "a stored bool is an std::uint8_t that becomes a bool");
  constexpr Dtype dtype = dtype_of<To>;
  if (sizeof(From) > 1 && order != std::endian::native) {
    return {sizeof(From), dtype, &decode_elements<From, To, true>};
  }
  if (std::is_same_v<From, To>) return {sizeof(From), dtype, nullptr};
  return {sizeof(From), dtype, &decode_elements<From, To, false>};
}

}  // namespace detail
}  // namespace railyard::inline v0_1
