// SPDX-License-Identifier: MIT
// Cuts text into records of fields where separators are that are not within quotes. Data room.
#pragma once

#include "railyard/data/detail/byte_masks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Finds the fields of a text of less than 4 GiB, 64 characters at once, and keeps where the separators are.
class CsvCutter {
 public:
  /// Is one record: its fields are those that separators first, first + 1, ... end.
  struct Record {
    std::uint32_t first = 0;
    std::uint32_t num_fields = 0;
  };

  /// quote: '\0' for none.
  CsvCutter(char delimiter, char quote) noexcept : delimiter_(delimiter), quote_(quote) {}

  /// Cuts the text, behind which 64 more characters can be read, into its whole records, blank lines left out. Returns
  /// how many characters they take. is_end: no text follows, and it ends with a line feed; then all of it is taken.
  std::size_t cut(const char* text, std::size_t size, bool is_end) {
    text_ = text;
    records_.clear();
    misplaced_.clear();
    is_ascii_ = true;
    is_unclosed_ = false;
    if (separators_.size() < size + 2 * 64) separators_.resize(size + 2 * 64);
    separators_[0] = ~std::uint32_t{0};  // the text begins behind it
    State state;
    std::array<Marks, blocks_at_once> marks;
    for (std::size_t begin = 0; begin < size; begin += 64 * marks.size()) {
      const std::size_t blocks = std::min(marks.size(), (size - begin + 63) / 64);
      // What lies behind the text may say in vain that there is more than ASCII.
      is_ascii_ &= mark_bytes(text + begin, blocks, {delimiter_, '\n', quote_}, marks.data());
      for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t at = begin + 64 * block;
        cut_block(at, lowest_bits(size - at), marks[block], state);
      }
    }
    std::size_t taken = separators_[state.record] + std::uint32_t{1};
    if (is_end && taken < size) {
      is_unclosed_ = true;
      separators_[++state.count] = static_cast<std::uint32_t>(size - 1);
      add_record(state, state.count);
      taken = size;
    }
    while (!misplaced_.empty() && misplaced_.back() >= taken) misplaced_.pop_back();
    return taken;
  }

  [[nodiscard]] const std::vector<Record>& records() const noexcept { return records_; }

  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept { return begin_of(records_[record].first); }
  /// Behind the line feed.
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept {
    return separators_[records_[record].first + records_[record].num_fields] + std::size_t{1};
  }
  /// The text of a field, with its quotes; a carriage return before the line feed is no part of it.
  [[nodiscard]] std::string_view field(std::size_t record, std::size_t field) const noexcept {
    const Record& place = records_[record];
    return field_at(place.first + field, field + 1 == place.num_fields);
  }
  /// separator: the one before the field.
  [[nodiscard]] std::string_view field_at(std::size_t separator, bool is_last) const noexcept {
    const std::size_t begin = begin_of(separator);
    std::size_t size = separators_[separator + 1] - begin;
    if (is_last && size > 0 && text_[begin + size - 1] == '\r') --size;
    return {text_ + begin, size};
  }

  /// Where quotes are that do not enclose a whole field, ascending.
  [[nodiscard]] const std::vector<std::uint32_t>& misplaced_quotes() const noexcept { return misplaced_; }
  /// Whether the text ends within quotes, in the last record.
  [[nodiscard]] bool is_unclosed() const noexcept { return is_unclosed_; }
  [[nodiscard]] bool is_ascii() const noexcept { return is_ascii_; }
  [[nodiscard]] const char* text() const noexcept { return text_; }

  /// Returns which record has the character, or the first behind it.
  [[nodiscard]] std::size_t record_of(std::size_t position) const noexcept {
    std::size_t low = 0;
    for (std::size_t high = records_.size(); low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (end(middle) <= position)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

 private:
  using Marks = ByteMarks<3>;
  // What is handed from block to block; of the bits, the lowest says what the last character before the block was.
  struct State {
    std::size_t count = 0;     // separators
    std::size_t record = 0;    // the separator before the record that has begun
    std::uint64_t quoted = 0;  // all bits or none
    std::uint64_t separator = 1;
    std::uint64_t quote = 0;
    std::uint64_t closing = 0;
  };

  [[nodiscard]] std::size_t begin_of(std::size_t separator) const noexcept {
    return separators_[separator] + std::uint32_t{1};  // wraps to 0 for the first
  }

  // marks: of delimiters, line feeds and quotes.
  void cut_block(std::size_t block, std::uint64_t valid, const Marks& marks, State& state) {
    std::uint64_t delimiters = marks[0] & valid;
    std::uint64_t lines = marks[1] & valid;
    const std::uint64_t quotes = quote_ == '\0' ? 0 : marks[2] & valid;
    std::uint64_t quoted = 0;
    if ((quotes | state.quoted) != 0) {
      quoted = parity_before(quotes) ^ state.quoted;
      delimiters &= ~quoted;
      lines &= ~quoted;
    }
    const std::uint64_t separators = delimiters | lines;
    if ((quotes | state.closing) != 0) check_quotes(block, valid, quotes, quoted, separators, state);
    state.quoted = (quoted >> 63) != 0 ? ~std::uint64_t{0} : 0;
    state.separator = separators >> 63;
    state.quote = quotes >> 63;
    note_separators(block, separators, state.count + 1);
    for (; lines != 0; lines &= lines - 1) {
      const std::uint64_t before = (lines & (~lines + 1)) - 1;
      add_record(state, state.count + count_bits(separators & before) + 1);
    }
    state.count += count_bits(separators);
  }

  // Eight at a time, whether there are so many or not: what is too much is overwritten.
  void note_separators(std::size_t block, std::uint64_t separators, std::size_t at) noexcept {
    std::uint32_t* to = separators_.data() + at;
    const auto base = static_cast<std::uint32_t>(block);
    while (separators != 0) {
#pragma GCC unroll 8
      for (std::size_t next = 0; next < 8; ++next) {
        to[next] = base + static_cast<std::uint32_t>(std::countr_zero(separators));
        separators &= separators - 1;
      }
      to += 8;
    }
  }

  // A quote opens at the beginning of a field or is the second of two, and closes at the end of one or is the first.
  void check_quotes(std::size_t block, std::uint64_t valid, std::uint64_t quotes, std::uint64_t quoted,
                    std::uint64_t separators, State& state) {
    const std::uint64_t opening = quotes & quoted;
    const std::uint64_t closing = quotes & ~quoted;
    const std::uint64_t behind = closing << 1 | state.closing;
    const std::uint64_t before_is_fine = (separators | quotes) << 1 | state.separator | state.quote;
    std::uint64_t wrong = ((opening & ~before_is_fine) | (behind & ~(separators | quotes))) & valid;
    for (; wrong != 0; wrong &= wrong - 1) {
      const std::size_t at = block + static_cast<std::size_t>(std::countr_zero(wrong));
      if (text_[at] != '\r' || text_[at + 1] != '\n') misplaced_.push_back(static_cast<std::uint32_t>(at));
    }
    state.closing = closing >> 63;
  }

  void add_record(State& state, std::size_t line) {
    const std::size_t num_fields = line - state.record;
    const bool is_blank = num_fields == 1 && field_at(state.record, true).empty();
    if (!is_blank) {
      records_.push_back({static_cast<std::uint32_t>(state.record), static_cast<std::uint32_t>(num_fields)});
    }
    state.record = line;
  }

  char delimiter_;
  char quote_;
  const char* text_ = nullptr;
  std::vector<std::uint32_t> separators_{};
  std::vector<Record> records_{};
  std::vector<std::uint32_t> misplaced_{};
  bool is_ascii_ = true;
  bool is_unclosed_ = false;
};

/// Copies what a field within quotes says, which is no longer than the field. Returns how many characters that are.
inline std::size_t copy_unquoted(std::string_view field, char quote, char* to) noexcept {
  if (field.size() < 2) {
    std::copy(field.begin(), field.end(), to);
    return field.size();
  }
  std::size_t size = 0;
  for (std::size_t at = 1; at < field.size() - 1; ++at) {
    to[size++] = field[at];
    at += field[at] == quote ? 1 : 0;  // the second of two
  }
  return size;
}

/// Returns what a field says that may be within quotes.
[[nodiscard]] inline std::string unquoted(std::string_view field, char quote) {
  std::string text{field};
  if (quote != '\0' && !field.empty() && field.front() == quote) {
    text.resize(copy_unquoted(field, quote, text.data()));
  }
  return text;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
