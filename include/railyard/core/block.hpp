// SPDX-License-Identifier: MIT
// Samples by column: what readers of datasets give, operations change and loaders make tensors of. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what one column of a dataset holds.
struct Field {
  std::string name{};
  Dtype dtype = Dtype::f32;
  /// Of one sample: empty for a single number. A first size of -1 differs from sample to sample.
  std::vector<std::int64_t> shape{};
  /// Whether it is UTF-8 text; then dtype is u8 and shape {-1}.
  bool is_text = false;

  [[nodiscard]] bool is_ragged() const noexcept { return !shape.empty() && shape.front() < 0; }
  /// Elements of one sample, or of one step of the first dimension where that differs.
  [[nodiscard]] std::size_t width() const noexcept {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size < 0 ? 1 : size;
    return static_cast<std::size_t>(product);
  }
  [[nodiscard]] static Field text(std::string name) {
    return {.name = std::move(name), .dtype = Dtype::u8, .shape = {-1}, .is_text = true};
  }
  friend bool operator==(const Field&, const Field&) = default;
};

/// Lists the columns of a dataset, in order; names are unique.
class Schema {
 public:
  Schema() = default;
  /// Throws: ConfigError for an empty name, or two equal ones.
  Schema(std::vector<Field> fields) : fields_(std::move(fields)) { check(); }
  Schema(std::initializer_list<Field> fields) : fields_(fields) { check(); }

  [[nodiscard]] std::size_t size() const noexcept { return fields_.size(); }
  [[nodiscard]] const Field& operator[](std::size_t column) const noexcept { return fields_[column]; }
  [[nodiscard]] auto begin() const noexcept { return fields_.begin(); }
  [[nodiscard]] auto end() const noexcept { return fields_.end(); }
  [[nodiscard]] const std::vector<Field>& fields() const noexcept { return fields_; }

  /// Returns which column has the name, or nothing.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept {
    for (std::size_t column = 0; column < fields_.size(); ++column) {
      if (fields_[column].name == name) return column;
    }
    return std::nullopt;
  }
  /// Returns which column has the name. Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    if (const auto column = find(name)) return *column;
    throw ConfigError{detail::compose("there is no column \"{}\": there are {}", name, names())};
  }
  /// The names, as messages show them: of very many only the first.
  [[nodiscard]] std::string names() const {
    constexpr std::size_t most = 50;
    std::string all;
    for (std::size_t column = 0; column < std::min(fields_.size(), most); ++column) {
      all += (all.empty() ? "\"" : ", \"") + fields_[column].name + "\"";
    }
    if (fields_.size() > most) all += detail::compose(" and {} more", fields_.size() - most);
    return all.empty() ? "none" : all;
  }
  friend bool operator==(const Schema&, const Schema&) = default;

 private:
  // By sorting: files have up to millions of columns.
  void check() const {
    std::vector<std::string_view> names;
    names.reserve(fields_.size());
    for (const Field& field : fields_) {
      if (field.name.empty())
        throw ConfigError{detail::compose("column {} of a schema has no name: each needs one", names.size())};
      names.push_back(field.name);
    }
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin != names.end()) {
      throw ConfigError{detail::compose("two columns are named \"{}\": rename one of them", *twin)};
    }
  }

  std::vector<Field> fields_{};
};

/// Holds one column of some samples, one after another in memory. Cheap to copy: copies and slices share the elements,
/// which never change.
class Column {
 public:
  Column() = default;

  /// Takes elements over. Shapes: rows x field.width() of the field's dtype.
  /// Throws: ConfigError if the size does not fit, or the field is ragged.
  template <class T>
  Column(const Field& field, std::vector<T> elements) {
    const auto owner = std::make_shared<const std::vector<T>>(std::move(elements));
    const std::size_t row = field.width() * sizeof(T);
    if (field.is_ragged() || sizeof(T) != size_of(field.dtype) || row == 0 || owner->size() % field.width() != 0) {
      throw ConfigError{detail::compose(
          "{} elements of {} bytes are no column \"{}\" of {} x {}: give it whole rows of elements of that dtype",
          owner->size(), sizeof(T), field.name, field.width(), name_of(field.dtype))};
    }
    *this = Column{std::shared_ptr<const std::byte>{owner, reinterpret_cast<const std::byte*>(owner->data())},
                   owner->size() / field.width(), row};
  }

  /// Shares memory that somebody owns: rows of row_bytes each.
  Column(std::shared_ptr<const std::byte> bytes, std::size_t rows, std::size_t row_bytes) noexcept
      : bytes_(std::move(bytes)), rows_(rows), row_bytes_(row_bytes) {}

  /// Shares memory of samples that differ in size: sample i is the bytes from (*ends)[i - 1], or 0, to (*ends)[i].
  Column(std::shared_ptr<const std::byte> bytes, std::shared_ptr<const std::vector<std::uint64_t>> ends) noexcept
      : bytes_(std::move(bytes)), rows_(ends->size()), ends_(std::move(ends)) {}

  /// Makes a column of texts.
  [[nodiscard]] static Column texts(std::span<const std::string> texts) {
    const auto all = std::make_shared<std::string>();
    auto ends = std::make_shared<std::vector<std::uint64_t>>();
    for (const std::string& text : texts) {
      *all += text;
      ends->push_back(all->size());
    }
    return {std::shared_ptr<const std::byte>{all, reinterpret_cast<const std::byte*>(all->data())}, std::move(ends)};
  }

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] bool is_ragged() const noexcept { return ends_ != nullptr; }

  /// The bytes of one sample, which counts from 0 and is below rows().
  [[nodiscard]] std::span<const std::byte> sample(std::size_t row) const noexcept {
    if (ends_ == nullptr) return {bytes_.get() + (first_ + row) * row_bytes_, row_bytes_};
    const std::uint64_t begin = first_ + row == 0 ? 0 : (*ends_)[first_ + row - 1];
    return {bytes_.get() + begin, (*ends_)[first_ + row] - begin};
  }
  [[nodiscard]] std::string_view text(std::size_t row) const noexcept {
    const auto bytes = sample(row);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// The elements of one sample. T has the size and alignment of the field's dtype.
  template <class T>
  [[nodiscard]] std::span<const T> values(std::size_t row) const noexcept {
    const auto bytes = sample(row);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// All elements, sample after sample.
  template <class T>
  [[nodiscard]] std::span<const T> values() const noexcept {
    const auto all = bytes();
    return {reinterpret_cast<const T*>(all.data()), all.size() / sizeof(T)};
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    if (rows_ == 0) return {};
    const auto first = sample(0);
    const auto last = sample(rows_ - 1);
    return {first.data(), static_cast<std::size_t>(last.data() + last.size() - first.data())};
  }

  /// Returns the samples [begin, end), sharing the memory.
  [[nodiscard]] Column slice(std::size_t begin, std::size_t end) const noexcept {
    Column part = *this;
    part.first_ += begin;
    part.rows_ = end - begin;
    return part;
  }

  /// Returns a copy of the given samples in that order, each below rows().
  [[nodiscard]] Column take(std::span<const std::size_t> rows) const {
    std::size_t size = 0;
    for (const std::size_t row : rows) size += sample(row).size();
    const auto copy = std::make_shared<std::vector<std::byte>>(size);
    auto ends = std::make_shared<std::vector<std::uint64_t>>();
    std::byte* to = copy->data();
    for (const std::size_t row : rows) {
      const auto bytes = sample(row);
      to = std::copy(bytes.begin(), bytes.end(), to);
      if (is_ragged()) ends->push_back(static_cast<std::uint64_t>(to - copy->data()));
    }
    std::shared_ptr<const std::byte> shared{copy, copy->data()};
    if (is_ragged()) return {std::move(shared), std::move(ends)};
    return {std::move(shared), rows.size(), row_bytes_};
  }

 private:
  std::shared_ptr<const std::byte> bytes_{};
  std::size_t rows_ = 0;
  std::size_t row_bytes_ = 0;
  std::shared_ptr<const std::vector<std::uint64_t>> ends_{};
  std::size_t first_ = 0;  // row of the shared memory
};

/// Holds some samples of a dataset: a column per field, the number that each sample has in its source, and what tells
/// samples apart that share one.
class Block {
 public:
  Block() : schema_(std::make_shared<const Schema>()) {}
  /// siblings: as siblings() gives them. Throws: ConfigError if there are not as many columns as fields, or columns,
  /// ids and siblings differ in their rows.
  Block(std::shared_ptr<const Schema> schema, std::vector<Column> columns, std::vector<std::uint64_t> ids,
        std::vector<std::uint64_t> siblings = {})
      : schema_(std::move(schema)), columns_(std::move(columns)), ids_(std::move(ids)), siblings_(std::move(siblings)) {
    bool fits = columns_.size() == schema_->size() && (siblings_.empty() || siblings_.size() == ids_.size());
    for (const Column& column : columns_) fits = fits && column.rows() == ids_.size();
    if (fits) return;
    throw ConfigError{detail::compose("a Block of the columns {} was given {} columns for {} samples, not all as long",
                                      schema_->names(), columns_.size(), ids_.size())};
  }

  [[nodiscard]] std::size_t rows() const noexcept { return ids_.size(); }
  [[nodiscard]] bool empty() const noexcept { return ids_.empty(); }
  [[nodiscard]] const Schema& schema() const noexcept { return *schema_; }
  [[nodiscard]] const std::shared_ptr<const Schema>& shared_schema() const noexcept { return schema_; }
  [[nodiscard]] const std::vector<Column>& columns() const noexcept { return columns_; }
  [[nodiscard]] const Column& operator[](std::size_t column) const noexcept { return columns_[column]; }
  /// Throws: ConfigError that lists the columns that exist.
  [[nodiscard]] const Column& column(std::string_view name) const { return columns_[schema_->index_of(name)]; }
  /// What tells a sample from all others of its source: its number there, from 0. Messages and per-sample randomness
  /// use it.
  [[nodiscard]] std::span<const std::uint64_t> ids() const noexcept { return ids_; }
  /// What tells the samples from each other that flat_map() has made of one, and that share its id: any number, 0 for
  /// a sample that was not made so. Empty where none was. Per-sample randomness uses it.
  [[nodiscard]] std::span<const std::uint64_t> siblings() const noexcept { return siblings_; }
  [[nodiscard]] std::uint64_t sibling(std::size_t row) const noexcept { return siblings_.empty() ? 0 : siblings_[row]; }
  /// Returns other columns of the same samples. Throws: ConfigError if they do not fit.
  [[nodiscard]] Block with(std::shared_ptr<const Schema> schema, std::vector<Column> columns) const {
    return {std::move(schema), std::move(columns), ids_, siblings_};
  }

  [[nodiscard]] Block slice(std::size_t begin, std::size_t end) const {
    Block part;
    part.schema_ = schema_;
    for (const Column& column : columns_) part.columns_.push_back(column.slice(begin, end));
    const auto first = static_cast<std::ptrdiff_t>(begin);
    const auto last = static_cast<std::ptrdiff_t>(end);
    part.ids_.assign(ids_.begin() + first, ids_.begin() + last);
    if (!siblings_.empty()) part.siblings_.assign(siblings_.begin() + first, siblings_.begin() + last);
    return part;
  }
  [[nodiscard]] Block take(std::span<const std::size_t> rows) const {
    Block part;
    part.schema_ = schema_;
    for (const Column& column : columns_) part.columns_.push_back(column.take(rows));
    for (const std::size_t row : rows) part.ids_.push_back(ids_[row]);
    for (const std::size_t row : rows) {
      if (!siblings_.empty()) part.siblings_.push_back(siblings_[row]);
    }
    return part;
  }

 private:
  std::shared_ptr<const Schema> schema_;
  std::vector<Column> columns_{};
  std::vector<std::uint64_t> ids_{};
  std::vector<std::uint64_t> siblings_{};
};

}  // namespace railyard::inline v0_1
