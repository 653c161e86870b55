// SPDX-License-Identifier: MIT
#include "railyard/core/buffer.hpp"

#include "support/catch.hpp"

#include <array>
#include <type_traits>
#include <vector>

namespace ry = railyard;

TEST_CASE("buffer_of: views a vector's elements") {
  std::vector<double> values(7, 1.5);
  const ry::Buffer buffer = ry::buffer_of(values);
  CHECK(buffer.data == values.data());
  CHECK(buffer.count == 7);
  CHECK(buffer.dtype == ry::Dtype::f64);
  CHECK(buffer.size_bytes() == 56);
  CHECK(buffer.device == ry::Device{});
}

TEST_CASE("buffer_of: const elements give a buffer that cannot be written") {
  const std::vector<std::int64_t> values(3, 2);
  const auto buffer = ry::buffer_of(values);
  STATIC_REQUIRE(std::is_same_v<decltype(buffer), const ry::ConstBuffer>);
  CHECK(buffer.data == values.data());
  CHECK(buffer.size_bytes() == 24);
  STATIC_REQUIRE(!std::is_convertible_v<ry::ConstBuffer, ry::Buffer>);
}

TEST_CASE("buffer_of: takes an empty range") {
  std::array<float, 0> nothing{};
  CHECK(ry::buffer_of(nothing).count == 0);
  CHECK(ry::buffer_of(nothing).size_bytes() == 0);
}

TEST_CASE("buffer_of_value: views one element") {
  std::int32_t value = 4;
  const ry::Buffer buffer = ry::buffer_of_value(value);
  *static_cast<std::int32_t*>(buffer.data) = 5;
  CHECK(value == 5);
  CHECK(buffer.count == 1);
}
