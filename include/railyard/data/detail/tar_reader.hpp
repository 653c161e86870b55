// SPDX-License-Identifier: MIT
// The files in a tar archive, one after another. Data room.
// Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar, "Basic Tar Format".
#pragma once

#include "railyard/data/detail/byte_stream.hpp"
#include "railyard/data/detail/utf8.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the place of a file's content in an archive.
struct TarPlace {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Is a regular file in an archive, or a link.
struct TarMember {
  std::string name{};
  TarPlace place{};
  std::optional<std::string> link{};  ///< to which file, if it is one
};

/// Steps through an archive in the format of ustar, GNU or pax.
class TarReader {
 public:
  /// offset: where the stream is in the archive, at the begin of a header.
  TarReader(std::string path, std::unique_ptr<ByteStream> bytes, std::uint64_t offset = 0)
      : path_(std::move(path)), bytes_(std::move(bytes)), at_(offset) {}

  /// Goes on to the next regular file or link, past whatever is left of the one before; nothing at the end.
  /// Throws: DataError if the archive is damaged; then what follows cannot be found.
  [[nodiscard]] std::optional<TarMember> next() {
    Extension extension;
    skip(std::exchange(left_, 0));
    begin_ = at_;
    while (true) {
      const std::uint64_t begin = at_;
      if (!read_header()) return std::nullopt;
      const char type = header_[156];
      std::uint64_t size = read_number(124, 12);
      if (type == 'L' || type == 'K' || type == 'x') {
        read_extension(type, size, extension);
        continue;
      }
      if (extension.size) size = *extension.size;
      const bool has_no_data = type >= '1' && type <= '6';  // links, devices, folders
      left_ = has_no_data ? 0 : padded(size, begin);
      if (type == 'S' || extension.is_sparse) fail(begin, "it holds a sparse file: pack it without --sparse");
      const bool is_link = type == '1' || type == '2';
      if (is_link || type == '0' || type == '\0' || type == '7') {
        TarMember member{extension.name.empty() ? read_name() : std::move(extension.name), {at_, is_link ? 0 : size}};
        if (is_link) member.link = extension.link.empty() ? std::string{field(157, 100)} : std::move(extension.link);
        return member;
      }
      if (type != 'g') extension = {};  // this says nothing that matters here
      skip(std::exchange(left_, 0));
    }
  }

  /// Reads what the file holds that next() has found. Throws: DataError if the archive ends before that.
  [[nodiscard]] std::string read_content(const TarPlace& place) {
    std::string content = read_text(place.size);
    left_ -= place.size;
    return content;
  }

  /// Where a reader may begin that finds the file which next() has found.
  [[nodiscard]] std::uint64_t begin() const noexcept { return begin_; }
  /// As ByteStream::take_point(), up to there.
  [[nodiscard]] std::optional<StreamPoint> take_point() { return bytes_->take_point(begin_); }

  [[noreturn]] void fail(std::uint64_t offset, std::string_view what) const {
    throw DataError{compose("{}: byte {} of the archive: {}", path_, offset, what)};
  }

 private:
  static constexpr std::size_t block_size = 512;

  // What comes before a header, about the file that it stands for.
  struct Extension {
    std::string name{};
    std::string link{};
    std::optional<std::uint64_t> size{};
    bool is_sparse = false;
  };

  void read(char* to, std::size_t size) {
    const std::size_t got = bytes_->read(to, size);
    at_ += got;
    if (got < size) fail(at_, "it ends in the middle of a file: it was cut off");
  }
  [[nodiscard]] std::string read_text(std::uint64_t size) {
    const std::uint64_t first_part = std::clamp<std::uint64_t>(bytes_->left(), 1, std::uint64_t{1} << 20);
    std::string text;
    // Piece by piece: what a header says has cost nobody anything.
    while (text.size() < size) {
      const std::size_t had = text.size();
      text.resize(static_cast<std::size_t>(std::min(size, std::max<std::uint64_t>(2 * had, first_part))));
      read(text.data() + had, text.size() - had);
    }
    return text;
  }
  void skip(std::uint64_t size) {
    const std::uint64_t skipped = bytes_->skip(size);
    at_ += skipped;
    if (skipped < size) fail(at_, "it ends in the middle of a file: it was cut off");
  }
  [[nodiscard]] std::uint64_t padded(std::uint64_t size, std::uint64_t offset) const {
    if (size > std::uint64_t{1} << 62U) fail(offset, "a file is larger than any archive");
    return (size + block_size - 1) / block_size * block_size;
  }

  // False at the end: of the bytes, or blocks of zeros behind which no other archive begins.
  [[nodiscard]] bool read_header() {
    for (bool is_behind_end = false;; is_behind_end = true) {
      const std::uint64_t begin = at_;
      const std::size_t got = bytes_->read(header_.data(), header_.size());
      at_ += got;
      if (begin == 0) check_is_plain(got);
      if (got == 0) return false;
      const bool is_whole = got == header_.size();
      if (is_whole && std::all_of(header_.begin(), header_.end(), [](char c) { return c == 0; })) continue;
      if (is_behind_end) return is_whole && may_begin_another();
      if (!is_whole) fail(at_, "it ends in the middle of a header: it was cut off");
      if (!has_right_sum()) fail(begin, "no header is here, or a damaged one: its checksum is wrong");
      return true;
    }
  }
  void check_is_plain(std::size_t got) const {
    const std::string_view fault = fault_of_compression({header_.data(), got});
    if (!fault.empty()) throw DataError{compose("{} cannot be read: {}", path_, fault)};
  }
  // What follows the end may be anything.
  [[nodiscard]] bool may_begin_another() const {
    try {
      return has_right_sum();
    } catch (const DataError&) {
      return false;
    }
  }
  [[nodiscard]] bool has_right_sum() const {
    const auto sum_of = [&](auto value_of) {
      const auto add = [&](std::int64_t sum, char c) { return sum + value_of(c); };
      const std::int64_t before = std::accumulate(header_.begin(), header_.begin() + 148, std::int64_t{8 * ' '}, add);
      return std::accumulate(header_.begin() + 156, header_.end(), before, add);
    };
    // Some old programs add signed characters.
    const auto sum = static_cast<std::int64_t>(read_number(148, 8));
    return sum == sum_of([](char c) { return static_cast<unsigned char>(c); }) ||
           sum == sum_of([](char c) { return static_cast<signed char>(c); });
  }

  [[nodiscard]] std::string_view field(std::size_t begin, std::size_t size) const noexcept {
    const std::string_view all{header_.data() + begin, size};
    return all.substr(0, std::min(all.find('\0'), size));
  }
  // Octal digits, or bytes of a number behind one of 0x80.
  [[nodiscard]] std::uint64_t read_number(std::size_t begin, std::size_t size) const {
    std::uint64_t number = 0;
    if (header_[begin] == '\x80') {
      for (std::size_t at = begin + 1; at < begin + size; ++at) {
        if (number >> 56U != 0) fail(at_ - block_size, "a header has a number that is too large");
        number = number << 8U | static_cast<unsigned char>(header_[at]);
      }
      return number;
    }
    std::string_view digits = field(begin, size);
    digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
    digits = digits.substr(0, std::min(digits.find(' '), digits.size()));
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, 8);
    if (digits.empty() || (error == std::errc{} && end == digits.data() + digits.size())) return number;
    fail(at_ - block_size, "no header is here, or a damaged one: a number in it is none");
  }
  [[nodiscard]] std::string read_name() const {
    const std::string name{field(0, 100)};
    const std::string_view prefix = field(345, 155);
    const bool has_prefix = field(257, 6) == "ustar" && !prefix.empty();  // GNU's own format has other things there
    return has_prefix ? std::string{prefix} + "/" + name : name;
  }

  // A long name of GNU, or records of pax: "LENGTH KEY=VALUE\n", each as long as it says.
  void read_extension(char type, std::uint64_t size, Extension& extension) {
    constexpr std::uint64_t longest = std::uint64_t{1} << 20;
    const std::uint64_t begin = at_;
    if (size > longest) fail(begin, compose("a name or its like of {} bytes is too long", size));
    const std::uint64_t padding = padded(size, begin) - size;
    const std::string text = read_text(size);
    skip(padding);
    if (type != 'x') {
      (type == 'L' ? extension.name : extension.link) = text.substr(0, text.find('\0'));
      return;
    }
    for (std::string_view rest = text; !rest.empty();) {
      std::size_t length = 0;
      const auto [digits_end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
      const auto digits = static_cast<std::size_t>(digits_end - rest.data());
      const std::size_t equals = rest.find('=');
      if (error != std::errc{} || length > rest.size() || length < digits + 3 || rest[digits] != ' ' ||
          rest[length - 1] != '\n' || equals >= length) {
        fail(begin, "a record of the pax format is damaged");
      }
      add_record(rest.substr(digits + 1, equals - digits - 1), rest.substr(equals + 1, length - equals - 2), extension);
      rest.remove_prefix(length);
    }
  }
  void add_record(std::string_view key, std::string_view value, Extension& extension) const {
    if (key == "path") extension.name = value;
    if (key == "linkpath") extension.link = value;
    if (key.starts_with("GNU.sparse.")) extension.is_sparse = true;
    if (key != "size") return;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), extension.size.emplace());
    if (error != std::errc{} || end != value.data() + value.size()) {
      fail(at_, compose("the size \"{}\" in a record of the pax format is none", shown_text(value)));
    }
  }

  std::string path_;
  std::unique_ptr<ByteStream> bytes_;
  std::array<char, block_size> header_{};
  std::uint64_t at_;
  std::uint64_t begin_ = 0;  // of what next() has gone over
  std::uint64_t left_ = 0;   // of the file that was found, and what pads it
};

}  // namespace detail
}  // namespace railyard::inline v0_1
