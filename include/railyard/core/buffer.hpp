// SPDX-License-Identifier: MIT
// Memory as collectives see it: a pointer, a count, a dtype and a device. Core room.
#pragma once

#include "railyard/core/dtype.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

/// Names the kind of memory that a buffer lies in.
enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Names one device: the CPU, or one GPU by its index.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  friend constexpr bool operator==(const Device&, const Device&) noexcept = default;
};

/// Views elements that a collective writes. Owns nothing; contiguous; whoever passes it keeps the memory alive until
/// the operation is done. An empty buffer may have a null pointer.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;
  Device device{};

  /// Size in bytes.
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return count * size_of(dtype); }
};

/// Views elements that a collective only reads; see Buffer.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::f32;
  Device device{};

  constexpr ConstBuffer() noexcept = default;
  constexpr ConstBuffer(const void* data_, std::size_t count_, Dtype dtype_, Device device_ = {}) noexcept
      : data(data_), count(count_), dtype(dtype_), device(device_) {}
  constexpr ConstBuffer(const Buffer& buffer) noexcept  // a reader may always be given what a writer may use
      : data(buffer.data), count(buffer.count), dtype(buffer.dtype), device(buffer.device) {}

  /// Size in bytes.
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return count * size_of(dtype); }
};

/// Views the elements of a contiguous range (vector, array, span) on the CPU: a Buffer, or a ConstBuffer where the
/// elements are const. Example: worker.all_reduce(buffer_of(values), ReduceOp::sum);
template <std::ranges::contiguous_range Range>
requires Element<std::ranges::range_value_t<Range>>
[[nodiscard]] constexpr auto buffer_of(Range&& range) noexcept {
  constexpr Dtype dtype = dtype_of<std::ranges::range_value_t<Range>>;
  const std::size_t count = std::ranges::size(range);
  if constexpr (std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>) {
    return ConstBuffer{std::ranges::data(range), count, dtype};
  } else {
    return Buffer{std::ranges::data(range), count, dtype, {}};
  }
}

/// Refuses every other range, and says why.
template <std::ranges::range Range>
requires(!std::ranges::contiguous_range<Range> || !Element<std::ranges::range_value_t<Range>>)
    [[nodiscard]] constexpr Buffer buffer_of(Range&& /*range*/) noexcept {
  static_assert(Element<std::ranges::range_value_t<Range>>,
                "buffer_of: no collective knows elements of this type. They may be float, double, bool, std::int8_t, "
                "std::uint8_t, std::int32_t, std::int64_t, Float16 or BFloat16: convert the values to one of these");
  static_assert(
      std::ranges::contiguous_range<Range> || !Element<std::ranges::range_value_t<Range>>,
      "buffer_of: the elements of this range do not lie one beside the other in memory (std::vector<bool> "
      "packs them, std::list scatters them): copy them to a std::vector, of std::uint8_t in the place of bool");
  return {};
}

/// Views one value on the CPU.
template <Element T>
[[nodiscard]] constexpr Buffer buffer_of_value(T& value) noexcept {
  return {&value, 1, dtype_of<T>, {}};
}

}  // namespace railyard::inline v0_1
