// SPDX-License-Identifier: MIT
// Preprocessors that make numbers of categories: one-hot, ordinal and label encoders. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/byte_archive.hpp"
#include "railyard/data/detail/categories.hpp"
#include "railyard/data/detail/category_learner.hpp"
#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what becomes of a category that was not learned: a DataError that names the sample, or the encoder's own
/// answer.
enum class Unseen : std::uint8_t { error, ignore };

/// Makes of each column a column of the same name that has one f32 per category: 1 for the sample's, 0 for the others.
/// Columns hold a number or a text per sample. Categories are in order, a missing value is one of them, the last, and
/// so are infinities. Shapes: (categories).
class OneHotEncoder : public detail::CategoryEncoder {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Unseen unseen = Unseen::error;          ///< ignore: all are 0
    std::uint64_t category_limit = 10'000;  ///< per column; more are a DataError
  };

  OneHotEncoder() : CategoryEncoder(detail::CategoryLearner{name}) {}
  explicit OneHotEncoder(Options options)
      : CategoryEncoder(detail::CategoryLearner{name, options.columns, options.except, options.category_limit}),
        options_(std::move(options)) {}

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(options_.columns); }
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_with(options_); }
  [[nodiscard]] Schema schema(const Schema& before) const {
    std::vector<Field> fields;
    for (const auto& column : learner_.columns(before)) fields.push_back(field_of(column));
    return detail::with_fields(before, fields);
  }
  [[nodiscard]] Block transform(const Block& block) const {
    std::vector<Field> fields;
    std::vector<Column> encoded;
    for (const auto& column : learner_.columns(block.schema())) {
      const std::size_t width = column.categories.size();
      std::vector<float> numbers(block.rows() * width);
      learner_.visit_codes(block, column, options_.unseen == Unseen::error,
                           [&](std::size_t row, std::size_t code) { numbers[row * width + code] = 1; });
      fields.push_back(field_of(column));
      encoded.emplace_back(fields.back(), std::move(numbers));
    }
    return detail::with_columns(block, fields, std::move(encoded));
  }

  [[nodiscard]] State state() const { return detail::byte_state(*this); }
  void load_state(const State& state) { *this = detail::from_state(state, *this); }
  static void fields(auto& archive, auto& self) { archive(self.options_.unseen, self.learner_); }

 private:
  static constexpr std::string_view name = "OneHotEncoder";

  [[nodiscard]] static Field field_of(const detail::CategoryColumn& column) {
    return {.name = column.name, .dtype = Dtype::f32, .shape = {static_cast<std::int64_t>(column.categories.size())}};
  }

  Options options_{};
};
static_assert(LearningPreprocessor<OneHotEncoder>);

/// Makes of each column a column of i64 of the same name: the place of the sample's category among all in order, from
/// 0. Columns hold a number or a text per sample. A missing value is a category, the last.
class OrdinalEncoder : public detail::CategoryEncoder {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Unseen unseen = Unseen::error;  ///< ignore: the number is unseen_value
    std::int64_t unseen_value = -1;
    std::uint64_t category_limit = 1'000'000;  ///< per column; more are a DataError
  };

  OrdinalEncoder() : CategoryEncoder(detail::CategoryLearner{"OrdinalEncoder"}) {}
  explicit OrdinalEncoder(Options options) : OrdinalEncoder("OrdinalEncoder", std::move(options)) {}

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(options_.columns); }
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_with(options_); }
  [[nodiscard]] Schema schema(const Schema& before) const {
    std::vector<Field> fields;
    for (const auto& column : learner_.columns(before)) fields.push_back({.name = column.name, .dtype = Dtype::i64});
    return detail::with_fields(before, fields);
  }
  [[nodiscard]] Block transform(const Block& block) const {
    std::vector<Field> fields;
    std::vector<Column> encoded;
    for (const auto& column : learner_.columns(block.schema())) {
      std::vector<std::int64_t> numbers(block.rows(), options_.unseen_value);
      learner_.visit_codes(block, column, options_.unseen == Unseen::error,
                           [&](std::size_t row, std::size_t code) { numbers[row] = static_cast<std::int64_t>(code); });
      fields.push_back({.name = column.name, .dtype = Dtype::i64});
      encoded.emplace_back(fields.back(), std::move(numbers));
    }
    return detail::with_columns(block, fields, std::move(encoded));
  }

  [[nodiscard]] State state() const { return detail::byte_state(*this); }
  void load_state(const State& state) { *this = detail::from_state(state, *this); }
  static void fields(auto& archive, auto& self) {
    archive(self.options_.unseen, self.options_.unseen_value, self.learner_);
  }

 private:
  friend class LabelEncoder;
  OrdinalEncoder(std::string_view name, Options options)
      : CategoryEncoder(detail::CategoryLearner{name, options.columns, options.except, options.category_limit}),
        options_(std::move(options)) {}

  Options options_{};
};
static_assert(LearningPreprocessor<OrdinalEncoder>);

/// Makes class numbers (i64, from 0) of the labels in one column, and labels of class numbers again. An unseen label is
/// a DataError that names the sample.
class LabelEncoder {
 public:
  LabelEncoder() = default;
  /// Example: LabelEncoder encoder{"species"};
  explicit LabelEncoder(std::string column)
      : column_(std::move(column)), encoder_("LabelEncoder", {.columns = {column_}}) {}

  void begin(const Schema& schema) { encoder_.begin(schema); }
  void add(const Block& block) { encoder_.add(block); }
  [[nodiscard]] std::vector<std::byte> statistics() const { return encoder_.statistics(); }
  void merge(std::span<const std::byte> bytes) { encoder_.merge(bytes); }
  void finish() { encoder_.finish(); }

  /// The labels: class i has the i-th.
  [[nodiscard]] const std::vector<Category>& classes() const { return encoder_.categories(column_); }
  /// Returns the label of a class number, such as the index of a model's largest output.
  /// Throws: DataError if there is no such class.
  [[nodiscard]] const Category& label_of(std::int64_t number) const {
    const auto& all = classes();
    if (number >= 0 && static_cast<std::size_t>(number) < all.size()) return all[static_cast<std::size_t>(number)];
    throw DataError{
        detail::compose("there is no class {} of column \"{}\": there are {}", number, column_, all.size())};
  }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return encoder_.touches(); }
  /// Another when it has learned from another column.
  [[nodiscard]] std::uint64_t fingerprint() const { return encoder_.fingerprint(); }
  [[nodiscard]] Schema schema(const Schema& before) const { return encoder_.schema(before); }
  [[nodiscard]] Block transform(const Block& block) const { return encoder_.transform(block); }

  [[nodiscard]] State state() const { return detail::byte_state(*this); }
  void load_state(const State& state) { *this = detail::from_state(state, *this); }
  static void fields(auto& archive, auto& self) { archive(self.column_, self.encoder_); }

 private:
  std::string column_{};
  OrdinalEncoder encoder_{};
};
static_assert(LearningPreprocessor<LabelEncoder>);

}  // namespace railyard::inline v0_1
