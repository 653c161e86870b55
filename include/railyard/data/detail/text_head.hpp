// SPDX-License-Identifier: MIT
// The beginning of a text file: what decides on how the rest is read. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/number_text.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds text of a file from its beginning, without a byte order mark; more of it on demand.
class TextHead {
 public:
  /// Throws: DataError if the file begins as no text does.
  TextHead(std::string file, std::unique_ptr<ByteStream> bytes) : file_(std::move(file)), bytes_(std::move(bytes)) {
    fill(room_for(*bytes_, std::size_t{64} << 10));
    const std::string_view all{buffer_.data(), size_};
    if (const auto fault = fault_of_beginning(all, is_whole_); !fault.empty()) {
      throw DataError{compose("{} cannot be read: {}", file_, fault)};
    }
    if (all.starts_with(utf8_mark)) begin_ = utf8_mark.size();
    end_line();
  }

  /// text_padding characters behind it can be read.
  [[nodiscard]] const char* text() const noexcept { return buffer_.data() + begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_ - begin_; }
  /// Whether that is the whole file; then it ends with a line feed.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }

  /// Reads as much again. Throws: DataError if that would be more than most bytes.
  void grow(std::size_t most) {
    if (size_ > most) throw DataError{compose("{}: the first record is longer than {} bytes", file_, most)};
    fill(size_ * 2);
    end_line();
  }

 private:
  void fill(std::size_t size) {
    buffer_.resize(size + 1 + text_padding);
    size_ += bytes_->read(buffer_.data() + size_, size - size_);
    is_whole_ = size_ < size;
  }
  void end_line() {
    if (is_whole_ && size_ > begin_ && buffer_[size_ - 1] != '\n') buffer_[size_++] = '\n';
  }

  std::string file_;
  std::unique_ptr<ByteStream> bytes_;
  std::vector<char> buffer_{};
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
  bool is_whole_ = false;
};

/// Reads on until cut() finds so many records in what is there: least, and enough or 16 MiB of them.
template <class Cut>
void cut_head(TextHead& head, std::size_t least, std::size_t enough, std::size_t max_record_bytes, const Cut& cut) {
  constexpr std::size_t enough_bytes = std::size_t{16} << 20;
  while (true) {
    const std::size_t records = cut();
    const bool is_enough = records >= least && (records >= enough || head.size() >= enough_bytes);
    if (is_enough || head.is_whole()) return;
    head.grow(max_record_bytes);
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
