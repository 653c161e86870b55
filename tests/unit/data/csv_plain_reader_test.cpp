// SPDX-License-Identifier: MIT
// CsvSource against a reader that looks at one character after another, on files made at random.
#include "railyard/data/csv_source.hpp"

#include "support/catch.hpp"
#include "support/sanitizers.hpp"
#include "support/temporary_folder.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

using PlainRecord = std::vector<std::string>;

// Fields are what they say; of a line break, the carriage return is no part of the last one.
std::vector<PlainRecord> read_plainly(std::string_view text) {
  std::vector<PlainRecord> records;
  PlainRecord record;
  std::string field;
  bool is_quoted = false;
  bool was_quoted = false;
  const auto end_field = [&] {
    record.push_back(std::exchange(field, {}));
    was_quoted = false;
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char character = text[at];
    if (is_quoted) {
      if (character != '"') {
        field += character;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        field += text[++at];
      } else {
        is_quoted = false;
      }
    } else if (character == '"') {
      is_quoted = was_quoted = true;
    } else if (character == ',') {
      end_field();
    } else if (character == '\n') {
      if (!was_quoted && field.ends_with('\r')) field.pop_back();
      if (was_quoted && field.ends_with('\r') && at > 0 && text[at - 1] == '\r') field.pop_back();
      const bool is_blank = record.empty() && field.empty() && !was_quoted;
      end_field();
      if (!is_blank) records.push_back(record);
      record.clear();
    } else {
      field += character;
    }
  }
  return records;
}

class CsvMaker {
 public:
  explicit CsvMaker(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool once_in(std::uint64_t times) { return below(times) == 0; }

  std::string text() {
    static constexpr std::array<std::string_view, 12> pieces{"a",    "bc", "def ", ",", "\n",       "\"",
                                                             "\r\n", "\r", ".",    "é", "12345678", "-"};
    std::string made;
    for (std::uint64_t left = once_in(20) ? below(60) : below(6); left > 0; --left)
      made += pieces[below(pieces.size())];
    return made.find_first_of(",\n\"\r") != std::string::npos || once_in(8) ? quoted(made) : made;
  }
  std::string integer(std::uint64_t most_digits) {
    std::string made = once_in(2) ? "-" : "";
    for (std::uint64_t left = 1 + below(most_digits); left > 0; --left) made += digit();
    return perhaps_quoted(made);
  }
  std::string number() {
    if (once_in(12)) return "";
    std::string made = once_in(2) ? "-" : "";
    const std::uint64_t whole = below(once_in(8) ? 18 : 5);
    for (std::uint64_t left = whole; left > 0; --left) made += digit();
    const std::uint64_t fraction = whole == 0 ? 1 + below(18) : below(12);
    if (fraction > 0 || once_in(4)) made += '.';
    for (std::uint64_t left = fraction; left > 0; --left) made += digit();
    if (once_in(6)) made += (once_in(2) ? "e-" : "E+") + std::string{digit(), digit()};
    return perhaps_quoted(made);
  }
  std::string boolean() { return once_in(2) ? "true" : "false"; }
  std::string line_end() { return once_in(3) ? "\r\n" : "\n"; }

 private:
  static std::string quoted(std::string_view text) {
    std::string made{'"'};
    for (const char character : text) made += character == '"' ? std::string(2, '"') : std::string{character};
    return made + '"';
  }
  std::string perhaps_quoted(const std::string& text) { return once_in(30) ? quoted(text) : text; }
  char digit() { return static_cast<char>('0' + below(10)); }

  std::mt19937_64 random_;
};

template <class T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
}
template <class T>
std::optional<T> float_of(const std::string& text) {
  if (text.empty()) return std::numeric_limits<T>::quiet_NaN();
  if (const auto number = number_of<T>(text)) return number;
  const auto wide = number_of<double>(text);  // what is too near to zero for a float is a float all the same
  return wide && std::abs(*wide) < 1 ? std::optional{static_cast<T>(*wide)} : std::nullopt;
}

template <class T>
bool is_same_float(T left, T right) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return (std::isnan(left) && std::isnan(right)) || std::bit_cast<Bits>(left) == std::bit_cast<Bits>(right);
}

const std::vector<ry::Field>& plain_fields() {
  static const std::vector<ry::Field> fields{ry::Field::text("t"),  {"i", ry::Dtype::i64}, {"d", ry::Dtype::f64},
                                             {"f", ry::Dtype::f32}, {"n", ry::Dtype::i32}, {"b", ry::Dtype::boolean},
                                             {"e", ry::Dtype::f64}, ry::Field::text("u")};
  return fields;
}

std::string random_csv(CsvMaker& make, std::size_t size) {
  std::string csv = make.once_in(4) ? "\xEF\xBB\xBF" : "";
  csv += "t,i,d,f,n,b,e,u" + make.line_end();
  while (csv.size() < size) {
    if (make.once_in(40)) csv += make.line_end();
    std::vector<std::string> record{make.text(),     make.integer(19), make.number(), make.number(),
                                    make.integer(9), make.boolean(),   make.number(), make.text()};
    if (make.once_in(60)) record[1 + make.below(6)] = "x1";
    if (make.once_in(60)) record.resize(1 + make.below(7));
    if (make.once_in(60)) record.emplace_back("y");
    for (std::size_t at = 0; at < record.size(); ++at) csv += (at > 0 ? "," : "") + record[at];
    // A record of one field without a character is a blank line; whether there is an end to the last line is open.
    if (csv.size() < size || make.once_in(2)) csv += make.line_end();
  }
  return csv;
}

// Returns which record is not the sample that it should be, or how many there are.
std::optional<std::size_t> first_difference(const std::vector<PlainRecord>& records, const ry::CsvSource& source,
                                            std::uint64_t& num_damaged) {
  const auto reader = source.open(0);
  ry::Block block;
  std::size_t at = 0;
  for (std::size_t record = 0; record < records.size(); ++record) {
    const PlainRecord& fields = records[record];
    const bool is_whole = fields.size() == plain_fields().size();
    const auto i = is_whole ? number_of<std::int64_t>(fields[1]) : std::nullopt;
    const auto d = is_whole ? float_of<double>(fields[2]) : std::nullopt;
    const auto f = is_whole ? float_of<float>(fields[3]) : std::nullopt;
    const auto n = is_whole ? number_of<std::int32_t>(fields[4]) : std::nullopt;
    const bool has_truth = is_whole && (fields[5] == "true" || fields[5] == "false");
    const auto e = is_whole ? float_of<double>(fields[6]) : std::nullopt;
    if (!i || !d || !f || !n || !has_truth || !e) {
      ++num_damaged;
      continue;
    }
    if (at == block.rows()) {
      block = reader->next(1 << 20);
      at = 0;
    }
    if (block.empty()) return record;
    const bool is_same = block.column("t").text(at) == fields[0] && block.column("u").text(at) == fields[7] &&
                         block.column("i").values<std::int64_t>()[at] == *i &&
                         block.column("n").values<std::int32_t>()[at] == *n &&
                         is_same_float(block.column("d").values<double>()[at], *d) &&
                         is_same_float(block.column("f").values<float>()[at], *f) &&
                         is_same_float(block.column("e").values<double>()[at], *e) &&
                         (block.column("b").values<bool>()[at] != 0) == (fields[5] == "true");
    if (!is_same) return record;
    ++at;
  }
  return at == block.rows() && reader->next(1).empty() ? std::nullopt : std::optional{records.size()};
}

}  // namespace

TEST_CASE("CsvSource: reads random files as a reader does that looks at one character after another") {
  const TemporaryFolder folder;
  CsvMaker make{11};
  for (int file = 0; file < railyard_test::fewer(120); ++file) {
    // Most end anywhere in the first few blocks of 64 characters; some are longer than a piece.
    const std::string csv = random_csv(make, file % 20 == 19 ? 600'000 : 40 + make.below(4000));
    std::string text = csv.substr(csv.starts_with("\xEF\xBB\xBF") ? 3 : 0);
    if (!text.ends_with('\n')) text += '\n';
    std::vector<PlainRecord> records = read_plainly(text);
    records.erase(records.begin());
    const ry::CsvSource source{folder.write("random.csv", csv),
                               {.fields = plain_fields(), .on_error = ry::OnError::skip()}};
    std::uint64_t num_damaged = 0;
    const auto difference = first_difference(records, source, num_damaged);
    if (difference) FAIL("file " << file << ", record " << *difference << " of " << records.size());
    CHECK(source.skipped() == num_damaged);
    CHECK(source.count() == records.size() - num_damaged);
  }
}
