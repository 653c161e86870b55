// SPDX-License-Identifier: MIT
#include "railyard/data/detail/number_eights.hpp"

#include "railyard/data/detail/number_text.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ry = railyard;

#if defined(__x86_64__)
namespace {

constexpr std::size_t most_numbers = ry::detail::NumberPlaces::most;

// Digits with or without a sign, a point and an exponent; some with a character that belongs to no number.
std::string number_at_random(std::mt19937_64& random) {
  std::string text(1 + random() % 21, '0');
  for (char& digit : text) digit = static_cast<char>('0' + random() % 10);
  if (random() % 4 != 0) text[random() % text.size()] = '.';
  if (random() % 8 == 0) text.insert(0, "0.");
  if (random() % 16 == 0) text[random() % text.size()] = static_cast<char>(' ' + random() % 95);
  if (random() % 3 == 0) text.resize(std::min<std::size_t>(text.size(), 1 + random() % 16));
  if (random() % 4 == 0) {
    text += random() % 2 == 0 ? "e-" : "E+";
    for (int digit = 0; digit < 2; ++digit) text += static_cast<char>('0' + random() % (digit == 0 ? 3 : 10));
  }
  if (random() % 64 == 0) text.clear();
  return random() % 2 == 0 ? "-" + text : text;
}

// A column of them in a text, in which the first is not near to the begin unless it is said to be.
struct NumberColumn {
  explicit NumberColumn(std::vector<std::string> texts, std::size_t before = 40) : numbers(std::move(texts)) {
    text.assign(before, '7');
    for (const std::string& number : numbers) {
      text += number;
      ends.push_back(static_cast<std::uint32_t>(text.size()));
      text += number.size() % 2 == 0 ? ",1" : ".5";
    }
    text += std::string(ry::detail::text_padding, '9');
  }

  template <bool is_long, class T>
  std::uint64_t read(std::vector<T>& values) const {
    ry::detail::NumberPlaces places;
    places.text = text.data();
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      places.ends[at] = ends[at];
      places.sizes[at] = static_cast<std::uint32_t>(numbers[at].size());
    }
    values.assign(numbers.size() + 1, T{77});
    const std::uint64_t unread = ry::detail::read_by_eights<is_long>(places, numbers.size(), values.data());
    CHECK(values.back() == T{77});  // nothing is written behind them
    if (numbers.size() < 64) CHECK(unread >> numbers.size() == 0);
    return unread;
  }

  std::vector<std::string> numbers;
  std::string text{};
  std::vector<std::uint32_t> ends{};
};

template <class T>
bool is_as_expected(const std::string& number, T value) {
  T expected{};
  if (ry::detail::parse_number(std::string_view{number}, expected) != ry::detail::NumberFault::none) return false;
  if (number.find_first_of("+ \t") == 0) return false;
  return std::bit_cast<std::uint64_t>(value) == std::bit_cast<std::uint64_t>(expected);
}

// Returns how many numbers of the column have been read, all of which are as the standard function reads them.
template <bool is_long, class T>
std::uint64_t check_column(const NumberColumn& column) {
  std::vector<T> values;
  const std::uint64_t unread = column.read<is_long>(values);
  for (std::size_t at = 0; at < column.numbers.size(); ++at) {
    if ((unread >> at & 1U) == 0 && !is_as_expected(column.numbers[at], values[at])) FAIL(column.numbers[at]);
  }
  return column.numbers.size() - static_cast<std::uint64_t>(std::popcount(unread));
}

// Whether a number is read, whatever its neighbours are, which are read as well.
template <bool is_long, class T>
void check_alone(const std::string& number, bool is_read) {
  INFO(number);
  for (std::size_t place = 0; place < 9; ++place) {
    std::vector<std::string> numbers(9, "725");
    numbers[place] = number;
    const NumberColumn column{numbers};
    std::vector<T> values;
    CHECK(column.read<is_long>(values) == (is_read ? 0U : std::uint64_t{1} << place));
    CHECK(check_column<is_long, T>(column) == (is_read ? 9 : 8));
  }
}

}  // namespace

TEST_CASE("read_by_eights: reads numbers as the standard function does, and no text that is none") {
  if (!ry::detail::has_number_eights()) return;
  std::mt19937_64 random{4};
  std::uint64_t doubles = 0;
  std::uint64_t long_doubles = 0;
  std::uint64_t integers = 0;
  std::uint64_t long_integers = 0;
  constexpr std::uint64_t columns = 2000;
  for (std::uint64_t at = 0; at < columns; ++at) {
    std::vector<std::string> numbers(1 + random() % most_numbers);
    for (std::string& number : numbers) number = number_at_random(random);
    const NumberColumn column{numbers, random() % 45};
    doubles += check_column<false, double>(column);
    long_doubles += check_column<true, double>(column);
    integers += check_column<false, std::int64_t>(column);
    long_integers += check_column<true, std::int64_t>(column);
  }
  CHECK(doubles > 12 * columns);
  CHECK(long_doubles > 20 * columns);
  CHECK(integers > 3 * columns);
  CHECK(long_integers > integers);
}

// The shortest texts of doubles that are near to what lies between two of them are the hardest to round.
TEST_CASE("read_by_eights: rounds numbers of many digits as the standard function does") {
  if (!ry::detail::has_number_eights()) return;
  std::mt19937_64 random{5};
  std::uint64_t read = 0;
  constexpr std::uint64_t columns = 2000;
  for (std::uint64_t at = 0; at < columns; ++at) {
    std::vector<std::string> numbers(most_numbers);
    for (std::string& number : numbers) {
      const double scale = ry::detail::exact_tens[random() % 18];
      const double value = static_cast<double>(random() >> 11U) * 0x1p-53 * (random() % 2 == 0 ? scale : 1 / scale);
      char digits[64];
      const auto format = random() % 4 == 0 ? std::chars_format::scientific : std::chars_format::fixed;
      const int precision = static_cast<int>(random() % 19);
      const auto [end, error] = random() % 2 == 0
                                    ? std::to_chars(digits, digits + sizeof digits, value, format)
                                    : std::to_chars(digits, digits + sizeof digits, value, format, precision);
      if (error == std::errc{}) number.assign(digits, end);
    }
    read += check_column<true, double>(NumberColumn{numbers});
  }
  CHECK(read > 40 * columns);
}

TEST_CASE("read_by_eights: keeps the ends of what it reads") {
  if (!ry::detail::has_number_eights()) return;
  for (const char* const number :
       {"0", "-0", "5.", ".5", "-.5", "123456789012345", "-12345678901234", "1234567890.1234", ".12345678901234",
        "1234567890123456", "123456789012345.", "-123456789012345"}) {
    check_alone<false, double>(number, true);
    check_alone<true, double>(number, true);
  }
  for (const char* const number : {"",
                                   "-",
                                   ".",
                                   "-.",
                                   "1.2.3",
                                   "1..",
                                   "1-2",
                                   "--1",
                                   "+1",
                                   "1e5",
                                   "1 ",
                                   " 1",
                                   "0x1",
                                   "1:2",
                                   "nan",
                                   "e-05",
                                   ".e-05",
                                   "-e-05",
                                   "123456789012345678901",
                                   "1e+100",
                                   "1e-5",
                                   "1f-05",
                                   "1e-0x",
                                   "1e--5",
                                   "1.2345678901234.6789",
                                   "1.23.5678901234567890"}) {
    check_alone<false, double>(number, false);
    check_alone<true, double>(number, false);
  }
  for (const char* const number : {"12345678901234567", "1.2345678901234567890", "-1234567890123456.7"}) {
    check_alone<false, double>(number, false);
  }
  for (const char* const number :
       {"1e-05", "1.e+05", ".5E-07", "-1.5e+16", "6.89319e-05", "1e+22", "1e-22", "0e+00", "-0.0e-10",
        "12345678901234568", "0.8012719391073349", "-0.13770886218166234", "123456789.0123456789", "9.007199254740993",
        "0.9007199254740993", "9219999999999999999", "-921999999999999999", "1234567890123456.7",
        "1.234567890123456e-05"}) {
    check_alone<true, double>(number, true);
  }
  // Too large to be exact on the way, or as near to one double as to the next.
  for (const char* const number : {"1e+23", "1e-23", "0.12e-21", "9220000000000000000", "9007199254740993",
                                   "90071992547409944", "9007199254740993e+01"}) {
    check_alone<true, double>(number, false);
  }
}

TEST_CASE("read_by_eights: keeps the ends of integers") {
  if (!ry::detail::has_number_eights()) return;
  for (const char* const number : {"0", "-0", "7", "-7", "1234567890123456", "-123456789012345"}) {
    check_alone<false, std::int64_t>(number, true);
    check_alone<true, std::int64_t>(number, true);
  }
  for (const char* const number :
       {"", "-", "1.5", "5.", "+1", "1-2", "--1", "1 ", "1e5", "123456789012345678901", "a"}) {
    check_alone<false, std::int64_t>(number, false);
    check_alone<true, std::int64_t>(number, false);
  }
  for (const char* const number : {"12345678901234567", "-1234567890123456789", "9219999999999999999"}) {
    check_alone<false, std::int64_t>(number, false);
    check_alone<true, std::int64_t>(number, true);
  }
  for (const char* const number : {"9220000000000000000", "9223372036854775808", "-9999999999999999999"}) {
    check_alone<true, std::int64_t>(number, false);
  }
}

TEST_CASE("read_by_eights: leaves to others what is too near to where the text begins") {
  if (!ry::detail::has_number_eights()) return;
  const NumberColumn column{std::vector<std::string>(10, "12.25"), 0};
  std::vector<double> values;
  CHECK(column.read<false>(values) == 0x1F);
  CHECK(check_column<false, double>(column) == 5);
  CHECK(check_column<true, double>(column) == 5);
}
#endif
