// SPDX-License-Identifier: MIT
// The preprocessor that fills empty cells. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/byte_archive.hpp"
#include "railyard/data/detail/categories.hpp"
#include "railyard/data/detail/feature_columns.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/moments.hpp"
#include "railyard/data/detail/numbers.hpp"
#include "railyard/data/detail/quantile_sketch.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what to fill empty cells with.
enum class Impute : std::uint8_t { mean, median, most_frequent, constant };

/// Fills the empty cells of each column: NaN in columns of numbers, element by element, and texts of no characters.
/// Dtypes stay, and columns of integers stay as they are, for they have no empty cells. Of values that are equally
/// frequent, the smallest is taken. A column without any value is a DataError in finish(), and so is an infinite value,
/// but for a constant.
class SimpleImputer {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
    Impute with = Impute::mean;          ///< columns of text can have most_frequent and constant
    double number = 0;                   ///< the constant for columns of numbers
    std::string text = "missing_value";  ///< the constant for columns of text
    /// Medians are exact up to so many values; then the rank of the median of n is off by less than
    /// n (log2(n / size) + 1) / size.
    std::size_t sketch_size = 8192;
    std::uint64_t category_limit = 1'000'000;  ///< different values per column, for most_frequent
  };

  SimpleImputer() = default;
  explicit SimpleImputer(Options options) : options_(std::move(options)) {}

  void begin(const Schema& schema) {
    const bool takes_text = options_.with == Impute::most_frequent || options_.with == Impute::constant;
    const auto names = detail::columns_meant(
        name, schema, options_.columns, options_.except, takes_text ? "numbers or a text per sample" : "numbers",
        [&](const Field& field) { return detail::has_numbers(field) || (takes_text && field.is_text); });
    learned_ = {};
    std::vector<std::string> of_numbers;
    for (const std::string& column : names) {
      (schema[schema.index_of(column)].is_text ? learned_.texts : of_numbers).push_back(column);
    }
    learned_.numbers = {schema, of_numbers};
    seen_.clear();
    for (std::size_t at = 0; at < learned_.numbers.size() + learned_.texts.size(); ++at) {
      seen_.push_back(statistic(detail::compose("{}: {}", name, column_of(at))));
    }
  }
  void add(const Block& block) {
    if (options_.with == Impute::constant) return;
    learned_.numbers.visit_present(block, name, [this](std::size_t feature, std::span<const double> values) {
      std::visit([&](auto& seen) { add_numbers(seen, values); }, seen_[feature]);
    });
    for (std::size_t at = 0; at < learned_.texts.size(); ++at) {
      auto& counts = std::get<detail::CategoryCounts>(seen_[learned_.numbers.size() + at]);
      detail::visit_cells(text_field(block.schema(), learned_.texts[at]), block.column(learned_.texts[at]),
                          detail::CategoryKind::text, [&](std::size_t, const detail::CategoryView& text) {
                            if (!std::holds_alternative<MissingCell>(text)) counts.add(text);
                          });
    }
  }
  [[nodiscard]] std::vector<std::byte> statistics() const { return detail::to_bytes(seen_); }
  void merge(std::span<const std::byte> bytes) {
    const auto others = detail::from_bytes<std::vector<Statistic>>(bytes);
    for (std::size_t at = 0; at < seen_.size(); ++at) {
      if (others.size() != seen_.size() || others[at].index() != seen_[at].index()) {
        throw DataError{"a SimpleImputer cannot merge what one of other columns, or another strategy, has learned"};
      }
      std::visit([&](auto& seen) { seen.merge(std::get<std::decay_t<decltype(seen)>>(others[at])); }, seen_[at]);
    }
  }
  void finish() {
    std::vector<double> numbers;  // all or none
    std::vector<std::string> texts;
    for (std::size_t at = 0; at < seen_.size(); ++at) {
      const Category fill = fill_of(seen_[at], at >= learned_.numbers.size(), column_of(at));
      if (const auto* text = std::get_if<std::string>(&fill)) {
        texts.push_back(*text);
      } else {
        numbers.push_back(std::get<double>(fill));
      }
    }
    learned_.fill_numbers = std::move(numbers);
    learned_.fill_texts = std::move(texts);
    seen_.clear();
  }

  /// What empty cells of numbers become: of the elements of the first such column, then of the second.
  [[nodiscard]] const std::vector<double>& fill_numbers() const noexcept { return learned_.fill_numbers; }
  /// What empty texts become, by column.
  [[nodiscard]] const std::vector<std::string>& fill_texts() const noexcept { return learned_.fill_texts; }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(options_.columns); }
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const {
    detail::Fingerprint fingerprint = detail::fingerprint_of_learned(options_, learned_.numbers);
    fingerprint.add(learned_.texts);
    return fingerprint.value();
  }
  [[nodiscard]] Schema schema(const Schema& before) const {
    check_learned();
    for (const auto& column : learned_.numbers) {
      static_cast<void>(detail::FeatureColumns::field_in(before, column, name));
    }
    for (const std::string& column : learned_.texts) static_cast<void>(text_field(before, column));
    return before;
  }
  [[nodiscard]] Block transform(const Block& block) const {
    check_learned();
    std::vector<Field> fields;
    std::vector<Column> filled;
    for (const auto& column : learned_.numbers) {
      const Field& field = detail::FeatureColumns::field_in(block.schema(), column, name);
      if (!detail::is_real(field.dtype)) continue;
      fields.push_back(field);
      filled.push_back(fill(field, block.column(column.name), column));
    }
    for (std::size_t at = 0; at < learned_.texts.size(); ++at) {
      fields.push_back(text_field(block.schema(), learned_.texts[at]));
      const Column& column = block.column(learned_.texts[at]);
      std::vector<std::string> texts;
      for (std::size_t row = 0; row < column.rows(); ++row) {
        texts.emplace_back(column.text(row).empty() ? std::string_view{learned_.fill_texts[at]} : column.text(row));
      }
      filled.push_back(Column::texts(texts));
    }
    return detail::with_columns(block, fields, std::move(filled));
  }

  [[nodiscard]] State state() const { return detail::byte_state(learned_); }
  void load_state(const State& state) {
    auto learned = detail::from_state<Learned>(state);
    if (!learned.numbers.are_sound() || learned.fill_numbers.size() != learned.numbers.size() ||
        learned.fill_texts.size() != learned.texts.size()) {
      throw DataError{"the state of a SimpleImputer is damaged: it has not as many values as columns"};
    }
    learned_ = std::move(learned);
  }

 private:
  static constexpr std::string_view name = "SimpleImputer";

  // Stands for what a constant learns: nothing.
  struct Nothing {
    void merge(const Nothing&) noexcept {}
    static void fields(auto&, auto&) {}
  };
  using Statistic = std::variant<Nothing, detail::Moments, detail::QuantileSketch, detail::CategoryCounts>;
  struct Learned {
    detail::FeatureColumns numbers{};
    std::vector<std::string> texts{};
    std::vector<double> fill_numbers{};
    std::vector<std::string> fill_texts{};
    static void fields(auto& archive, auto& self) {
      archive(self.numbers, self.texts, self.fill_numbers, self.fill_texts);
    }
  };

  // As messages show it: of the features of numbers, and then of the texts.
  [[nodiscard]] std::string column_of(std::size_t at) const {
    const std::size_t num_features = learned_.numbers.size();
    return at < num_features ? learned_.numbers.name_of_feature(at)
                             : "column \"" + learned_.texts[at - num_features] + "\"";
  }
  [[nodiscard]] Statistic statistic(std::string where) const {
    if (options_.with == Impute::mean) return detail::Moments{};
    if (options_.with == Impute::median) return detail::QuantileSketch{options_.sketch_size};
    if (options_.with == Impute::most_frequent)
      return detail::CategoryCounts{options_.category_limit, std::move(where)};
    return Nothing{};
  }
  static void add_numbers(Nothing&, std::span<const double>) noexcept {}
  static void add_numbers(detail::CategoryCounts& seen, std::span<const double> values) {
    for (const double value : values) seen.add(value);
  }
  static void add_numbers(auto& seen, std::span<const double> values) { seen.add(values); }

  [[nodiscard]] Category fill_of(const Statistic& statistic, bool is_text, std::string_view column) const {
    return std::visit(
        [&](const auto& seen) -> Category {
          using S = std::decay_t<decltype(seen)>;
          if constexpr (std::is_same_v<S, Nothing>) {
            return is_text ? Category{options_.text} : Category{options_.number};
          } else {
            if (seen.count() == 0) {
              throw DataError{
                  detail::compose("{} found no value in {}: leave it out, or fill it with a constant", name, column)};
            }
            if constexpr (std::is_same_v<S, detail::Moments>) return seen.mean();
            if constexpr (std::is_same_v<S, detail::QuantileSketch>) return seen.quantiles(std::array{0.5}).front();
            if constexpr (std::is_same_v<S, detail::CategoryCounts>) return seen.most_frequent();
          }
        },
        statistic);
  }

  [[nodiscard]] Column fill(const Field& field, const Column& column, const detail::FeatureColumn& feature) const {
    std::vector<double> numbers;
    detail::read_numbers(field, column, numbers);
    bool is_full = true;
    for (std::size_t at = 0; at < numbers.size(); ++at) {
      if (!detail::is_missing(numbers[at])) continue;
      numbers[at] = learned_.fill_numbers[feature.first + at % feature.width];
      is_full = false;
    }
    return is_full ? column : detail::write_numbers(field, numbers);
  }

  void check_learned() const {
    if (learned_.fill_numbers.empty() && learned_.fill_texts.empty()) {
      throw ConfigError{"a SimpleImputer has learned nothing: call fit()"};
    }
  }
  [[nodiscard]] static const Field& text_field(const Schema& schema, const std::string& column) {
    const Field& field = schema[schema.index_of(column)];
    if (!field.is_text) detail::refuse_column(name, field, "text, as where it learned,");
    return field;
  }

  Options options_{};
  Learned learned_{};
  std::vector<Statistic> seen_{};  // between begin() and finish(): of the elements of numbers, then of the texts
};
static_assert(LearningPreprocessor<SimpleImputer>);

}  // namespace railyard::inline v0_1
