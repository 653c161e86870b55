// SPDX-License-Identifier: MIT
// What scalers have in common: they learn about each feature of columns of numbers, and change it by that. Data room.
#pragma once

#include "railyard/data/preprocessor.hpp"

#include "railyard/data/detail/byte_archive.hpp"
#include "railyard/data/detail/feature_columns.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/numbers.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Is what a ColumnScaler does to one feature (one element of one column). Writing one adds a scaler: options (an
/// aggregate of at most 8 numbers, enumerators, texts, and vectors of these) with the fields columns and except,
/// statistics that are collected and merged, what is learned of them, and how a value changes by it. All but the
/// options have fields() as detail::ByteWriter wants it: the rule's are the options that apply() looks at.
template <class R>
concept ScalingRule = std::semiregular<R> &&
    requires(const R& rule, typename R::Options options, double value, typename R::Statistics statistics,
             const typename R::Learned& learned) {
  { R::name } -> std::convertible_to<std::string_view>;
  R{options};
  { rule.options() } -> std::convertible_to<typename R::Options>;
  { rule.statistics() } -> std::same_as<typename R::Statistics>;
  statistics.add(std::span<const double>{});
  statistics.merge(statistics);
  { statistics.count() } -> std::convertible_to<std::uint64_t>;
  { rule.learn(statistics) } -> std::same_as<typename R::Learned>;
  { rule.apply(value, learned) } -> std::convertible_to<double>;
};

/// Scales columns of numbers, feature by feature, and gives columns of the same names: of the same dtype if that is a
/// real one, else of f64. Missing values are not learned from and stay missing. A feature that is the same in all
/// samples, one sample included, is shifted and not scaled. Integers beyond 2^53 round to the nearest double. An
/// infinite value cannot be learned from (DataError); transform() treats it as arithmetic does. A feature without any
/// value is a DataError in finish().
template <ScalingRule Rule>
class ColumnScaler {
 public:
  using Options = typename Rule::Options;

  ColumnScaler() = default;
  /// Example: StandardScaler scaler{{.columns = {"age", "height"}}};
  explicit ColumnScaler(Options options) : rule_(std::move(options)) {}

  void begin(const Schema& schema) {
    const Options options = rule_.options();
    learned_ = {};
    learned_.columns = {schema, detail::columns_meant(Rule::name, schema, options.columns, options.except, "numbers",
                                                      detail::has_numbers)};
    statistics_.assign(learned_.columns.size(), rule_.statistics());
  }
  void add(const Block& block) {
    learned_.columns.visit_present(block, Rule::name, [this](std::size_t feature, std::span<const double> values) {
      statistics_[feature].add(values);
    });
  }
  [[nodiscard]] std::vector<std::byte> statistics() const { return detail::to_bytes(statistics_); }
  void merge(std::span<const std::byte> bytes) {
    const auto others = detail::from_bytes<std::vector<typename Rule::Statistics>>(bytes);
    if (others.size() != statistics_.size()) {
      throw DataError{detail::compose("{} of {} features cannot merge what was learned of {}", Rule::name,
                                      statistics_.size(), others.size())};
    }
    for (std::size_t feature = 0; feature < others.size(); ++feature) statistics_[feature].merge(others[feature]);
  }
  void finish() {
    std::vector<typename Rule::Learned> features;  // all or none
    for (const auto& statistics : statistics_) {
      if (statistics.count() == 0) {
        throw DataError{detail::compose("{} found no value in {}: leave it out, or impute a constant first", Rule::name,
                                        learned_.columns.name_of_feature(features.size()))};
      }
      features.push_back(rule_.learn(statistics));
    }
    learned_.features = std::move(features);
    learned_.rule = rule_;
    statistics_.clear();
  }

  /// What was learned of each feature: of the elements of the first column, then of the second.
  [[nodiscard]] std::span<const typename Rule::Learned> learned() const noexcept { return learned_.features; }

  /// The columns that it looks at or changes.
  [[nodiscard]] TouchedColumns touches() const { return detail::touched(rule_.options().columns); }
  /// Another when the options are, or the columns that it has learned from.
  [[nodiscard]] std::uint64_t fingerprint() const {
    return detail::fingerprint_of_learned(Options{rule_.options()}, learned_.columns).value();
  }
  [[nodiscard]] Schema schema(const Schema& before) const {
    std::vector<Field> fields;
    for (const detail::FeatureColumn& column : columns()) fields.push_back(field_after(before, column));
    return detail::with_fields(before, fields);
  }
  [[nodiscard]] Block transform(const Block& block) const {
    std::vector<Field> fields;
    std::vector<Column> scaled;
    std::vector<double> numbers;
    for (const detail::FeatureColumn& column : columns()) {
      fields.push_back(field_after(block.schema(), column));
      const std::size_t index = block.schema().index_of(column.name);
      detail::read_numbers(block.schema()[index], block[index], numbers);
      for (std::size_t at = 0; at < numbers.size(); at += column.width) {
        for (std::size_t element = 0; element < column.width; ++element) {
          double& number = numbers[at + element];
          if (!detail::is_missing(number)) {
            number = learned_.rule.apply(number, learned_.features[column.first + element]);
          }
        }
      }
      scaled.push_back(detail::write_numbers(fields.back(), numbers));
    }
    return detail::with_columns(block, fields, std::move(scaled));
  }

  [[nodiscard]] State state() const { return detail::byte_state(learned_); }
  void load_state(const State& state) {
    auto learned = detail::from_state<Learned>(state);
    if (!learned.columns.are_sound() || learned.features.size() != learned.columns.size()) {
      throw DataError{detail::compose("the state of a {} has {} features and {} numbers of them", Rule::name,
                                      learned.columns.size(), learned.features.size())};
    }
    learned_ = std::move(learned);
  }

 private:
  struct Learned {
    Rule rule{};
    detail::FeatureColumns columns{};
    std::vector<typename Rule::Learned> features{};
    static void fields(auto& archive, auto& self) { archive(self.rule, self.columns, self.features); }
  };

  [[nodiscard]] const detail::FeatureColumns& columns() const {
    if (learned_.features.empty()) throw ConfigError{detail::compose("{} has learned nothing: call fit()", Rule::name)};
    return learned_.columns;
  }
  [[nodiscard]] static Field field_after(const Schema& before, const detail::FeatureColumn& column) {
    Field field = detail::FeatureColumns::field_in(before, column, Rule::name);
    if (!detail::is_real(field.dtype)) field.dtype = Dtype::f64;
    return field;
  }

  Rule rule_{};
  Learned learned_{};
  std::vector<typename Rule::Statistics> statistics_{};  // between begin() and finish()
};

}  // namespace railyard::inline v0_1
