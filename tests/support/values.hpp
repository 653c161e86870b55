// SPDX-License-Identifier: MIT
// Arrays of any dtype, and what collectives have to make of them, computed by plain loops in double.
#pragma once

#include "railyard/core/buffer.hpp"
#include "railyard/core/reduce_op.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace railyard_test {

namespace ry = railyard;

[[nodiscard]] inline bool is_floating(ry::Dtype dtype) {
  return dtype == ry::Dtype::f16 || dtype == ry::Dtype::bf16 || dtype == ry::Dtype::f32 || dtype == ry::Dtype::f64;
}

/// Is the value that a dtype stores for a number, as a double.
[[nodiscard]] inline double stored(ry::Dtype dtype, double number) {
  switch (dtype) {
    case ry::Dtype::f16:
      return static_cast<double>(static_cast<float>(ry::Float16{static_cast<float>(number)}));
    case ry::Dtype::bf16:
      return static_cast<double>(static_cast<float>(ry::BFloat16{static_cast<float>(number)}));
    case ry::Dtype::f32:
      return static_cast<double>(static_cast<float>(number));
    case ry::Dtype::boolean:
      return number != 0 ? 1 : 0;
    case ry::Dtype::i8:  // wraps
      return static_cast<double>(static_cast<std::int8_t>(static_cast<std::int64_t>(number)));
    case ry::Dtype::u8:
      return static_cast<double>(static_cast<std::uint8_t>(static_cast<std::int64_t>(number)));
    default:
      return number;
  }
}

/// What rank r has at place i: small whole numbers, so that sums and products of seven are exact in every dtype.
[[nodiscard]] inline double value_of(ry::Dtype dtype, int rank, std::size_t i, ry::ReduceOp op = ry::ReduceOp::sum) {
  const std::size_t mixed = static_cast<std::size_t>(rank) * 5 + i * 3 + i / 7;
  if (dtype == ry::Dtype::boolean) return (mixed % 5) < 2 ? 1 : 0;
  if (op == ry::ReduceOp::product) return static_cast<double>(1 + mixed % 2);
  if (dtype == ry::Dtype::i8) return static_cast<double>(mixed % 90) - 20;  // seven of them overflow
  return static_cast<double>(mixed % 23) - (dtype == ry::Dtype::u8 ? 0 : 7);
}

/// After so many places the values of a rank repeat: 7 times what 2, 5, 23 and 90 divide.
inline constexpr std::size_t value_period = 7 * 2070;

[[nodiscard]] inline double expected_reduction(ry::Dtype dtype, ry::ReduceOp op, int size, std::size_t i) {
  double result = value_of(dtype, 0, i, op);
  for (int rank = 1; rank < size; ++rank) {
    const double next = value_of(dtype, rank, i, op);
    switch (op) {
      case ry::ReduceOp::sum:
      case ry::ReduceOp::average:
        result += next;
        break;
      case ry::ReduceOp::min:
        result = std::min(result, next);
        break;
      case ry::ReduceOp::max:
        result = std::max(result, next);
        break;
      case ry::ReduceOp::product:
        result *= next;
        break;
    }
  }
  if (op == ry::ReduceOp::average) {
    // Half types are averaged in float, and rounded twice with that.
    result = dtype == ry::Dtype::f64 ? result / size
                                     : static_cast<double>(static_cast<float>(result) / static_cast<float>(size));
  }
  return stored(dtype, result);
}

/// Is an array of count elements of a dtype. Its memory is exactly as long as that: sanitizers see every excess.
class Values {
 public:
  Values(ry::Dtype dtype, std::size_t count) : dtype_(dtype), count_(count), bytes_(count * ry::size_of(dtype)) {}

  void fill(int rank, ry::ReduceOp op = ry::ReduceOp::sum) {
    const std::size_t different = std::min(count_, value_period);
    for (std::size_t i = 0; i < different; ++i) set(i, value_of(dtype_, rank, i, op));
    // The rest repeats them, and is copied: a sanitizer takes its time for every element.
    const std::size_t size = bytes_.size();
    for (std::size_t done = different * ry::size_of(dtype_); done < size;) {
      const std::size_t part = std::min(done, size - done);
      std::memcpy(bytes_.data() + done, bytes_.data(), part);
      done += part;
    }
  }

  [[nodiscard]] ry::Buffer buffer() { return {bytes_.empty() ? nullptr : bytes_.data(), count_, dtype_, {}}; }
  [[nodiscard]] ry::Dtype dtype() const { return dtype_; }
  [[nodiscard]] std::size_t count() const { return count_; }

  [[nodiscard]] double get(std::size_t i) const {
    return ry::visit_dtype(dtype_, [&](auto element) {
      std::memcpy(&element, bytes_.data() + i * sizeof element, sizeof element);
      if constexpr (std::is_arithmetic_v<decltype(element)>) {
        return static_cast<double>(element);
      } else {
        return static_cast<double>(static_cast<float>(element));
      }
    });
  }

 private:
  void set(std::size_t i, double value) {
    ry::visit_dtype(dtype_, [&](auto zero) {
      using T = decltype(zero);
      T element{};
      if constexpr (std::is_arithmetic_v<T>) {
        element = static_cast<T>(value);
      } else {
        element = T{static_cast<float>(value)};
      }
      std::memcpy(bytes_.data() + i * sizeof element, &element, sizeof element);
    });
  }

  ry::Dtype dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

}  // namespace railyard_test
