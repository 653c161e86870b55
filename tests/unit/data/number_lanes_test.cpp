// SPDX-License-Identifier: MIT
#include "railyard/data/detail/number_lanes.hpp"

#include "railyard/data/detail/number_fours.hpp"

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

// Each number of a column, of any length, is read as the standard function reads it, or left to it.
TEST_CASE("read_by_fours: reads numbers as the standard function does, and no text that is none") {
  if (!ry::detail::has_number_fours()) return;
  std::mt19937_64 random{4};
  std::uint64_t read = 0;
  constexpr std::uint64_t columns = 1000;
  for (std::uint64_t column = 0; column < columns; ++column) {
    std::vector<std::string> numbers(1 + random() % 64);
    std::vector<std::uint32_t> begins;
    std::vector<std::uint32_t> sizes;
    std::string text;
    for (std::string& number : numbers) {
      number = random_number(random);
      if (random() % 2 == 0) number = number.substr(0, random() % 16);
      begins.push_back(static_cast<std::uint32_t>(text.size()));
      sizes.push_back(static_cast<std::uint32_t>(number.size()));
      text += number + (random() % 2 == 0 ? "," : ".5");
    }
    text += std::string(ry::detail::text_padding, '9');
    std::vector<double> values(numbers.size());
    const std::uint64_t unread =
        ry::detail::read_by_fours(text.data(), begins.data(), sizes.data(), numbers.size(), values.data());
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      if ((unread >> at & 1U) != 0) continue;
      ++read;
      double expected = 0;
      const auto fault = ry::detail::parse_number(std::string_view{numbers[at]}, expected);
      const bool is_alike = fault == ry::detail::NumberFault::none &&
                            std::bit_cast<std::uint64_t>(values[at]) == std::bit_cast<std::uint64_t>(expected);
      if (!is_alike) FAIL(numbers[at]);
    }
  }
  CHECK(read > 8 * columns);
}

TEST_CASE("read_by_fours: keeps the ends of what it reads") {
  if (!ry::detail::has_number_fours()) return;
  struct Example {
    const char* number;
    bool is_read;
  };
  for (const auto& [number, is_read] : {Example{"0", true},
                                        {"-0", true},
                                        {"5.", true},
                                        {".5", true},
                                        {"-.5", true},
                                        {"123456789012345", true},
                                        {"-12345678901234", true},
                                        {"1234567890.1234", true},
                                        {".12345678901234", true},
                                        {"1234567890123456", false},
                                        {"", false},
                                        {"-", false},
                                        {".", false},
                                        {"-.", false},
                                        {"1.2.3", false},
                                        {"1-2", false},
                                        {"+1", false},
                                        {"1e5", false},
                                        {"1 ", false}}) {
    INFO(number);
    const std::string text = "7.25" + std::string{number} + std::string(ry::detail::text_padding, '9');
    const auto size = static_cast<std::uint32_t>(std::string_view{number}.size());
    // It does not depend on what its neighbours are.
    for (std::size_t place = 0; place < 4; ++place) {
      std::array<std::uint32_t, 4> begins{};
      std::array<std::uint32_t, 4> sizes{4, 4, 4, 4};
      begins[place] = 4;
      sizes[place] = size;
      std::array<double, 4> values{};
      const std::uint64_t unread =
          ry::detail::read_by_fours(text.data(), begins.data(), sizes.data(), 4, values.data());
      CHECK((unread & 15U) == (is_read ? 0U : std::uint64_t{1} << place));
      double expected = 0;
      if (is_read) CHECK(ry::detail::parse_number(std::string_view{number}, expected) == ry::detail::NumberFault::none);
      for (std::size_t at = 0; at < 4; ++at) {
        if (at == place && !is_read) continue;
        CHECK(std::bit_cast<std::uint64_t>(values[at]) == std::bit_cast<std::uint64_t>(at == place ? expected : 7.25));
      }
    }
  }
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
