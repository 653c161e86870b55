// SPDX-License-Identifier: MIT
#include "railyard/data/column_scaler.hpp"

#include "railyard/data/scalers.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace column_scaler_test {
using preprocessing::are_near;
using preprocessing::fitted;
using preprocessing::infinity;
using preprocessing::nan;
using preprocessing::Rows;
using preprocessing::values_of;

/// A rule as a user would write it: divides by the largest value.
struct PeakRule {
  static constexpr std::string_view name = "PeakScaler";
  using Options = ry::ScalerOptions;
  using Statistics = ry::detail::Extremes;
  struct Learned {
    double peak = 1;
    static void fields(auto& archive, auto& self) { archive(self.peak); }
  };
  PeakRule() = default;
  explicit PeakRule(Options options) : options_(std::move(options)) {}
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] Statistics statistics() const { return {}; }
  [[nodiscard]] Learned learn(const Statistics& seen) const { return {.peak = seen.largest()}; }
  [[nodiscard]] double apply(double value, const Learned& learned) const { return value / learned.peak; }
  static void fields(auto&, auto&) {}

 private:
  Options options_{};
};

TEST_CASE("ColumnScaler: takes a user's rule") {
  using PeakScaler = ry::ColumnScaler<PeakRule>;
  static_assert(ry::LearningPreprocessor<PeakScaler>);
  const ry::Block block = Rows{}.numbers<float>("a", {1, 2, 4}).block();
  const auto scaler = preprocessing::reloaded(fitted(PeakScaler{{.columns = {"a"}}}, block), PeakScaler{});
  CHECK(values_of(scaler.transform(block), "a") == std::vector<double>{0.25, 0.5, 1});
}

TEST_CASE("ColumnScaler: takes the elements of a column one by one") {
  const ry::Block block = Rows{}.numbers<float>("a", {0, 10, 1, 30, 2, 20}, {2}).block();
  const auto scaler = fitted(ry::MinMaxScaler{{.columns = {"a"}}}, block);
  CHECK(values_of(scaler.transform(block), "a") == std::vector<double>{0, 0, 0.5, 1, 1, 0.5});
  CHECK(scaler.transform(block).schema() == block.schema());
}

TEST_CASE("ColumnScaler: keeps real dtypes and makes f64 of others") {
  const ry::Block block = Rows{}
                              .numbers<float>("f32", {0, 1})
                              .numbers<ry::Float16>("f16", {ry::Float16{0.0F}, ry::Float16{4.0F}})
                              .numbers<std::uint8_t>("u8", {0, 255})
                              .block();
  const auto scaler = fitted(ry::MinMaxScaler{{.columns = {"f32", "f16", "u8"}}}, block);
  const ry::Block scaled = scaler.transform(block);
  CHECK(scaled.schema() == scaler.schema(block.schema()));
  CHECK(scaled.schema()[0].dtype == ry::Dtype::f32);
  CHECK(scaled.schema()[1].dtype == ry::Dtype::f16);
  CHECK(scaled.schema()[2].dtype == ry::Dtype::f64);
  for (const std::string column : {"f32", "f16", "u8"}) {
    CHECK(values_of(scaled, column) == std::vector<double>{0, 1});
  }
}

TEMPLATE_TEST_CASE("ColumnScaler: shifts and does not scale a constant feature, one sample included", "",
                   ry::StandardScaler, ry::MinMaxScaler, ry::RobustScaler) {
  for (const std::size_t samples : {std::size_t{1}, std::size_t{1000}}) {
    const ry::Block block = Rows{}.numbers("a", std::vector<double>(samples, 0.1)).block();
    const auto scaler = fitted(TestType{{.columns = {"a"}}}, block);
    CHECK(are_near(values_of(scaler.transform(block), "a"), std::vector<double>(samples, 0), 1e-15));
    const ry::Block other = Rows{}.numbers<double>("a", {3.1}).block();
    CHECK(are_near(values_of(scaler.transform(other), "a"), {3}, 1e-12));
  }
}

TEMPLATE_TEST_CASE("ColumnScaler: says what it cannot learn from", "", ry::StandardScaler, ry::MinMaxScaler,
                   ry::MaxAbsScaler, ry::RobustScaler) {
  const ry::Block block = Rows{}
                              .numbers<double>("good", {1, 2})
                              .numbers<double>("empty", {nan, nan})
                              .numbers<double>("infinite", {1, -infinity})
                              .texts("text", {"x", "y"})
                              .block(70);
  const auto fit_on = [&](const std::string& column) { fitted(TestType{{.columns = {column}}}, block); };
  fit_on("good");
  CHECK_THROWS_WITH(fit_on("empty"), ContainsSubstring("found no value in column \"empty\""));
  CHECK_THROWS_WITH(fit_on("infinite"), ContainsSubstring("sample 71") && ContainsSubstring("\"infinite\""));
  CHECK_THROWS_WITH(fit_on("text"), ContainsSubstring("needs numbers, and column \"text\" has text"));
  CHECK_THROWS_WITH(fit_on("gone"), ContainsSubstring("there is no column \"gone\""));
  CHECK_THROWS_WITH(fitted(TestType{}, block), ContainsSubstring("name some with .columns"));
  CHECK_THROWS_WITH(fitted(TestType{{.columns = {"good"}}}, block.slice(0, 0)), ContainsSubstring("found no value"));
  CHECK_THROWS_AS(TestType{{.columns = {"good"}}}.transform(block), ry::ConfigError);
}

TEST_CASE("ColumnScaler: has learned nothing where it cannot learn from one of several features") {
  const ry::Block block = Rows{}.numbers<double>("good", {1, 2}).numbers<double>("empty", {nan, nan}).block();
  ry::StandardScaler scaler{{.columns = {"good", "empty"}}};
  CHECK_THROWS_AS(preprocessing::fit(scaler, block), ry::DataError);
  CHECK(scaler.learned().empty());
  CHECK_THROWS_WITH(scaler.transform(block), ContainsSubstring("has learned nothing"));
}

TEST_CASE("ColumnScaler: lets infinities and missing values that it did not learn from be what they are") {
  const auto scaler = fitted(ry::StandardScaler{{.columns = {"a"}}}, Rows{}.numbers<double>("a", {1, 2}).block());
  const ry::Block block = Rows{}.numbers<double>("a", {infinity, -infinity, nan}).block();
  CHECK(are_near(values_of(scaler.transform(block), "a"), {infinity, -infinity, nan}));
}

TEST_CASE("ColumnScaler: rounds integers beyond 2^53 to the nearest double") {
  const std::int64_t large = (std::int64_t{1} << 53U) + 1;
  const ry::Block block = Rows{}.numbers<std::int64_t>("a", {0, large}).block();
  CHECK(fitted(ry::MinMaxScaler{{.columns = {"a"}}}, block).learned()[0].largest == 9007199254740992.0);
}

TEST_CASE("ColumnScaler: is the same after a checkpoint, options included") {
  const ry::Block block = Rows{}.numbers<double>("a", {1, 2, 4}).numbers<double>("b", {1, 2, 9}).block();
  const auto saved = fitted(ry::MinMaxScaler{{.columns = {"a", "b"}, .low = -3, .high = 5, .clips = true}}, block);
  const ry::Block other = Rows{}.numbers<double>("a", {-9, 3}).numbers<double>("b", {9, 90}).block();
  const ry::Block scaled = preprocessing::reloaded(saved, ry::MinMaxScaler{}).transform(other);
  CHECK(values_of(scaled, "a") == values_of(saved.transform(other), "a"));
  CHECK(values_of(scaled, "b") == std::vector<double>{5, 5});
}

TEST_CASE("ColumnScaler: refuses a state that is another's, cut short, or of a column of another size") {
  const ry::Block block = Rows{}.numbers<double>("a", {1, 2, 4}).block();
  const auto scaler = fitted(ry::StandardScaler{{.columns = {"a"}}}, block);
  ry::State state = scaler.state();
  ry::StandardScaler other;
  state.tensors[0].shape[0] -= 1;
  CHECK_THROWS_AS(other.load_state(state), ry::DataError);
  CHECK_THROWS_AS(other.load_state(ry::State{}), ry::DataError);
  CHECK_THROWS_AS(other.load_state(fitted(ry::MaxAbsScaler{{.columns = {"a"}}}, block).state()), ry::DataError);
  CHECK_THROWS_AS(scaler.transform(Rows{}.numbers<double>("a", {1, 2}, {2}).block()), ry::ConfigError);
}
}  // namespace column_scaler_test
