// SPDX-License-Identifier: MIT
// A text file piece by piece, each of whole records. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/record_faults.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is what a file has that can be no record: one of many, or what follows a place from which it cannot be read.
struct DamagedPart {
  std::uint64_t offset = 0;  ///< of a record, or up to which it could be read
  std::string message{};
  bool is_record = false;
};

[[nodiscard]] inline std::string text_of_long_record(const std::string& file, std::uint64_t offset, std::size_t most) {
  return compose(
      "{}: the record at byte {} is longer than {} bytes, which .max_record_bytes allows: a quote may be "
      "opened there that is never closed",
      file, offset, most);
}

/// Says whether a record that was cut is longer, without its line feed, than records may be.
template <class Parser>
[[nodiscard]] bool is_long_record(const Parser& parser, std::size_t record, std::size_t most) noexcept {
  return parser.end(record) - parser.begin(record) - 1 > most;
}

/// Reads a stream in pieces that a parser has cut at the end of a record; memory grows only with the longest record.
template <class Parser>
class RecordChunks {
 public:
  /// offset: where the stream is in its file. most: bytes of a record.
  RecordChunks(std::string file, std::unique_ptr<ByteStream> bytes, Parser parser, RecordRules rules,
               std::uint64_t offset, std::size_t most)
      : file_(std::move(file)),
        bytes_(std::move(bytes)),
        parser_(std::move(parser)),
        rules_(rules),
        begin_(offset),
        offset_(offset),
        most_(most),
        room_(room_for(*bytes_, usual_size)) {}

  /// Steps over what a file begins with: a byte order mark and the header, whose size is asked for. Where the stream is
  /// damaged before the header ends, there is nothing behind it.
  /// Throws: DataError if the file is no text, or the header is longer than a record may be.
  template <class HeaderSize>
  void skip_header(HeaderSize&& header_size) {
    fill();
    const std::string_view text{buffer_.data(), size_};
    if (const auto fault = fault_of_beginning(text, is_end_ && !is_cut_); !fault.empty()) {
      throw DataError{compose("{} cannot be read: {}", file_, fault)};
    }
    const std::size_t mark = text.starts_with(utf8_mark) ? utf8_mark.size() : 0;
    std::optional<std::size_t> size;
    while (!(size = header_size(buffer_.data() + mark, size_ - mark, is_end_ && !is_cut_)) && !is_cut_) {
      if (size_ > most_) throw DataError{text_of_long_record(file_, offset_, most_)};
      grow();
    }
    taken_ = size ? mark + *size : size_;
  }

  /// Goes on to the next piece, which has at least one record; false at the end. leave_out(part): told of each damaged
  /// part up to where the piece begins; throws if it may not be left out.
  template <class LeaveOut>
  [[nodiscard]] bool next(LeaveOut&& leave_out) {
    advance();
    while (size_ > 0) {
      taken_ = parser_.cut(buffer_.data(), size_, is_end_ && !is_cut_);
      if (parser_.records() > 0) {
        leave_out_before(offset_, leave_out);
        return true;
      }
      if (taken_ == 0 && is_cut_) {
        taken_ = size_;  // of a record that does not end
      } else if (taken_ == 0 && size_ > most_) {
        leave_out(DamagedPart{offset_, text_of_long_record(file_, offset_, most_), true});
        skip_record();
      } else if (taken_ == 0) {
        grow();
        continue;
      }
      advance();
    }
    leave_out_before(std::numeric_limits<std::uint64_t>::max(), leave_out);
    return false;
  }

  /// Tells of those within the piece, of which no record is missing.
  template <class LeaveOut>
  void settle_piece(LeaveOut&& leave_out) {
    leave_out_before(end(), leave_out);
  }

  /// Whether any record of the piece may be longer than it may be.
  [[nodiscard]] bool may_have_long_records() const noexcept { return taken_ > most_; }
  /// Whether a record of the piece is longer than it may be: one that is not whole in a piece is left out before.
  [[nodiscard]] bool is_long_record(std::size_t record) const noexcept {
    return may_have_long_records() && detail::is_long_record(parser_, record, most_);
  }
  /// Calls a function with each that is.
  template <class Visit>
  void visit_long_records(const Visit& visit) const {
    if (!may_have_long_records()) return;
    for (std::size_t record = 0; record < parser_.records(); ++record) {
      if (is_long_record(record)) visit(record);
    }
  }
  /// Adds them to the faults.
  void find_long_records(RecordFaults& faults) const {
    visit_long_records([&](std::size_t record) {
      faults.add(record,
                 [&] { return compose("the record is longer than {} bytes, which .max_record_bytes allows", most_); });
    });
  }

  /// Gives the rest of the text as it is, part after part: of a multiple of 64 characters but for the last, and
  /// text_padding more can be read behind each.
  template <class Take>
  void take_rest(Take&& take) {
    advance();
    while (size_ > 0) {
      taken_ = is_end_ ? size_ : size_ / 64 * 64;
      if (taken_ == 0) {
        grow();
        continue;
      }
      take(buffer_.data(), taken_);
      advance();
    }
  }

  [[nodiscard]] Parser& parser() noexcept { return parser_; }
  [[nodiscard]] const Parser& parser() const noexcept { return parser_; }
  /// As ByteStream::take_point(), up to the begin of the piece.
  [[nodiscard]] std::optional<StreamPoint> take_point() { return bytes_->take_point(offset_); }
  /// Where the piece begins in the file.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Where it ends.
  [[nodiscard]] std::uint64_t end() const noexcept { return offset_ + taken_; }

 private:
  // So much that text, separators and columns of a piece stay in the cache of a core.
  static constexpr std::size_t usual_size = std::size_t{256} << 10;

  void advance() {
    drop_taken();
    fill();
  }
  void drop_taken() {
    if (taken_ == 0) return;
    std::memmove(buffer_.data(), buffer_.data() + taken_, size_ - taken_);
    offset_ += taken_;
    size_ -= std::exchange(taken_, 0);
  }
  void fill() {
    if (is_end_) return;
    buffer_.resize(room_ + 1 + text_padding);
    size_ += read_past_damage(*bytes_, buffer_.data() + size_, room_ - size_,
                              [this](const StreamDamage& damage, std::size_t got) { note(damage, got); });
    is_end_ = is_cut_ || size_ < room_;
    if (is_end_ && !is_cut_ && size_ > 0 && buffer_[size_ - 1] != '\n') buffer_[size_++] = '\n';
  }
  // To no more than shows that a record is too long.
  void grow() {
    room_ = most_ < 2 * room_ ? std::max(room_ + text_padding, most_ + 1) : 2 * room_;
    fill();
  }

  // got: bytes behind those that are in the buffer.
  void note(const StreamDamage& damage, std::size_t got) {
    const std::uint64_t place = offset_ + size_ + got;
    if (place > 0 && place == begin_ && !damage.is_over()) return;
    is_cut_ = is_cut_ || damage.is_over();
    damaged_.push_back({place, compose("{}; {} byte {} of what it holds{}", damage.what(),
                                       damage.is_over() ? "it could be read up to" : "it was read up to", place,
                                       damage.is_over() ? "" : ", which may not be what it was")});
  }
  template <class LeaveOut>
  void leave_out_before(std::uint64_t offset, LeaveOut& leave_out) {
    while (!damaged_.empty() && damaged_.front().offset <= offset) {
      leave_out(damaged_.front());
      damaged_.pop_front();
    }
  }

  // Goes past a record of which all is that the buffer holds: to where its rules say that it ends.
  void skip_record() {
    bool is_quoted = false;
    while (size_ > 0) {
      for (taken_ = 0; taken_ < size_;) {
        const char c = buffer_[taken_++];
        if (c == rules_.quote && c != '\0') is_quoted = !is_quoted;
        if (c == '\n' && !is_quoted) return;
      }
      advance();
    }
  }

  std::string file_;
  std::unique_ptr<ByteStream> bytes_;
  Parser parser_;
  RecordRules rules_;
  std::uint64_t begin_;  // who has come to there before was told of wrong check sums up to it
  std::uint64_t offset_;
  std::size_t most_;
  std::vector<char> buffer_{};
  std::size_t room_;
  std::size_t size_ = 0;
  std::size_t taken_ = 0;
  bool is_end_ = false;
  bool is_cut_ = false;                // and damage is the reason
  std::deque<DamagedPart> damaged_{};  // that nobody has been told of
};

}  // namespace detail
}  // namespace railyard::inline v0_1
