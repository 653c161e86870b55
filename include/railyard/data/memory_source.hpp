// SPDX-License-Identifier: MIT
// Columns in memory as a source of a dataset. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is a column with its name: what MemorySource is made of.
struct NamedColumn {
  Field field{};
  Column column{};

  NamedColumn(Field field_, Column column_) : field(std::move(field_)), column(std::move(column_)) {}
  /// Takes a number per sample over.
  template <Element T>
  NamedColumn(std::string name, std::vector<T> values) : NamedColumn(std::move(name), {}, std::move(values)) {}
  /// Takes elements over, of which a sample has as many as its shape says.
  /// Throws: ConfigError if they are no whole number of samples.
  template <Element T>
  NamedColumn(std::string name, std::vector<std::int64_t> shape, std::vector<T> values)
      : field{std::move(name), dtype_of<T>, std::move(shape), false}, column(field, std::move(values)) {}
  /// Copies a text per sample.
  NamedColumn(std::string name, const std::vector<std::string>& texts)
      : field(Field::text(std::move(name))), column(Column::texts(texts)) {}
};

/// Gives samples out of columns in memory, of which nothing is copied as long as samples are read in their order.
class MemorySource {
 public:
  static constexpr bool costs_a_copy = true;  ///< samples lie ready

  /// Throws: ConfigError if the columns are not all as long, or two have one name.
  explicit MemorySource(std::vector<NamedColumn> columns, std::string name = "columns in memory")
      : name_(std::move(name)) {
    std::vector<Field> fields;
    std::vector<Column> data;
    const std::size_t rows = columns.empty() ? 0 : columns.front().column.rows();
    for (NamedColumn& column : columns) {
      if (column.column.rows() != rows) {
        throw ConfigError{detail::compose("{}: column \"{}\" has {} samples and column \"{}\" has {}", name_,
                                          column.field.name, column.column.rows(), fields.front().name, rows)};
      }
      fields.push_back(std::move(column.field));
      data.push_back(std::move(column.column));
    }
    std::vector<std::uint64_t> ids(rows);
    std::iota(ids.begin(), ids.end(), std::uint64_t{0});
    block_ = std::make_shared<const Block>(std::make_shared<const Schema>(std::move(fields)), std::move(data),
                                           std::move(ids));
  }

  [[nodiscard]] Schema schema() const { return block_->schema(); }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return block_->rows(); }
  [[nodiscard]] std::string describe() const { return name_; }
  /// All columns.
  [[nodiscard]] const Block& block() const noexcept { return *block_; }
  [[nodiscard]] std::unique_ptr<BlockReader> open(std::uint64_t from) const {
    return std::make_unique<Reader>(block_, static_cast<std::size_t>(std::min<std::uint64_t>(from, block_->rows())));
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> ids) const {
    static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));
    return detail::take(*block_, {reinterpret_cast<const std::size_t*>(ids.data()), ids.size()});
  }

 private:
  class Reader final : public BlockReader {
   public:
    Reader(std::shared_ptr<const Block> block, std::size_t at) : block_(std::move(block)), at_(at) {}
    [[nodiscard]] Block next(std::size_t most_rows) override {
      const std::size_t begin = at_;
      at_ = std::min(block_->rows(), begin + most_rows);
      return block_->slice(begin, at_);
    }

   private:
    std::shared_ptr<const Block> block_;
    std::size_t at_;
  };

  std::string name_;
  std::shared_ptr<const Block> block_{};
};
static_assert(IndexedSource<MemorySource>);

}  // namespace railyard::inline v0_1
