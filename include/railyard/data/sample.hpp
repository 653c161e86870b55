// SPDX-License-Identifier: MIT
// One sample of a block, as the functions see that users give to a dataset. Data room.
#pragma once

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace railyard::inline v0_1 {

/// Says which column is meant: by its name, or faster by its number.
class ColumnKey {
 public:
  ColumnKey(std::string_view name) noexcept : name_(name) {}
  ColumnKey(const std::string& name) noexcept : name_(name) {}
  ColumnKey(const char* name) noexcept : name_(name) {}
  template <std::integral Number>
  ColumnKey(Number number) noexcept : number_(static_cast<std::size_t>(number)) {}

  /// Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] std::size_t in(const Schema& schema) const {
    if (name_.data() != nullptr) return schema.index_of(name_);
    if (number_ < schema.size()) return number_;
    throw ConfigError{
        detail::compose("there is no column {}: there are {}, {}", number_, schema.size(), schema.names())};
  }

 private:
  std::string_view name_{};
  std::size_t number_ = 0;
};

/// Shows one sample of a Block, which it must not outlive.
class Sample {
 public:
  Sample(const Block& block, std::size_t row) noexcept : block_(&block), row_(row) {}

  /// The sample's number in its source.
  [[nodiscard]] std::uint64_t id() const noexcept { return block_->ids()[row_]; }
  /// What tells it from the others that flat_map() has made of one, and that share its id; 0 if it was not made so.
  [[nodiscard]] std::uint64_t sibling() const noexcept { return block_->sibling(row_); }
  [[nodiscard]] const Schema& schema() const noexcept { return block_->schema(); }

  /// Returns the single number in a column of any dtype. Throws: ConfigError where there are more or fewer.
  [[nodiscard]] double number(ColumnKey key) const {
    const std::size_t column = key.in(schema());
    if (schema()[column].is_text) refuse(column, "one number");
    const auto bytes = (*block_)[column].sample(row_);
    return visit_dtype(schema()[column].dtype, [&](auto zero) {
      using T = decltype(zero);
      if (bytes.size() != sizeof(T)) refuse(column, "one number");
      T value;
      std::memcpy(&value, bytes.data(), sizeof value);
      if constexpr (std::is_arithmetic_v<T>) {
        return static_cast<double>(value);
      } else {
        return static_cast<double>(static_cast<float>(value));
      }
    });
  }

  /// Returns the elements in a column whose dtype is T's. Throws: ConfigError if it is another.
  template <Element T>
  [[nodiscard]] std::span<const T> values(ColumnKey key) const {
    const std::size_t column = key.in(schema());
    if (schema()[column].dtype != dtype_of<T>) refuse(column, name_of(dtype_of<T>));
    return (*block_)[column].template values<T>(row_);
  }

  /// Returns the text in a column of texts. Throws: ConfigError if it holds none.
  [[nodiscard]] std::string_view text(ColumnKey key) const {
    const std::size_t column = key.in(schema());
    if (!schema()[column].is_text) refuse(column, "text");
    return (*block_)[column].text(row_);
  }

  /// The bytes in a column, whatever they mean.
  [[nodiscard]] std::span<const std::byte> bytes(ColumnKey key) const {
    return (*block_)[key.in(schema())].sample(row_);
  }

 private:
  [[noreturn]] void refuse(std::size_t column, std::string_view as) const {
    const Field& field = schema()[column];
    throw ConfigError{detail::compose("column \"{}\" was read as {} and holds {} x {}", field.name, as,
                                      (*block_)[column].sample(row_).size() / size_of(field.dtype),
                                      field.is_text ? "characters of text" : name_of(field.dtype))};
  }

  const Block* block_;
  std::size_t row_;
};

}  // namespace railyard::inline v0_1
