// SPDX-License-Identifier: MIT
// The beginning of a text file: what decides on how the rest is read. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/number_text.hpp"
#include "railyard/data/on_error.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
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
    if (const auto fault = fault_of_beginning(all, is_whole_ && damage_.empty()); !fault.empty()) {
      throw DataError{compose("{} cannot be read: {}", file_, fault)};
    }
    if (all.starts_with(utf8_mark)) begin_ = utf8_mark.size();
    end_line();
  }

  /// What is wrong with the file, as far as it was read; empty if nothing. Of one that is cut short by that, the lines
  /// before are there.
  [[nodiscard]] const std::string& damage() const noexcept { return damage_; }

  /// text_padding characters behind it can be read.
  [[nodiscard]] const char* text() const noexcept { return buffer_.data() + begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_ - begin_; }
  /// Whether that is the whole file, as far as it can be read; then it ends with a line feed.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_; }

  /// Reads as much again, up to so many bytes in all, and at least one more.
  void grow(std::size_t most) {
    fill(std::max(size_ + 1, std::min(size_ * 2, most)));
    end_line();
  }
  [[nodiscard]] const std::string& file() const noexcept { return file_; }

 private:
  void fill(std::size_t size) {
    buffer_.resize(size + 1 + text_padding);
    size_ += read_past_damage(*bytes_, buffer_.data() + size_, size - size_,
                              [this](const StreamDamage& damage, std::size_t /*got*/) {
                                if (damage_.empty()) damage_ = damage.what();
                                is_cut_ = is_cut_ || damage.is_over();
                              });
    is_whole_ = is_cut_ || size_ < size;
  }
  void end_line() {
    if (!is_whole_) return;
    if (is_cut_) {
      while (size_ > begin_ && buffer_[size_ - 1] != '\n') --size_;
    } else if (size_ > begin_ && buffer_[size_ - 1] != '\n') {
      buffer_[size_++] = '\n';
    }
  }

  std::string file_;
  std::unique_ptr<ByteStream> bytes_;
  std::vector<char> buffer_{};
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
  bool is_whole_ = false;
  bool is_cut_ = false;
  std::string damage_{};
};

/// Reads on until cut() finds so many records in what is there: least, and enough or 16 MiB of them. Throws: DataError
/// if the first ones are longer than records may be, and may not be left out.
template <class Cut>
void cut_head(TextHead& head, std::size_t least, std::size_t enough, std::size_t max_record_bytes, OnError on_error,
              const Cut& cut) {
  constexpr std::size_t enough_bytes = std::size_t{16} << 20;
  while (true) {
    const std::size_t records = cut();
    const bool has_least = records >= least || (!on_error.stops_at_once() && head.size() / least > max_record_bytes);
    if (head.is_whole() || (has_least && (records >= enough || head.size() >= enough_bytes))) return;
    if (!has_least && head.size() / least > max_record_bytes) {
      throw DataError{compose("{}: the first record is longer than {} bytes", head.file(), max_record_bytes)};
    }
    const std::size_t most = std::min(max_record_bytes, enough_bytes << 10U);
    head.grow(has_least ? enough_bytes : least * (most + 1) + utf8_mark.size());
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
