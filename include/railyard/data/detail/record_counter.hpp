// SPDX-License-Identifier: MIT
// Counts the records of a file and notes where some of them begin, without a look at what is in them. Data room.
#pragma once

#include "railyard/data/detail/byte_masks.hpp"
#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/file_index.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Says how text is divided into records: by line feeds that are not within quotes.
struct RecordRules {
  char quote = '\0';               ///< none
  bool has_blank_records = false;  ///< else lines with nothing on them are no records
};

/// Makes the index of a text that it sees piece by piece; all pieces but the last have a multiple of 64 characters, and
/// 64 more can be read behind each.
class RecordCounter {
 public:
  RecordCounter(RecordRules rules, std::uint64_t begin) : rules_(rules), at_(begin), line_(begin) {}

  void add(const char* text, std::size_t size) {
    std::array<Marks, blocks_at_once> marks;
    for (std::size_t begin = 0; begin < size; begin += 64 * marks.size()) {
      const std::size_t blocks = std::min(marks.size(), (size - begin + 63) / 64);
      mark_bytes(text + begin, blocks, {'\n', rules_.quote}, marks.data());
      for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t at = begin + 64 * block;
        add_block(text + at, std::min<std::size_t>(64, size - at), marks[block]);
      }
    }
  }

  /// Returns the index. The last record needs no line feed.
  [[nodiscard]] FileIndex finish(const FileStamp& stamp) {
    if (at_ > line_ && !is_blank(at_, last_)) index_.add_record(line_);
    return std::move(index_).finish(stamp, at_);
  }

 private:
  using Marks = ByteMarks<2>;

  // marks: of line feeds and quotes.
  void add_block(const char* text, std::size_t size, const Marks& marks) {
    std::uint64_t lines = marks[0] & lowest_bits(size);
    if (rules_.quote != '\0') {
      const std::uint64_t quotes = marks[1] & lowest_bits(size);
      if (quotes != 0 || is_quoted_) {
        const std::uint64_t quoted = parity_before(quotes) ^ (is_quoted_ ? ~std::uint64_t{0} : 0);
        is_quoted_ = (quoted >> 63) != 0;
        lines &= ~quoted;
      }
    }
    if (lines != 0) add_lines(text, lines);
    last_ = text[size - 1];
    at_ += size;
  }

  void add_lines(const char* text, std::uint64_t lines) {
    const auto num_lines = std::uint64_t{count_bits(lines)};
    const bool may_be_blank = (lines & (lines << 1 | lines << 2)) != 0 ||
                              at_ + static_cast<std::uint64_t>(std::countr_zero(lines)) <= line_ + 1;
    if (index_.is_far_from_next_place(num_lines, at_ + 64) && (rules_.has_blank_records || !may_be_blank)) {
      index_.add_records(num_lines);
      line_ = at_ + static_cast<std::uint64_t>(std::bit_width(lines));
      return;
    }
    for (; lines != 0; lines &= lines - 1) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(lines));
      if (!is_blank(at_ + bit, bit > 0 ? text[bit - 1] : last_)) index_.add_record(line_);
      line_ = at_ + bit + 1;
    }
  }

  [[nodiscard]] bool is_blank(std::uint64_t end, char before) const noexcept {
    return !rules_.has_blank_records && (end == line_ || (end == line_ + 1 && before == '\r'));
  }

  RecordRules rules_;
  FileIndexDraft index_{};
  std::uint64_t at_;    // where the next piece begins
  std::uint64_t line_;  // where the last line begins
  bool is_quoted_ = false;
  char last_ = '\n';
};

}  // namespace detail
}  // namespace railyard::inline v0_1
