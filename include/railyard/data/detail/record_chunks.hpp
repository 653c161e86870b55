// SPDX-License-Identifier: MIT
// A text file piece by piece, each of whole records. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/number_text.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Reads a stream in pieces that a parser has cut at the end of a record; memory grows only with the longest record.
template <class Parser>
class RecordChunks {
 public:
  /// offset: where the stream is in its file. most: bytes of a record.
  RecordChunks(std::string file, std::unique_ptr<ByteStream> bytes, Parser parser, std::uint64_t offset,
               std::size_t most)
      : file_(std::move(file)),
        bytes_(std::move(bytes)),
        parser_(std::move(parser)),
        offset_(offset),
        most_(most),
        room_(room_for(*bytes_, usual_size)) {}

  /// Steps over what a file begins with: a byte order mark and the header, whose size is asked for.
  /// Throws: DataError if the file is no text.
  template <class HeaderSize>
  void skip_header(HeaderSize&& header_size) {
    fill();
    const std::string_view text{buffer_.data(), size_};
    if (const auto fault = fault_of_beginning(text, is_end_); !fault.empty()) {
      throw DataError{compose("{} cannot be read: {}", file_, fault)};
    }
    const std::size_t mark = text.starts_with(utf8_mark) ? utf8_mark.size() : 0;
    std::optional<std::size_t> size;
    while (!(size = header_size(buffer_.data() + mark, size_ - mark, is_end_))) grow();
    taken_ = mark + *size;
  }

  /// Goes on to the next piece, which has at least one record; false at the end.
  [[nodiscard]] bool next() {
    drop_taken();
    fill();
    while (size_ > 0) {
      taken_ = parser_.cut(buffer_.data(), size_, is_end_);
      if (parser_.records() > 0) return true;
      if (taken_ == 0) {
        grow();
      } else {
        drop_taken();
        fill();
      }
    }
    return false;
  }

  [[nodiscard]] Parser& parser() noexcept { return parser_; }
  /// As ByteStream::take_point(), up to the begin of the piece.
  [[nodiscard]] std::optional<StreamPoint> take_point() { return bytes_->take_point(offset_); }
  /// Where the piece begins in the file.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Where it ends.
  [[nodiscard]] std::uint64_t end() const noexcept { return offset_ + taken_; }

 private:
  // So much that text, separators and columns of a piece stay in the cache of a core.
  static constexpr std::size_t usual_size = std::size_t{256} << 10;

  void drop_taken() {
    if (taken_ == 0) return;
    std::memmove(buffer_.data(), buffer_.data() + taken_, size_ - taken_);
    offset_ += taken_;
    size_ -= std::exchange(taken_, 0);
  }
  void fill() {
    if (is_end_) return;
    buffer_.resize(room_ + 1 + text_padding);
    size_ += bytes_->read(buffer_.data() + size_, room_ - size_);
    is_end_ = size_ < room_;
    if (is_end_ && size_ > 0 && buffer_[size_ - 1] != '\n') buffer_[size_++] = '\n';
  }
  void grow() {
    if (size_ > most_) {
      throw DataError{
          compose("{}: the record at byte {} is longer than {} bytes, which .max_record_bytes allows: a quote "
                  "may be opened there that is never closed",
                  file_, offset_, most_)};
    }
    room_ *= 2;
    fill();
  }

  std::string file_;
  std::unique_ptr<ByteStream> bytes_;
  Parser parser_;
  std::uint64_t offset_;
  std::size_t most_;
  std::vector<char> buffer_{};
  std::size_t room_;
  std::size_t size_ = 0;
  std::size_t taken_ = 0;
  bool is_end_ = false;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
