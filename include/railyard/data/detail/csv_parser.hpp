// SPDX-License-Identifier: MIT
// Makes columns of CSV text, one column of many records at a time. Data room.
#pragma once

#include "railyard/data/detail/byte_masks.hpp"
#include "railyard/data/detail/csv_cutter.hpp"
#include "railyard/data/detail/csv_plan.hpp"
#include "railyard/data/detail/number_eights.hpp"
#include "railyard/data/detail/number_lanes.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/record_faults.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Parses pieces of CSV text: cut() one, then parse() it. Keeps its memory from piece to piece.
class CsvParser {
 public:
  explicit CsvParser(std::shared_ptr<const CsvPlan> plan)
      : plan_(std::move(plan)), cutter_(plan_->options.delimiter, plan_->options.quote) {}

  std::size_t cut(const char* text, std::size_t size, bool is_end) { return cutter_.cut(text, size, is_end); }
  [[nodiscard]] std::size_t records() const noexcept { return cutter_.records().size(); }
  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept { return cutter_.begin(record); }
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept { return cutter_.end(record); }

  /// Returns a column per field of the schema, of the records that are not in faults.
  [[nodiscard]] std::vector<Column> parse(RecordFaults& faults) {
    find_sound_records(faults);
    std::vector<Column> columns;
    columns.reserve(plan_->places.size());
    std::size_t num_damaged = 0;
    for (std::size_t at = 0; at < plan_->places.size(); ++at) {
      RecordFaults wrong = faults.alike();
      columns.push_back(read_column((*plan_->schema)[at], plan_->places[at], wrong));
      for (const std::size_t record : wrong.records()) {
        ++num_damaged;
        faults.add(record, [&] { return wrong.message(); });
      }
    }
    if (num_damaged > 0) {
      const auto rows = rows_without(faults.records());
      for (Column& column : columns) column = column.take(rows);
    }
    return columns;
  }

 private:
  // One column of the sound records: what it takes to find a cell's text.
  class Cells {
   public:
    Cells(const CsvCutter& cutter, const std::vector<std::uint32_t>& firsts, std::size_t column, bool is_last) noexcept
        : text_(cutter.text()),
          separators_(cutter.separators() + column),
          firsts_(firsts.data()),
          rows_(firsts.size()),
          is_last_(is_last) {}

    [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
    // Inline in any case: a call for each cell of text costs a twentieth of all parsing.
    [[nodiscard, gnu::always_inline]] std::string_view operator[](std::size_t row) const noexcept {
      const std::uint32_t* const separator = separators_ + firsts_[row];
      const std::uint32_t begin = separator[0] + 1;  // wraps to 0 for the first
      std::size_t size = separator[1] - begin;
      if (is_last_ && size > 0 && text_[begin + size - 1] == '\r') --size;
      return {text_ + begin, size};
    }
#if defined(__x86_64__)
    // Says where some of them are.
    void place(std::size_t row, std::size_t count, NumberPlaces& places) const noexcept {
      places.text = text_;
      for (std::size_t at = 0; at < count; ++at) {
        std::memcpy(&places.separators[at], separators_ + firsts_[row + at], sizeof places.separators[at]);
      }
      find_sizes(places, count);
      if (is_last_) leave_carriage_returns_out(count, places);
    }
#endif
    // Returns how many characters all of them have, or a few more.
    [[nodiscard]] std::size_t most_characters() const noexcept {
      std::size_t most = 0;
      for (std::size_t row = 0; row < rows_; ++row) {
        const std::uint32_t* const separator = separators_ + firsts_[row];
        most += std::uint32_t{separator[1] - separator[0] - 1};
      }
      return most;
    }

   private:
#if defined(__x86_64__)
    void leave_carriage_returns_out(std::size_t count, NumberPlaces& places) const noexcept {
      for (std::size_t at = 0; at < count; ++at) {
        const std::uint32_t is_one = places.sizes[at] > 0 && text_[places.ends[at] - 1] == '\r' ? 1 : 0;
        places.ends[at] -= is_one;
        places.sizes[at] -= is_one;
      }
    }
#endif

    const char* text_;
    const std::uint32_t* separators_;
    const std::uint32_t* firsts_;
    std::size_t rows_;
    bool is_last_;
  };

  void find_sound_records(RecordFaults& faults) {
    find_bad_text(faults);
    const std::size_t num_columns = plan_->header.size();
    const std::vector<std::size_t> bad = faults.records();
    auto next_bad = bad.begin();
    const auto all = cutter_.records();
    firsts_.resize(all.size());
    rows_.resize(all.size());
    std::size_t rows = 0;
    for (std::size_t record = 0; record < all.size(); ++record) {
      firsts_[rows] = all[record].first;
      rows_[rows] = static_cast<std::uint32_t>(record);
      if (next_bad != bad.end() && *next_bad == record) {
        ++next_bad;
      } else if (all[record].num_fields != num_columns) {
        faults.add(record, [&] { return describe_ragged(all[record].num_fields); });
      } else {
        ++rows;
      }
    }
    firsts_.resize(rows);
    rows_.resize(rows);
  }

  [[nodiscard]] std::string describe_ragged(std::size_t num_fields) const {
    const std::size_t expected = plan_->header.size();
    if (num_fields > expected) {
      return compose(
          "the record has {} fields, and there are {} columns: quote fields that have '{}' in them, or leave "
          "such records out by .on_error{}",
          num_fields, expected, std::string_view{&plan_->options.delimiter, 1}, plan_->hint);
    }
    return compose(
        "the record has {} fields of {}: it ends before column \"{}\": complete it, or leave such records "
        "out by .on_error",
        num_fields, expected, shown_text(plan_->header[num_fields]));
  }

  void find_bad_text(RecordFaults& faults) {
    if (records() == 0) return;
    if (cutter_.is_unclosed()) {
      faults.add(records() - 1, [] { return std::string{"a quote is opened that is never closed"}; });
    }
    for (const std::uint32_t at : cutter_.misplaced_quotes()) {
      const std::size_t record = cutter_.record_of(at);
      if (record == records() || at < begin(record)) continue;
      faults.add(record, [&] {
        return compose(
            "column \"{}\" has a quote that does not enclose the whole field: quote the field and double the "
            "quotes inside it, or set .quote to '\\0'",
            column_of(record, at));
      });
    }
    if (cutter_.is_ascii()) return;
    const std::string_view text{cutter_.text(), end(records() - 1)};
    for (std::size_t at = find_invalid_utf8(text, begin(0)); at < text.size();) {
      const std::size_t record = cutter_.record_of(at);
      if (at < begin(record)) {  // in what was left out
        at = find_invalid_utf8(text, begin(record));
        continue;
      }
      faults.add(record, [&] { return compose("column \"{}\" is not UTF-8 text", column_of(record, at)); });
      at = find_invalid_utf8(text, end(record));
    }
  }

  [[nodiscard]] std::string column_of(std::size_t record, std::size_t position) const {
    std::size_t field = 0;
    const std::size_t num_fields = cutter_.records()[record].num_fields;
    while (field + 1 < num_fields) {
      const std::string_view text = cutter_.field(record, field);
      if (position <= static_cast<std::size_t>(text.data() - cutter_.text()) + text.size()) break;
      ++field;
    }
    return field < plan_->header.size() ? shown_text(plan_->header[field]) : std::to_string(field);
  }

  [[nodiscard]] std::vector<std::size_t> rows_without(const std::vector<std::size_t>& records) const {
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (!std::binary_search(records.begin(), records.end(), rows_[row])) rows.push_back(row);
    }
    return rows;
  }

  [[nodiscard]] Column read_column(const Field& field, std::size_t place, RecordFaults& faults) const {
    const Cells cells{cutter_, firsts_, place, place + 1 == plan_->header.size()};
    if (field.is_text) return read_texts(cells);
    switch (field.dtype) {
      case Dtype::f32:
        return read_numbers<float>(cells, field, faults);
      case Dtype::f64:
        return read_numbers<double>(cells, field, faults);
      case Dtype::i8:
        return read_numbers<std::int8_t>(cells, field, faults);
      case Dtype::u8:
        return read_numbers<std::uint8_t>(cells, field, faults);
      case Dtype::i32:
        return read_numbers<std::int32_t>(cells, field, faults);
      case Dtype::i64:
        return read_numbers<std::int64_t>(cells, field, faults);
      default:
        return read_numbers<bool>(cells, field, faults);
    }
  }

  // What a column keeps of a T.
  template <class T>
  using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

  template <class T>
  [[nodiscard]] Column read_numbers(const Cells& cells, const Field& field, RecordFaults& faults) const {
    const auto values = std::make_shared_for_overwrite<Stored<T>[]>(cells.rows());
#if defined(__x86_64__)
    if constexpr (!std::is_same_v<T, bool>) {
      if (has_number_lanes() && !plan_->is_number_missing) {
        std::size_t done = 0;
        if constexpr (!std::is_same_v<T, float>) {  // a double may not be rounded again
          if (has_number_eights()) done = fill_by_eights<T>(cells, field, faults, values.get());
        }
        fill_by_lanes<T>(cells, done, field, faults, values.get());
        return as_column(values, cells.rows());
      }
    }
#endif
    fill_one_by_one<T>(cells, field, faults, values.get());
    return as_column(values, cells.rows());
  }

  // Cells of its own: no value that is written can change them.
  template <class T>
  void fill_one_by_one(const Cells cells, const Field& field, RecordFaults& faults, Stored<T>* values) const {
    for (std::size_t row = 0; row < cells.rows(); ++row) values[row] = read_number<T>(cells[row], row, field, faults);
  }

  template <class T>
  [[nodiscard]] static Column as_column(const std::shared_ptr<T[]>& values, std::size_t rows) {
    return Column{{values, reinterpret_cast<const std::byte*>(values.get())}, rows, sizeof(T)};
  }

#if defined(__x86_64__)
  // Returns how many rows it has filled: not all where many numbers of the column are of another shape.
  template <class T>
  [[nodiscard]] std::size_t fill_by_eights(const Cells cells, const Field& field, RecordFaults& faults,
                                           T* values) const {
    constexpr std::size_t most = NumberPlaces::most;
    NumberPlaces places;
    bool is_long = false;
    std::size_t first = 0;
    for (std::size_t num_unread = 0; first < cells.rows() && num_unread <= most / 8; first += most) {
      const std::size_t rows = std::min(most, cells.rows() - first);
      cells.place(first, rows, places);
      std::uint64_t unread = read_eights(is_long, places, rows, values + first);
      if (!is_long && count_bits(unread) > most / 8) {
        is_long = true;
        cells.place(first, rows, places);
        unread = read_eights(is_long, places, rows, values + first);
      }
      num_unread = 0;
      for (; unread != 0; unread &= unread - 1) {
        const std::size_t row = first + static_cast<std::size_t>(std::countr_zero(unread));
        const std::string_view text = cells[row];
        num_unread += text.empty() ? 0 : 1;
        values[row] = read_number<T>(text, row, field, faults);
      }
    }
    return std::min(first, cells.rows());
  }

  // Returns a bit for each row: whether it must be read by other means.
  template <class T>
  [[nodiscard]] static std::uint64_t read_eights(bool is_long, NumberPlaces& places, std::size_t rows, T* values) {
    using Parsed = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
    if constexpr (std::is_same_v<T, Parsed>) {
      return is_long ? read_by_eights<true>(places, rows, values) : read_by_eights<false>(places, rows, values);
    } else {
      std::array<Parsed, NumberPlaces::most> parsed;
      std::uint64_t unread = read_eights(is_long, places, rows, parsed.data());
      for (std::size_t row = 0; row < rows; ++row) {
        values[row] = static_cast<T>(parsed[row]);
        unread |= std::uint64_t{values[row] != parsed[row]} << row;
      }
      return unread;
    }
  }

  template <class T>
  [[gnu::target("avx2,bmi,bmi2")]] void fill_by_lanes(const Cells cells, std::size_t row, const Field& field,
                                                      RecordFaults& faults, T* values) const {
    const NumberLanes with;
    using Parsed = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
    for (; row < cells.rows(); ++row) {
      const std::string_view text = cells[row];
      Parsed parsed{};
      const bool is_read = parse_by_lanes(text.data(), text.size(), with, parsed);
      values[row] = static_cast<T>(parsed);
      if (!is_read || (!std::is_floating_point_v<T> && values[row] != parsed)) {
        values[row] = read_number<T>(text, row, field, faults);
      }
    }
  }
#endif

  template <class T>
  [[nodiscard]] Stored<T> read_number(std::string_view text, std::size_t row, const Field& field,
                                      RecordFaults& faults) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (text.empty() && plan_->is_empty_missing) return std::numeric_limits<T>::quiet_NaN();
    }
    T value{};
    if (plan_->is_number_missing || !read_fast(text, value)) value = read_slowly<T>(text, row, field, faults);
    return static_cast<Stored<T>>(value);
  }

  template <class T>
  static bool read_fast(std::string_view text, T& value) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
      // Which it is, is at random, and a branch would be mispredicted.
      const std::uint64_t word = load_eight(text.data()) & lowest_bits(8 * text.size());
      const bool is_true = word == load_eight("true\0\0\0");
      const bool is_false = word == load_eight("false\0\0");
      value = is_true;
      return is_true != is_false;
    } else if constexpr (std::is_floating_point_v<T>) {
      return parse_short(text.data(), text.size(), value);
    } else {
      std::int64_t wide = 0;
      const bool is_short = parse_short(text.data(), text.size(), wide);
      value = static_cast<T>(wide);
      return is_short && wide == value;
    }
  }

  template <class T>
  [[gnu::noinline]] T read_slowly(std::string_view field_text, std::size_t row, const Field& field,
                                  RecordFaults& faults) const {
    const std::string text = unquoted(field_text, plan_->options.quote);
    const std::string_view trimmed = trimmed_number(text);
    T value{};
    if (plan_->is_missing(trimmed)) {
      if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::quiet_NaN();
      faults.add(rows_[row], [&] {
        return compose(
            "column \"{}\" holds \"{}\", which stands for no number, and its type {} has none: give it the "
            "type f64 in .fields",
            shown_text(field.name), shown_text(text), name_of(field.dtype));
      });
      return value;
    }
    NumberFault fault = NumberFault::not_a_number;
    if constexpr (!std::is_same_v<T, bool>) fault = parse_number(trimmed, value);
    if (fault == NumberFault::none) return value;
    if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
      // Truths in a column of floats are there because others are missing.
      if (const auto truth = parse_boolean(trimmed)) return static_cast<T>(*truth);
      if (std::is_same_v<T, bool> && (trimmed == "0" || trimmed == "1")) return static_cast<T>(trimmed == "1");
    }
    faults.add(rows_[row], [&] {
      return compose("column \"{}\" holds \"{}\", which is {} {}", shown_text(field.name), shown_text(text),
                     fault == NumberFault::too_large ? "too large for" : "no", name_of(field.dtype));
    });
    return value;
  }

  [[nodiscard]] Column read_texts(const Cells cells) const {
    auto ends = std::make_shared<std::vector<std::uint64_t>>(cells.rows());
    const auto bytes = std::make_shared_for_overwrite<char[]>(cells.most_characters() + copy_padding);
    std::uint64_t* const end = ends->data();
    char* const to = bytes.get();
    const char quote = plan_->options.quote;
    std::size_t at = 0;
    for (std::size_t row = 0; row < cells.rows(); ++row) {
      const std::string_view text = cells[row];
      if (!text.empty() && text.front() == quote && quote != '\0') {
        at += copy_unquoted(text, quote, to + at);
      } else {
        copy_short(text.data(), text.size(), to + at);
        at += text.size();
      }
      end[row] = at;
    }
    return Column{{bytes, reinterpret_cast<const std::byte*>(to)}, std::move(ends)};
  }

  std::shared_ptr<const CsvPlan> plan_;
  CsvCutter cutter_;
  std::vector<std::uint32_t> firsts_{};  // the separators before the records that are sound
  std::vector<std::uint32_t> rows_{};    // which records those are
};

}  // namespace detail
}  // namespace railyard::inline v0_1
