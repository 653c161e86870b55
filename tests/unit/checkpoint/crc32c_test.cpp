// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/detail/crc32c.hpp"

#include "support/catch.hpp"

#include <numeric>
#include <string_view>
#include <vector>

namespace ry = railyard;

namespace {

std::vector<std::byte> counted_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24U);
  }
  return bytes;
}

}  // namespace

TEST_CASE("crc32c: gives the values of RFC 3720") {
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  std::vector<std::byte> rising(32);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::byte>(i);
  CHECK(ry::detail::crc32c(zeros) == 0x8A9136AAU);
  CHECK(ry::detail::crc32c(ones) == 0x62A8AB43U);
  CHECK(ry::detail::crc32c(rising) == 0x46DD794EU);
  const std::string_view digits = "123456789";
  CHECK(ry::detail::crc32c(std::as_bytes(std::span{digits})) == 0xE3069283U);
  CHECK(ry::detail::crc32c({}) == 0U);
}

TEST_CASE("crc32c: the instruction and the table agree for all lengths and places") {
  const auto bytes = counted_bytes(700'003);
  CHECK(ry::detail::crc32c_by_table(0xFFFFFFFFU, std::as_bytes(std::span{"123456789", 9})) == ~0xE3069283U);
  for (const std::size_t length : {1UL, 7UL, 8UL, 9UL, 98'303UL, 98'304UL, 98'305UL, 196'608UL, 699'990UL}) {
    for (std::size_t begin = 0; begin < 9; ++begin) {
      const auto part = std::span{bytes}.subspan(begin, length);
      CHECK(ry::detail::crc32c(part) == ~ry::detail::crc32c_by_table(0xFFFFFFFFU, part));
    }
  }
}

TEST_CASE("Crc32c: does not depend on how the bytes are cut") {
  const auto bytes = counted_bytes(300'000);
  ry::detail::Crc32c sum;
  for (std::size_t begin = 0, length = 1; begin < bytes.size(); begin += length, length = length * 3 + 1) {
    sum.add(std::span{bytes}.subspan(begin, std::min(length, bytes.size() - begin)));
  }
  CHECK(sum.value() == ry::detail::crc32c(bytes));
}
