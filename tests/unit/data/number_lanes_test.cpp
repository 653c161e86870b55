// SPDX-License-Identifier: MIT
#include "railyard/data/detail/number_lanes.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace ry = railyard;

#if defined(__x86_64__)
namespace {

// Digits with or without a sign, a point and an exponent; some with a character that belongs to no number.
std::string random_number(std::mt19937_64& random) {
  std::string text(1 + random() % 21, '0');
  for (char& digit : text) digit = static_cast<char>('0' + random() % 10);
  if (random() % 4 != 0) text[random() % std::min<std::size_t>(text.size(), 1 + random() % 20)] = '.';
  if (random() % 16 == 0) text[random() % text.size()] = static_cast<char>(' ' + random() % 95);
  if (random() % 3 == 0) {
    text += random() % 2 == 0 ? "e-" : "E+";
    for (int digit = 0; digit < 2; ++digit) text += static_cast<char>('0' + random() % 10);
  }
  return random() % 2 == 0 ? "-" + text : text;
}

// A number is read as the standard function reads it, or left to it.
template <class T>
[[gnu::target("avx2,bmi,bmi2")]] bool is_read_alike(const std::string& number, std::uint64_t& read) {
  const std::string text = number + ",.5e+07" + std::string(ry::detail::text_padding, '9');
  T by_lanes{};
  const ry::detail::NumberLanes with;
  if (!ry::detail::parse_by_lanes(text.data(), number.size(), with, by_lanes)) return true;
  ++read;
  T expected{};
  if (ry::detail::parse_number(std::string_view{number}, expected) != ry::detail::NumberFault::none) return false;
  return std::bit_cast<std::array<char, sizeof(T)>>(by_lanes) == std::bit_cast<std::array<char, sizeof(T)>>(expected);
}

}  // namespace

TEST_CASE("parse_by_lanes: reads numbers as the standard function does, and no text that is none") {
  if (!ry::detail::has_number_lanes()) return;
  std::mt19937_64 random{3};
  std::uint64_t doubles = 0;
  std::uint64_t floats = 0;
  std::uint64_t integers = 0;
  constexpr std::uint64_t count = 20'000;
  for (std::uint64_t at = 0; at < count; ++at) {
    const std::string number = random_number(random);
    const bool is_alike = is_read_alike<double>(number, doubles) && is_read_alike<float>(number, floats) &&
                          is_read_alike<std::int64_t>(number, integers);
    if (!is_alike) FAIL(number);
  }
  CHECK(doubles > count / 2);
  CHECK(floats > count / 2);
  CHECK(integers > count / 20);
}

TEST_CASE("parse_by_lanes: keeps the ends of what it reads") {
  if (!ry::detail::has_number_lanes()) return;
  for (const char* const number : {"0",
                                   "-0",
                                   "-0.0",
                                   "5.",
                                   ".5",
                                   "9999999999999999",
                                   "1234567890123456",
                                   "0.1",
                                   "1e-05",
                                   "999.9999999999999999",
                                   "9999999999999999999",
                                   ".1234567890123456",
                                   "1.5E+22",
                                   "9007199254740993",
                                   "0.9007199254740993",
                                   "1000000000000000",
                                   "1000000000000001",
                                   "-0.1234567890123456789",
                                   "-9999999999999999999",
                                   "99999999999999999999",
                                   "-.5",
                                   "--5",
                                   "5-",
                                   "-e-05",
                                   "-123456789012345",
                                   "-1234567890123456",
                                   "16777217",
                                   "0.000000000000000000",
                                   "-",
                                   ".",
                                   "-.",
                                   "",
                                   "1.2.3",
                                   ".e-05",
                                   "e-05"}) {
    INFO(number);
    std::uint64_t read = 0;
    CHECK(is_read_alike<double>(number, read));
    CHECK(is_read_alike<float>(number, read));
    CHECK(is_read_alike<std::int64_t>(number, read));
  }
}
#endif
