// SPDX-License-Identifier: MIT
#include "railyard/core/dtype.hpp"

#include "support/catch.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ry = railyard;

static_assert(ry::dtype_of<float> == ry::Dtype::f32);
static_assert(ry::dtype_of<long> == ry::Dtype::i64);
static_assert(ry::dtype_of<long long> == ry::Dtype::i64);
static_assert(ry::dtype_of<signed char> == ry::Dtype::i8);
static_assert(ry::dtype_of<unsigned char> == ry::Dtype::u8);
static_assert(ry::dtype_of<bool> == ry::Dtype::boolean);
static_assert(!ry::Element<unsigned>, "there is no unsigned 32-bit dtype: it must not pass for i32");
static_assert(!ry::Element<unsigned long>);
static_assert(!ry::Element<short>);

TEST_CASE("Dtype: size_of agrees with the C++ type behind it") {
  for (const ry::Dtype dtype : ry::all_dtypes) {
    CAPTURE(ry::name_of(dtype));
    CHECK(ry::visit_dtype(dtype, [](auto zero) { return sizeof zero; }) == ry::size_of(dtype));
    CHECK(ry::visit_dtype(dtype, [](auto zero) { return ry::dtype_of<decltype(zero)>; }) == dtype);
  }
}

TEST_CASE("Float16: every bit pattern survives the way through float") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    ry::Float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const ry::Float16 back{static_cast<float>(half)};
    const bool is_nan = (bits & 0x7FFFU) > 0x7C00U;
    if (is_nan) {
      if ((back.bits & 0x7FFFU) <= 0x7C00U) FAIL("NaN " << bits << " became " << back.bits);
    } else if (back.bits != half.bits) {
      FAIL(bits << " became " << back.bits);
    }
  }
}

#if defined(__FLT16_MAX__)
TEST_CASE("Float16: rounds as the compiler's own half type does") {
  // A prime stride walks through all exponents and through fractions on both sides of every tie.
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFULL; bits += 9973) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if ((bits & 0x7FFFFFFFULL) > 0x7F800000ULL) continue;
    const auto expected = static_cast<_Float16>(value);
    std::uint16_t expected_bits = 0;
    std::memcpy(&expected_bits, &expected, 2);
    if (ry::Float16{value}.bits != expected_bits) FAIL(value << " rounds to " << ry::Float16{value}.bits);
  }
}
#endif

TEST_CASE("Float16: rounds ties to even and overflows to infinity") {
  CHECK(ry::Float16{65504.0F}.bits == 0x7BFF);
  CHECK(ry::Float16{65519.0F}.bits == 0x7BFF);
  CHECK(ry::Float16{65520.0F}.bits == 0x7C00);
  CHECK(ry::Float16{2049.0F}.bits == ry::Float16{2048.0F}.bits);
  CHECK(ry::Float16{2051.0F}.bits == ry::Float16{2052.0F}.bits);
  CHECK(ry::Float16{std::ldexp(1.0F, -24)}.bits == 1);
  CHECK(ry::Float16{std::ldexp(1.0F, -25)}.bits == 0);
  CHECK(ry::Float16{-0.0F}.bits == 0x8000);
}

TEST_CASE("BFloat16: rounds ties to even and keeps NaN") {
  CHECK(ry::BFloat16{1.0F}.bits == 0x3F80);
  CHECK(ry::BFloat16{std::bit_cast<float>(0x3F808000U)}.bits == 0x3F80);
  CHECK(ry::BFloat16{std::bit_cast<float>(0x3F818000U)}.bits == 0x3F82);
  CHECK(ry::BFloat16{std::bit_cast<float>(0x3F808001U)}.bits == 0x3F81);
  CHECK(ry::BFloat16{std::numeric_limits<float>::infinity()}.bits == 0x7F80);
  CHECK((ry::BFloat16{std::bit_cast<float>(0x7F800001U)}.bits & 0x7FU) != 0);
  CHECK(static_cast<float>(ry::BFloat16{3.0F}) == 3.0F);
}
