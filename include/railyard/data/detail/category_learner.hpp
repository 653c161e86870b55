// SPDX-License-Identifier: MIT
// Learns which categories there are in columns, and tells their codes: what encoders have in common. Data room.
#pragma once

#include "railyard/data/detail/byte_archive.hpp"
#include "railyard/data/detail/categories.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/numbers.hpp"
#include "railyard/data/detail/option_columns.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

class CategoryLearner {
 public:
  CategoryLearner() = default;
  explicit CategoryLearner(std::string_view who, std::vector<std::string> columns = {},
                           std::vector<std::string> except = {}, std::uint64_t limit = 0)
      : who_(who), chosen_(std::move(columns)), except_(std::move(except)), limit_(limit) {}

  void begin(const Schema& schema) {
    columns_.clear();
    counts_.clear();
    if (!has_options()) {
      for (const std::string& name : chosen_) static_cast<void>(column_of_option(who_, "its column", schema, name));
    }
    for (const std::string& name :
         columns_meant(who_, schema, chosen_, except_, "a number or a text per sample", has_cells)) {
      columns_.push_back({.name = name, .kind = kind_of(schema[schema.index_of(name)])});
      counts_.emplace_back(limit_, compose("{}: column \"{}\"", who_, name),
                           has_options() ? CategoryCounts::raise_limit : "");
    }
  }
  void add(const Block& block) {
    for (std::size_t at = 0; at < columns_.size(); ++at) {
      const CategoryColumn& column = columns_[at];
      visit_cells(field_in(block.schema(), column), block.column(column.name), column.kind,
                  [&](std::size_t, const CategoryView& category) { counts_[at].add(category); });
    }
  }
  [[nodiscard]] std::vector<std::byte> statistics() const { return to_bytes(counts_); }
  void merge(std::span<const std::byte> bytes) {
    const auto others = from_bytes<std::vector<CategoryCounts>>(bytes);
    if (others.size() != counts_.size()) {
      throw DataError{
          compose("{} of {} columns cannot merge what was learned of {}", who_, counts_.size(), others.size())};
    }
    for (std::size_t at = 0; at < others.size(); ++at) counts_[at].merge(others[at]);
  }
  void finish() {
    for (std::size_t at = 0; at < columns_.size(); ++at) {
      if (counts_[at].count() == 0) throw DataError{compose("{} saw no samples: there is nothing to learn from", who_)};
      columns_[at].categories = counts_[at].categories();
    }
    counts_.clear();
  }

  /// Returns the columns, or none where nothing was learned.
  [[nodiscard]] const std::vector<CategoryColumn>& learned() const noexcept { return columns_; }
  /// Returns the columns. Throws: ConfigError if nothing was learned, or one is gone or of another kind.
  [[nodiscard]] const std::vector<CategoryColumn>& columns(const Schema& schema) const {
    check_learned();
    for (const CategoryColumn& column : columns_) static_cast<void>(field_in(schema, column));
    return columns_;
  }
  [[nodiscard]] const CategoryColumn& column(std::string_view name) const {
    check_learned();
    for (const CategoryColumn& column : columns_) {
      if (column.name == name) return column;
    }
    throw ConfigError{compose("{} has not learned from a column \"{}\"", who_, name)};
  }

  /// Calls visit(row, code) for all rows whose category was learned.
  /// Throws: DataError if one was not, and that is an error.
  template <class Visit>
  void visit_codes(const Block& block, const CategoryColumn& column, bool unseen_is_error, const Visit& visit) const {
    visit_cells(field_in(block.schema(), column), block.column(column.name), column.kind,
                [&](std::size_t row, const CategoryView& category) {
                  if (const auto code = column.find(category)) return visit(row, *code);
                  if (unseen_is_error) refuse_unseen(block.ids()[row], column, category);
                });
  }

  static void fields(auto& archive, auto& self) { archive(self.who_, self.columns_); }

 private:
  void check_learned() const {
    if (columns_.empty() || columns_.front().categories.empty()) {
      throw ConfigError{compose("{} has learned nothing: call fit()", who_)};
    }
  }
  [[nodiscard]] const Field& field_in(const Schema& schema, const CategoryColumn& column) const {
    const Field& field = schema[schema.index_of(column.name)];
    const bool is_text = column.kind == CategoryKind::text;
    if (!has_cells(field) || field.is_text != is_text) {
      refuse_column(who_, field, is_text ? "text, as where it learned," : "a number per sample, as where it learned,");
    }
    return field;
  }
  [[noreturn]] void refuse_unseen(std::uint64_t id, const CategoryColumn& column, const CategoryView& category) const {
    throw DataError{compose("{} has not seen {} in column \"{}\", where sample {} has it: learn from all {}", who_,
                            category_text(category), column.name, id,
                            has_options() ? "categories, or set .unseen to Unseen::ignore"
                                          : "labels, or leave such samples out by filter()")};
  }
  // Whether the user can set any: a LabelEncoder is given a column and nothing else.
  [[nodiscard]] bool has_options() const noexcept { return who_ != "LabelEncoder"; }

  std::string who_{};
  std::vector<std::string> chosen_{};
  std::vector<std::string> except_{};
  std::uint64_t limit_ = 0;
  std::vector<CategoryColumn> columns_{};
  std::vector<CategoryCounts> counts_{};  // between begin() and finish()
};

/// Is what preprocessors that make numbers of categories have in common: how they learn.
class CategoryEncoder {
 public:
  void begin(const Schema& schema) { learner_.begin(schema); }
  void add(const Block& block) { learner_.add(block); }
  [[nodiscard]] std::vector<std::byte> statistics() const { return learner_.statistics(); }
  void merge(std::span<const std::byte> bytes) { learner_.merge(bytes); }
  void finish() { learner_.finish(); }

  /// The categories of a column: number i stands for the i-th. Throws: ConfigError if it did not learn from the column.
  [[nodiscard]] const std::vector<Category>& categories(std::string_view column) const {
    return learner_.column(column).categories;
  }

 protected:
  explicit CategoryEncoder(CategoryLearner learner) : learner_(std::move(learner)) {}

  template <class Options>
  [[nodiscard]] std::uint64_t fingerprint_with(const Options& options) const {
    return fingerprint_of_learned(options, learner_.learned()).value();
  }

  CategoryLearner learner_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
