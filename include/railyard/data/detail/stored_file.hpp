// SPDX-License-Identifier: MIT
// A file, or what a compressed file holds, that is read at any of its places. Data room.
#pragma once

#include "railyard/data/detail/byte_stream.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Holds a file open, or opens it for each read, or holds in memory what it was unpacked to. May be read by several
/// threads at once, and by forked processes.
class StoredFile {
 public:
  /// is_kept: whether it stays open; a process may have only so many.
  StoredFile(std::string path, bool is_kept) : path_(std::move(path)) {
    auto file = std::make_shared<const FileBytes>(path_);
    stamp_ = file->stamp();
    if (is_kept) file_ = std::move(file);
  }
  /// Takes bytes that are a part of the file.
  StoredFile(std::string path, std::vector<char> unpacked)
      : path_(std::move(path)), unpacked_(std::make_shared<const std::vector<char>>(std::move(unpacked))) {
    stamp_.size = unpacked_->size();
  }

  /// Unpacks a compressed file to memory. Throws: DataError if that takes more than most bytes.
  [[nodiscard]] static StoredFile unpack(const std::string& path, OpenBytes open, std::uint64_t most) {
    const auto stream = open(path);
    std::vector<char> bytes;
    std::size_t size = 0;
    for (std::size_t room = std::size_t{64} << 10; size == bytes.size(); room *= 2) {
      bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(room, most + 1)));
      size += stream->read(bytes.data() + size, bytes.size() - size);
      if (size > most) {
        throw DataError{
            compose("{} holds more than the {} bytes that .max_unpacked_bytes allows: unpack it first, or "
                    "allow more if you trust it",
                    path, most)};
      }
    }
    bytes.resize(size);
    return {path, std::move(bytes)};
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return stamp_.size; }

  void read(std::uint64_t offset, void* to, std::size_t size) const {
    if (size > stamp_.size || offset > stamp_.size - size) {
      fail(offset, compose("{} bytes should follow, and the file has {}: it was cut off", size, stamp_.size));
    }
    if (unpacked_ != nullptr) {
      if (size > 0) std::memcpy(to, unpacked_->data() + offset, size);
    } else if (read_file(offset, static_cast<char*>(to), size) != size) {
      fail_changed(offset);
    }
  }
  /// Throws: DataError if the file was written to since it was first read, so that what was read may be of either.
  void check_unchanged() const {
    if (file_ != nullptr && file_->stamp_now() != stamp_) fail_changed(0);
  }
  /// Reads a few bytes.
  template <std::size_t size>
  [[nodiscard]] std::array<unsigned char, size> read(std::uint64_t offset) const {
    std::array<unsigned char, size> bytes{};
    read(offset, bytes.data(), size);
    return bytes;
  }
  [[nodiscard]] std::string read_text(std::uint64_t offset, std::size_t size) const {
    std::string text(size <= stamp_.size ? size : 0, '\0');
    read(offset, text.data(), size);
    return text;
  }

  [[noreturn]] void fail(std::uint64_t offset, std::string_view what) const {
    throw DataError{compose("{}: byte {}{}: {}", path_, offset,
                            unpacked_ != nullptr ? std::string_view{" of what it holds"} : std::string_view{}, what)};
  }

 private:
  [[noreturn]] void fail_changed(std::uint64_t offset) const {
    fail(offset, "the file has changed since it was first read: make the source anew");
  }
  [[nodiscard]] std::size_t read_file(std::uint64_t offset, char* to, std::size_t size) const {
    if (file_ != nullptr) return file_->read_at(offset, to, size);
    const FileBytes file{path_};
    return file.stamp() == stamp_ ? file.read_at(offset, to, size) : 0;
  }

  std::string path_;
  FileStamp stamp_{};
  std::shared_ptr<const FileBytes> file_{};
  std::shared_ptr<const std::vector<char>> unpacked_{};
};

/// Returns the number that so many bytes are, the first one the lowest.
template <std::size_t size>
[[nodiscard]] constexpr std::uint64_t little_endian(const std::array<unsigned char, size>& bytes, std::size_t begin = 0,
                                                    std::size_t count = size) noexcept {
  std::uint64_t number = 0;
  for (std::size_t at = count; at-- > 0;) number = number << 8U | bytes[begin + at];
  return number;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
