// SPDX-License-Identifier: MIT
// Where the bytes of one file of a checkpoint come from when it is written. Checkpoint room.
#pragma once

#include "railyard/core/version.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

namespace railyard::inline v0_1 {

namespace detail {

/// A file of so many bytes or more goes past the system's cache, if its memory begins at a multiple of the block, which
/// is that of nearly all disks or larger.
inline constexpr std::size_t smallest_direct_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t direct_block_bytes = 4096;

}  // namespace detail

/// Is a file that lies somewhere else than in a file system: so many bytes, and a function that reads any of them.
struct ReadPart {
  std::uint64_t size = 0;
  std::function<void(std::uint64_t begin, std::span<std::byte> to)> read{};
};

/// Is memory, or a function that brings any piece of what is not there: a piece at a time needs little memory.
class PartBytes {
 public:
  /// Returns so many bytes from `begin` on, which stay until the next call. What it throws ends the commit.
  using Read = std::function<std::span<const std::byte>(std::size_t begin, std::size_t size)>;

  PartBytes() = default;
  /// Takes bytes in memory, which must stay as they are until the commit is over.
  template <std::convertible_to<std::span<const std::byte>> Bytes>
  PartBytes(const Bytes& bytes) : bytes_(bytes), size_(bytes_.size()) {}
  /// Has them read when they are written, once or, where writing fails, more often.
  PartBytes(std::size_t size, Read read) : size_(size), read_(std::move(read)) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns a piece, which stays until the next call. Throws: what reading throws.
  [[nodiscard]] std::span<const std::byte> read(std::size_t begin, std::size_t size) const {
    return read_ ? read_(begin, size) : bytes_.subspan(begin, size);
  }

 private:
  std::span<const std::byte> bytes_{};
  std::size_t size_ = 0;
  Read read_{};
};

}  // namespace railyard::inline v0_1
