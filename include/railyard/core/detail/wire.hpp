// SPDX-License-Identifier: MIT
// How messages between the processes of a run are put together and taken apart. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Appends plain values to a message. All ends are one program on machines of one kind: no byte order to settle.
class WireWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  void put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_rest(std::as_bytes(std::span{text}));
  }
  /// What is put last needs no length: the message's own says it.
  void put_rest(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::string text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  void reserve(std::size_t size) { bytes_.reserve(size); }

 private:
  std::vector<std::byte> bytes_{};
};

/// Takes a message apart; every length is checked before it is believed.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}
  explicit WireReader(std::string_view text) noexcept : rest_(std::as_bytes(std::span{text})) {}

  template <class T>
  [[nodiscard]] T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    std::memcpy(&value, take_bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  [[nodiscard]] std::string take_text() {
    const auto bytes = take_bytes(take<std::uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::span<const std::byte> take_rest() noexcept { return std::exchange(rest_, {}); }
  [[nodiscard]] bool is_empty() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> take_bytes(std::size_t count) {
    if (count > rest_.size()) {
      throw DataError{
          compose("a message between processes of a run is damaged: {} bytes were expected where {} are left; the "
                  "memory of its sender may have been overwritten",
                  count, rest_.size())};
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  std::span<const std::byte> rest_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
