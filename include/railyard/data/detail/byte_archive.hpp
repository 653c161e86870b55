// SPDX-License-Identifier: MIT
// Turns what preprocessors have learned into bytes and back. Data room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

static_assert(std::endian::native == std::endian::little, "the bytes of numbers are written as they are in memory");

template <class T>
concept PlainBytes = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Writes values one after the other. Own types list their members:
/// static void fields(auto& archive, auto& self) { archive(self.a, self.b); }
class ByteWriter {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  void append(const void* from, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }
  template <PlainBytes T>
  void write(const T& value) {
    append(&value, sizeof value);
  }
  void write(const std::string& text) {
    write(std::uint64_t{text.size()});
    append(text.data(), text.size());
  }
  template <class T>
  void write(const std::vector<T>& values) {
    write(std::uint64_t{values.size()});
    if constexpr (PlainBytes<T> && !std::is_same_v<T, bool>) {
      append(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) write(value);
    }
  }
  template <class Key, class T, class Less>
  void write(const std::map<Key, T, Less>& values) {
    write(std::uint64_t{values.size()});
    for (const auto& [key, value] : values) (*this)(key, value);
  }
  template <class... T>
  void write(const std::variant<T...>& value) {
    write(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& alternative) { this->write(alternative); }, value);
  }
  template <class T>
  requires std::is_class_v<T>
  void write(const T& value) { T::fields(*this, value); }

  std::vector<std::byte> bytes_{};
};

/// Reads what a ByteWriter has written. Throws: DataError if the bytes end too soon or mean nothing.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  template <class... T>
  void operator()(T&... values) {
    (read(values), ...);
  }
  /// To be called at the end: bytes that are left over were written by something else.
  void finish() const {
    if (!bytes_.empty()) damaged();
  }

 private:
  [[noreturn]] void damaged() const {
    throw DataError{
        compose("the saved state of a preprocessor is damaged, or another one's: {} bytes are left where "
                "something else should be; load what the same preprocessor has saved",
                bytes_.size())};
  }
  std::span<const std::byte> next(std::size_t size) {
    if (size > bytes_.size()) damaged();
    const auto part = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return part;
  }
  // Everything that can be counted takes a byte at least, so a wrong count cannot make us allocate more than there is.
  std::size_t count() {
    std::uint64_t count = 0;
    read(count);
    if (count > bytes_.size()) damaged();
    return static_cast<std::size_t>(count);
  }
  template <PlainBytes T>
  void read(T& value) {
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
  }
  void read(bool& value) {
    std::uint8_t byte = 0;
    read(byte);
    value = byte != 0;
  }
  void read(std::string& text) {
    const auto bytes = next(count());
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <class T>
  void read(std::vector<T>& values) {
    values.clear();
    std::size_t left = count();
    if constexpr (PlainBytes<T> && !std::is_same_v<T, bool>) {
      if (left > bytes_.size() / sizeof(T)) damaged();
      const auto bytes = next(left * sizeof(T));
      values.resize(left);
      if (left > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
      return;
    }
    for (; left > 0; --left) {
      T value{};
      read(value);
      values.push_back(std::move(value));
    }
  }
  template <class Key, class T, class Less>
  void read(std::map<Key, T, Less>& values) {
    values.clear();
    for (std::size_t left = count(); left > 0; --left) {
      std::pair<Key, T> entry{};
      (*this)(entry.first, entry.second);
      values.insert(std::move(entry));
    }
  }
  template <class... T>
  void read(std::variant<T...>& value) {
    std::uint8_t index = 0;
    read(index);
    std::uint8_t at = 0;
    if (!((at++ == index && (read(value.template emplace<T>()), true)) || ...)) damaged();
  }
  template <class T>
  requires std::is_class_v<T>
  void read(T& value) { T::fields(*this, value); }

  std::span<const std::byte> bytes_;
};

template <class T>
[[nodiscard]] std::vector<std::byte> to_bytes(const T& value) {
  ByteWriter writer;
  writer(value);
  return writer.take();
}
/// Returns the value with what the bytes hold put into it. Throws: DataError if they are not those of a T.
template <class T>
[[nodiscard]] T from_bytes(std::span<const std::byte> bytes, T value = T{}) {
  ByteReader reader{bytes};
  reader(value);
  reader.finish();
  return value;
}

/// Returns a state of one tensor, "learned", that holds the bytes of the value.
template <class T>
[[nodiscard]] State byte_state(const T& value) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(to_bytes(value));
  State state;
  state.tensors.push_back({.name = "learned",
                           .dtype = Dtype::u8,
                           .shape = {static_cast<std::int64_t>(bytes->size())},
                           .read = [bytes](std::int64_t begin, std::int64_t end, std::byte* to) {
                             std::memcpy(to, bytes->data() + begin, static_cast<std::size_t>(end - begin));
                           }});
  return state;
}
/// Returns the value with what the state holds put into it. Throws: DataError if it is not that of a T.
template <class T>
[[nodiscard]] T from_state(const State& state, T value = T{}) {
  const StateTensor* tensor = state.find_tensor("learned");
  if (tensor == nullptr || tensor->dtype != Dtype::u8) {
    throw DataError{"a state has no bytes named \"learned\": load what a preprocessor has saved"};
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor->count()));
  tensor->read(0, tensor->count(), bytes.data());
  return from_bytes(bytes, std::move(value));
}

}  // namespace detail
}  // namespace railyard::inline v0_1
