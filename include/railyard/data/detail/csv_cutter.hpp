// SPDX-License-Identifier: MIT
// Cuts text into records of fields where separators are that are not within quotes. Data room.
#pragma once

#include "railyard/data/detail/byte_masks.hpp"
#include "railyard/data/detail/byte_places.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace railyard::inline v0_1 {
namespace detail {

/// Finds the fields of a text of less than 4 GiB, 64 characters at once, and keeps where the separators are.
class CsvCutter {
 public:
  /// Is one record: its fields are those that separators first, first + 1, ... end. No zeros at first: there is room
  /// for far more of them than a text has most often, and what is not written takes no memory.
  struct Record {
    std::uint32_t first;
    std::uint32_t num_fields;
  };

  /// quote: '\0' for none.
  CsvCutter(char delimiter, char quote) noexcept : delimiter_(delimiter), quote_(quote) {}

  /// Cuts the text, behind which 64 more characters can be read, into its whole records, blank lines left out. Returns
  /// how many characters they take. is_end: no text follows, and it ends with a line feed; then all of it is taken.
  std::size_t cut(const char* text, std::size_t size, bool is_end) {
    text_ = text;
    num_records_ = 0;
    misplaced_.clear();
    is_ascii_ = true;
    is_unclosed_ = false;
    reserve(size);
    separators_[0] = ~std::uint32_t{0};  // the text begins behind it
    std::array<PlaceMarks, blocks_at_once> marks;
    std::array<std::uint32_t, 64 * (blocks_at_once + 1)> lines;
    PlaceLists lists{separators_.get(), 1, lines.data(), 0};
    QuoteState quotes;
    std::size_t last = 0;  // the separator before the record that has begun
    for (std::size_t begin = 0; begin < size; begin += 64 * marks.size()) {
      const std::size_t blocks = std::min(marks.size(), (size - begin + 63) / 64);
      // What lies behind the text may say in vain that there is more than ASCII.
      is_ascii_ &= mark_bytes(text + begin, blocks, {delimiter_, '\n', quote_}, marks.data());
      if (const std::size_t rest = size - begin; rest < 64 * blocks) {
        for (std::uint64_t& mark : marks[blocks - 1]) mark &= lowest_bits(rest % 64);
      }
      if (quote_ != '\0') leave_quoted_out(begin, blocks, marks.data(), quotes);
      lists.num_lines = 0;
      note_places(marks.data(), blocks, begin, lists);
      for (std::size_t line = 0; line < lists.num_lines; ++line) add_record(last, lines[line]);
    }
    std::size_t taken = separators_[last] + std::uint32_t{1};
    if (is_end && taken < size) {
      is_unclosed_ = true;
      separators_[lists.num_places] = static_cast<std::uint32_t>(size - 1);
      add_record(last, lists.num_places);
      taken = size;
    }
    while (!misplaced_.empty() && misplaced_.back() >= taken) misplaced_.pop_back();
    return taken;
  }

  [[nodiscard]] std::span<const Record> records() const noexcept { return {records_.get(), num_records_}; }

  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept { return begin_of(records()[record].first); }
  /// Behind the line feed.
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept {
    const Record& place = records()[record];
    return separators_[place.first + place.num_fields] + std::size_t{1};
  }
  /// The text of a field, with its quotes; a carriage return before the line feed is no part of it.
  [[nodiscard]] std::string_view field(std::size_t record, std::size_t field) const noexcept {
    const Record& place = records()[record];
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
  /// Where the separators are; the first is before the text, at 2^32 - 1.
  [[nodiscard]] const std::uint32_t* separators() const noexcept { return separators_.get(); }

  /// Returns which record has the character, or the first behind it.
  [[nodiscard]] std::size_t record_of(std::size_t position) const noexcept {
    std::size_t low = 0;
    for (std::size_t high = num_records_; low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (end(middle) <= position)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

 private:
  // What is handed from block to block; of the bits, the lowest says what the last character before the block was.
  struct QuoteState {
    std::uint64_t quoted = 0;  // all bits or none
    std::uint64_t separator_or_quote = 1;
    std::uint64_t closing = 0;
  };

  [[nodiscard]] std::size_t begin_of(std::size_t separator) const noexcept {
    return separators_[separator] + std::uint32_t{1};  // wraps to 0 for the first
  }

  void reserve(std::size_t size) {
    if (size < room_) return;
    room_ = size + 1;
    // Separators are noted sixteen at a time. A record has a character and a line feed, and one more is written in
    // vain.
    separators_ = std::make_unique_for_overwrite<std::uint32_t[]>(room_ + 2 * 64);
    records_ = std::make_unique_for_overwrite<Record[]>(room_ / 2 + 2);
  }

  // Takes the delimiters and line feeds that are within quotes out of the marks, of those and quotes.
  void leave_quoted_out(std::size_t begin, std::size_t blocks, PlaceMarks* marks, QuoteState& state) {
    for (std::size_t block = 0; block < blocks; ++block) {
      auto& [delimiters, lines, quotes] = marks[block];
      if ((quotes | state.quoted | state.closing) == 0) continue;
      const std::uint64_t quoted = parity_before(quotes) ^ state.quoted;
      delimiters &= ~quoted;
      lines &= ~quoted;
      if (block > 0) state.separator_or_quote = last_bit_of_any(marks[block - 1]);
      check_quotes(begin + 64 * block, quotes, quoted, delimiters | lines, state);
    }
    state.separator_or_quote = last_bit_of_any(marks[blocks - 1]);
  }
  [[nodiscard]] static std::uint64_t last_bit_of_any(const PlaceMarks& marks) noexcept {
    return (marks[0] | marks[1] | marks[2]) >> 63;
  }

  // A quote opens at the beginning of a field or is the second of two, and closes at the end of one or is the first.
  void check_quotes(std::size_t block, std::uint64_t quotes, std::uint64_t quoted, std::uint64_t separators,
                    QuoteState& state) {
    const std::uint64_t opening = quotes & quoted;
    const std::uint64_t closing = quotes & ~quoted;
    const std::uint64_t behind = closing << 1 | state.closing;
    const std::uint64_t before_is_fine = (separators | quotes) << 1 | state.separator_or_quote;
    std::uint64_t wrong = (opening & ~before_is_fine) | (behind & ~(separators | quotes));
    for (; wrong != 0; wrong &= wrong - 1) {
      const std::size_t at = block + static_cast<std::size_t>(std::countr_zero(wrong));
      if (text_[at] != '\r' || text_[at + 1] != '\n') misplaced_.push_back(static_cast<std::uint32_t>(at));
    }
    state.quoted = (quoted >> 63) != 0 ? ~std::uint64_t{0} : 0;
    state.closing = closing >> 63;
  }

  // first, line: the separators before and at the end of it. first becomes that before the next.
  void add_record(std::size_t& first, std::size_t line) noexcept {
    const std::size_t num_fields = line - first;
    records_[num_records_] = {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(num_fields)};
    const bool is_blank = num_fields == 1 && field_at(first, true).empty();
    num_records_ += is_blank ? 0 : 1;
    first = line;
  }

  char delimiter_;
  char quote_;
  const char* text_ = nullptr;
  std::unique_ptr<std::uint32_t[]> separators_{};
  std::unique_ptr<Record[]> records_{};
  std::size_t room_ = 0;  // for a text of fewer characters
  std::size_t num_records_ = 0;
  std::vector<std::uint32_t> misplaced_{};
  bool is_ascii_ = true;
  bool is_unclosed_ = false;
};

/// So many bytes more than a copy has may be written behind it.
inline constexpr std::size_t copy_padding = 64;

/// Copies a text, behind which as much can be read. Most are short: whole strides are copied.
inline void copy_short(const char* from, std::size_t size, char* to) noexcept {
  constexpr std::size_t stride = 32;
  for (std::size_t part = 0; part < size; part += stride) std::memcpy(to + part, from + part, stride);
}

// The text between the quotes around it, in which each quote is one of a pair: the first of each is copied.
inline std::size_t copy_unpaired_anywhere(const char* from, std::size_t left, char quote, char* to) noexcept {
  std::size_t size = 0;
  while (left > 0) {
    const std::uint64_t quotes = Bytes64{from}.equal_to(quote) & lowest_bits(left);
    const bool is_pair = quotes != 0;  // of which the first is kept
    const std::size_t kept =
        is_pair ? static_cast<std::size_t>(std::countr_zero(quotes)) + 1 : std::min<std::size_t>(left, 64);
    copy_short(from, kept, to + size);
    size += kept;
    const std::size_t taken = std::min(left, kept + (is_pair ? 1 : 0));
    from += taken;
    left -= taken;
  }
  return size;
}

#if defined(__x86_64__)
[[gnu::target("avx512f,avx512bw,avx512vbmi2,popcnt")]] inline std::size_t copy_unpaired_vbmi2(const char* from,
                                                                                              std::size_t left,
                                                                                              char quote,
                                                                                              char* to) noexcept {
  std::size_t size = 0;
  std::uint64_t second = 0;  // all bits if the next quote is the second of a pair, or none
  for (;; from += 64, left -= 64) {
    const __m512i text = _mm512_loadu_si512(from);
    const std::uint64_t inside = lowest_bits(left);
    const std::uint64_t quotes = _mm512_cmpeq_epi8_mask(text, _mm512_set1_epi8(quote)) & inside;
    const std::uint64_t firsts = parity_before(quotes) ^ second;
    const std::uint64_t kept = inside & ~(quotes & ~firsts);
    _mm512_storeu_si512(to + size, _mm512_maskz_compress_epi8(kept, text));
    size += static_cast<std::size_t>(std::popcount(kept));
    if (left <= 64) return size;
    second = (firsts >> 63) != 0 ? ~std::uint64_t{0} : 0;
  }
}
#endif

/// Copies what a field within quotes says, which is no longer than the field. Behind the field 64 more characters can
/// be read. Returns how many characters that are.
inline std::size_t copy_unquoted(std::string_view field, char quote, char* to) noexcept {
  if (field.size() < 2) {
    std::copy(field.begin(), field.end(), to);
    return field.size();
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bw")) {
    return copy_unpaired_vbmi2(field.data() + 1, field.size() - 2, quote, to);
  }
#endif
  return copy_unpaired_anywhere(field.data() + 1, field.size() - 2, quote, to);
}

/// Returns what a field says that may be within quotes. Behind the field 64 more characters can be read.
[[nodiscard]] inline std::string unquoted(std::string_view field, char quote) {
  if (quote == '\0' || field.empty() || field.front() != quote) return std::string{field};
  std::string text(field.size() + copy_padding, '\0');
  text.resize(copy_unquoted(field, quote, text.data()));
  return text;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
