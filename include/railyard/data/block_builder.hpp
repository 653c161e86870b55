// SPDX-License-Identifier: MIT
// Makes blocks sample by sample: what the functions write to that users give to a dataset. Data room.
#pragma once

#include "railyard/data/sample.hpp"
#include "railyard/data/shuffle.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

class BlockBuilder;

/// Sets the columns of the sample that a BlockBuilder is at.
class SampleWriter {
 public:
  /// Sets a column of single numbers; the number is converted to the column's dtype.
  /// Throws: ConfigError if the column is of another shape, or of integers that do not reach that far.
  template <class T>
  requires std::is_arithmetic_v<T>
  void set(ColumnKey key, T value) { fill(key, &value, 1); }
  /// Sets a column of numbers, as many as its shape says, or as there are in a column that differs in length.
  template <Element T>
  void set(ColumnKey key, std::span<const T> values) {
    fill(key, values.data(), values.size());
  }
  template <Element T>
  void set(ColumnKey key, const std::vector<T>& values) {
    set(key, std::span<const T>{values});
  }
  /// Sets a column of texts.
  void set(ColumnKey key, std::string_view text);
  void set(ColumnKey key, const char* text) { set(key, std::string_view{text}); }
  void set(ColumnKey key, const std::string& text) { set(key, std::string_view{text}); }

 private:
  friend class BlockBuilder;
  explicit SampleWriter(BlockBuilder& builder) noexcept : builder_(&builder) {}

  template <class T>
  void fill(ColumnKey key, const T* values, std::size_t count);

  BlockBuilder* builder_;
};

/// Collects samples of one schema and makes a Block of them.
class BlockBuilder {
 public:
  /// rows: how many samples there will be about; memory for them is taken at once.
  explicit BlockBuilder(std::shared_ptr<const Schema> schema, std::size_t rows = 0)
      : schema_(std::move(schema)), columns_(schema_->size()), writer_(*this) {
    ids_.reserve(rows);
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      columns_[column].ends.reserve(rows);
      const Field& field = (*schema_)[column];
      if (!field.is_ragged()) columns_[column].bytes.reserve(rows * field.width() * size_of(field.dtype));
    }
  }
  BlockBuilder(const BlockBuilder&) = delete;  // the writer points here
  BlockBuilder& operator=(const BlockBuilder&) = delete;

  /// Begins a sample and returns what its columns are set with. sibling: see Block::siblings().
  /// Throws: ConfigError if the one before lacks a column.
  SampleWriter& add(std::uint64_t id, std::uint64_t sibling = 0) {
    check_complete();
    if (sibling != 0) siblings_.resize(ids_.size());
    if (sibling != 0 || !siblings_.empty()) siblings_.push_back(sibling);
    ids_.push_back(id);
    return writer_;
  }
  /// Gives the sample the columns that have not been set and that are the same fields of another one.
  void complete_from(const Block& block, std::size_t row) {
    if (completing_ != block.shared_schema()) match(block.shared_schema());
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      if (columns_[column].ends.size() == ids_.size() || !same_[column]) continue;
      put(column, block[*same_[column]].sample(row));
    }
  }
  /// Throws: ConfigError if a column of the sample has not been set.
  void check_complete() const {
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      if (columns_[column].ends.size() == ids_.size()) continue;
      throw ConfigError{detail::compose("column \"{}\" was not set", (*schema_)[column].name)};
    }
  }
  /// Takes back the sample that was begun last.
  void drop_last() {
    ids_.pop_back();
    if (!siblings_.empty()) siblings_.pop_back();
    for (Part& part : columns_) {
      if (part.ends.size() > ids_.size()) part.ends.pop_back();
      part.bytes.resize(part.ends.empty() ? 0 : part.ends.back());
    }
  }

  [[nodiscard]] std::size_t rows() const noexcept { return ids_.size(); }
  /// The bytes of all samples so far.
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = 0;
    for (const Part& part : columns_) sum += part.bytes.size();
    return sum;
  }
  [[nodiscard]] const Schema& schema() const noexcept { return *schema_; }

  /// Makes the Block and begins anew. Throws: ConfigError if the last sample lacks a column.
  [[nodiscard]] Block build() {
    check_complete();
    std::vector<Column> columns;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      Part part = std::exchange(columns_[column], {});
      const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(part.bytes));
      std::shared_ptr<const std::byte> bytes{owner, owner->data()};
      const Field& field = (*schema_)[column];
      if (field.is_ragged()) {
        columns.emplace_back(std::move(bytes),
                             std::make_shared<const std::vector<std::uint64_t>>(std::move(part.ends)));
      } else {
        columns.emplace_back(std::move(bytes), ids_.size(), field.width() * size_of(field.dtype));
      }
    }
    return Block{schema_, std::move(columns), std::exchange(ids_, {}), std::exchange(siblings_, {})};
  }

 private:
  friend class SampleWriter;
  struct Part {
    std::vector<std::byte> bytes{};
    std::vector<std::uint64_t> ends{};  // of the samples that have been set
  };

  // Finds the columns that samples of another schema have as well.
  void match(const std::shared_ptr<const Schema>& other) {
    completing_ = other;
    same_.clear();
    for (const Field& field : *schema_) {
      same_.push_back(other->find(field.name));
      if (same_.back() && (*other)[*same_.back()] != field) same_.back().reset();
    }
  }

  void put(std::size_t column, std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), room_for(column, bytes.size()));
  }

  // Makes room for the value of a column of the sample; a value that was set before gives way.
  std::byte* room_for(std::size_t column, std::size_t size) {
    const Field& field = (*schema_)[column];
    const std::size_t step = field.width() * size_of(field.dtype);
    if (field.is_ragged() ? size % step != 0 : size != step) {
      throw ConfigError{detail::compose("column \"{}\" was set to {} x {}, and a sample has {}{}", field.name,
                                        size / size_of(field.dtype), name_of(field.dtype),
                                        field.is_ragged() ? "a multiple of " : "", field.width())};
    }
    Part& part = columns_[column];
    if (part.ends.size() == ids_.size()) part.ends.pop_back();
    const std::size_t begin = part.ends.empty() ? 0 : part.ends.back();
    part.bytes.resize(begin + size);
    part.ends.push_back(begin + size);
    return part.bytes.data() + begin;
  }

  std::shared_ptr<const Schema> schema_;
  std::vector<Part> columns_;
  std::vector<std::uint64_t> ids_{};
  std::vector<std::uint64_t> siblings_{};  // empty as long as all are 0
  SampleWriter writer_;
  std::shared_ptr<const Schema> completing_{};      // whose samples gave columns last
  std::vector<std::optional<std::size_t>> same_{};  // which of its columns each of ours is
};

/// Takes the samples that a function of flat_map() makes of one, which share its id. The random numbers of each are
/// its own: they depend on how many were made of the same one before it.
class SampleList {
 public:
  SampleList(BlockBuilder& builder, const Block& block, std::size_t row) noexcept
      : builder_(&builder), block_(&block), row_(row) {}

  /// Begins another sample.
  SampleWriter& add() {
    finish();
    return builder_->add(block_->ids()[row_], detail::derive_seed(block_->sibling(row_), ++num_made_));
  }
  /// Gives the last sample the columns that it lacks. Throws: ConfigError if the one it was made of has none of them.
  void finish() {
    if (num_made_ == 0) return;
    builder_->complete_from(*block_, row_);
    builder_->check_complete();
  }

 private:
  BlockBuilder* builder_;
  const Block* block_;
  std::size_t row_;
  std::uint64_t num_made_ = 0;
};

namespace detail {

template <class To, class From>
[[nodiscard]] To convert_element(From value) noexcept {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_arithmetic_v<From>) {
    return To{static_cast<float>(value)};
  } else {
    return convert_element<To>(static_cast<float>(value));
  }
}

/// Says whether a number is one that To can hold, once what is behind its point is left out.
template <class To, class From>
[[nodiscard]] bool fits(From value) noexcept {
  using Limits = std::numeric_limits<To>;
  if constexpr (!std::is_arithmetic_v<From>) {
    return fits<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, To> || !std::is_integral_v<To> || std::is_same_v<To, bool>) {
    return true;
  } else if constexpr (std::is_floating_point_v<From>) {
    constexpr From end = static_cast<From>(Limits::max() / 2 + 1) * 2;  // exact, which the largest To need not be
    return (Limits::is_signed ? value >= -end || value > -end - 1 : value > -1) && value < end;
  } else if (std::is_signed_v<From> && value < From{}) {
    return Limits::is_signed && static_cast<std::intmax_t>(value) >= static_cast<std::intmax_t>(Limits::min());
  } else {
    return static_cast<std::uintmax_t>(value) <= static_cast<std::uintmax_t>(Limits::max());
  }
}

}  // namespace detail

template <class T>
void SampleWriter::fill(ColumnKey key, const T* values, std::size_t count) {
  const std::size_t column = key.in(builder_->schema());
  const Field& field = builder_->schema()[column];
  if (field.is_text) throw ConfigError{detail::compose("column \"{}\" is text and was set to numbers", field.name)};
  if constexpr (Element<T>) {
    if (field.dtype == dtype_of<T>) return builder_->put(column, std::as_bytes(std::span{values, count}));
  }
  visit_dtype(field.dtype, [&](auto zero) {
    using To = decltype(zero);
    auto* to = reinterpret_cast<To*>(builder_->room_for(column, count * sizeof(To)));
    for (std::size_t at = 0; at < count; ++at) {
      if (!detail::fits<To>(values[at])) {
        throw ConfigError{detail::compose("column \"{}\" is {} and was set to {}, which that cannot hold", field.name,
                                          name_of(field.dtype), detail::convert_element<double>(values[at]))};
      }
      to[at] = detail::convert_element<To>(values[at]);
    }
  });
}

inline void SampleWriter::set(ColumnKey key, std::string_view text) {
  const std::size_t column = key.in(builder_->schema());
  const Field& field = builder_->schema()[column];
  if (!field.is_text) throw ConfigError{detail::compose("column \"{}\" is numbers and was set to text", field.name)};
  builder_->put(column, std::as_bytes(std::span{text}));
}

}  // namespace railyard::inline v0_1
