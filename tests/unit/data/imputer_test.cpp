// SPDX-License-Identifier: MIT
#include "railyard/data/imputer.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace imputer_test {
using preprocessing::fitted;
using preprocessing::infinity;
using preprocessing::nan;
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block holes() {
  return Rows{}
      .numbers<double>("a", {1, nan, 7, 2, 7})
      .numbers<float>("b", {2, 2, static_cast<float>(nan), 5, 5})
      .texts("c", {"y", "", "x", "x", "y"})
      .numbers<std::int64_t>("n", {(std::int64_t{1} << 60U) + 1, 2, 3, 4, 5})
      .block(100);
}
inline std::vector<std::string> texts_of(const ry::Block& block, const std::string& column) {
  std::vector<std::string> texts;
  for (std::size_t row = 0; row < block.rows(); ++row) texts.emplace_back(block.column(column).text(row));
  return texts;
}

// The expected numbers are those of sklearn.impute.SimpleImputer, scikit-learn 1.2.1.
TEST_CASE("SimpleImputer: fills with the mean, the median or the smallest of the most frequent values") {
  const auto fills = [](ry::Impute with) {
    return fitted(ry::SimpleImputer{{.columns = {"a", "b"}, .with = with}}, holes()).fill_numbers();
  };
  CHECK(fills(ry::Impute::mean) == std::vector<double>{4.25, 3.5});
  CHECK(fills(ry::Impute::median) == std::vector<double>{4.5, 3.5});
  CHECK(fills(ry::Impute::most_frequent) == std::vector<double>{7, 2});
}

TEST_CASE("SimpleImputer: fills empty cells alone and keeps dtypes and integers") {
  const auto imputer = fitted(ry::SimpleImputer{{.columns = {"a", "b", "n"}}}, holes());
  const ry::Block filled = imputer.transform(holes());
  CHECK(filled.schema() == holes().schema());
  CHECK(imputer.schema(holes().schema()) == holes().schema());
  CHECK(values_of(filled, "a") == std::vector<double>{1, 4.25, 7, 2, 7});
  CHECK(values_of(filled, "b") == std::vector<double>{2, 2, 3.5, 5, 5});
  CHECK(filled.column("n").values<std::int64_t>()[0] == (std::int64_t{1} << 60U) + 1);
  CHECK(texts_of(filled, "c") == texts_of(holes(), "c"));
  CHECK(filled.ids()[4] == 104);
}

TEST_CASE("SimpleImputer: fills texts with the first of the most frequent ones, or a constant") {
  const auto frequent = fitted(ry::SimpleImputer{{.columns = {"c"}, .with = ry::Impute::most_frequent}}, holes());
  CHECK(texts_of(frequent.transform(holes()), "c") == std::vector<std::string>{"y", "x", "x", "x", "y"});
  const auto constant = fitted(
      ry::SimpleImputer{{.columns = {"c", "a"}, .with = ry::Impute::constant, .number = -1, .text = "?"}}, holes());
  CHECK(texts_of(constant.transform(holes()), "c") == std::vector<std::string>{"y", "?", "x", "x", "y"});
  CHECK(values_of(constant.transform(holes()), "a") == std::vector<double>{1, -1, 7, 2, 7});
}

TEST_CASE("SimpleImputer: fills each element of a column with its own number") {
  const ry::Block block = Rows{}.numbers<double>("a", {1, nan, 3, 10, nan, 20}, {2}).block();
  const auto imputer = fitted(ry::SimpleImputer{{.columns = {"a"}}}, block);
  CHECK(values_of(imputer.transform(block), "a") == std::vector<double>{1, 15, 3, 10, 2, 20});
}

TEST_CASE("SimpleImputer: fills what was an integer column where it learned") {
  const auto imputer = fitted(ry::SimpleImputer{{.columns = {"n"}}}, Rows{}.numbers<std::int64_t>("n", {2, 4}).block());
  CHECK(values_of(imputer.transform(Rows{}.numbers<double>("n", {nan, 1}).block()), "n") == std::vector<double>{3, 1});
}

TEST_CASE("SimpleImputer: says what it cannot learn from") {
  const ry::Block block = Rows{}
                              .numbers<double>("empty", {nan, nan})
                              .texts("blank", {"", ""})
                              .numbers<double>("infinite", {1, infinity})
                              .block(20);
  const auto fit_on = [&](const std::string& column, ry::Impute with) {
    return fitted(ry::SimpleImputer{{.columns = {column}, .with = with}}, block);
  };
  for (const auto with : {ry::Impute::mean, ry::Impute::median, ry::Impute::most_frequent}) {
    CHECK_THROWS_WITH(fit_on("empty", with), ContainsSubstring("no value in column \"empty\""));
    CHECK_THROWS_WITH(fit_on("infinite", with), ContainsSubstring("sample 21"));
  }
  CHECK_THROWS_WITH(fit_on("blank", ry::Impute::most_frequent), ContainsSubstring("no value in column \"blank\""));
  CHECK_THROWS_WITH(fit_on("blank", ry::Impute::mean),
                    ContainsSubstring("needs numbers, and column \"blank\" has text"));
  CHECK(values_of(fit_on("empty", ry::Impute::constant).transform(block), "empty") == std::vector<double>{0, 0});
  CHECK(values_of(fit_on("infinite", ry::Impute::constant).transform(block), "infinite")[1] == infinity);
  CHECK_THROWS_AS(ry::SimpleImputer{{.columns = {"empty"}}}.transform(block), ry::ConfigError);
}

TEST_CASE("SimpleImputer: has learned nothing where it cannot learn from one of several columns") {
  const ry::Block block = Rows{}.numbers<double>("good", {1, nan}).numbers<double>("empty", {nan, nan}).block();
  ry::SimpleImputer imputer{{.columns = {"good", "empty"}}};
  CHECK_THROWS_AS(preprocessing::fit(imputer, block), ry::DataError);
  CHECK(imputer.fill_numbers().empty());
  CHECK_THROWS_WITH(imputer.transform(block), ContainsSubstring("has learned nothing"));
}

TEST_CASE("SimpleImputer: learns the same from any number of workers, and after a checkpoint") {
  for (const auto with : {ry::Impute::mean, ry::Impute::median, ry::Impute::most_frequent, ry::Impute::constant}) {
    const ry::SimpleImputer imputer{{.columns = {"a", "b"}, .with = with}};
    const auto expected = fitted(imputer, holes()).fill_numbers();
    for (const std::size_t workers : {1U, 2U, 9U}) {
      const auto learned = preprocessing::fitted_by_workers(imputer, holes(), workers);
      CHECK(preprocessing::are_near(preprocessing::reloaded(learned, ry::SimpleImputer{}).fill_numbers(), expected));
    }
  }
}

TEST_CASE("SimpleImputer: refuses what another strategy has learned") {
  ry::SimpleImputer mean{{.columns = {"a"}}};
  mean.begin(holes().schema());
  ry::SimpleImputer median{{.columns = {"a"}, .with = ry::Impute::median}};
  median.begin(holes().schema());
  CHECK_THROWS_AS(mean.merge(median.statistics()), ry::DataError);
}

TEST_CASE("SimpleImputer: finds the mean and the median of the largest numbers, and names the column of too many") {
  const ry::Block huge = Rows{}.numbers<double>("a", {1.5e308, -1.5e308, 1.5e308, 1.5e308, nan}).block();
  const auto fill = [](const ry::Block& block, ry::Impute with) {
    return fitted(ry::SimpleImputer{{.columns = {"a"}, .with = with}}, block).fill_numbers().front();
  };
  CHECK(fill(huge, ry::Impute::mean) == Approx(0.75e308));
  CHECK(fill(Rows{}.numbers<double>("a", {-1.5e308, 1.5e308}).block(), ry::Impute::median) == 0);
  ry::SimpleImputer few{{.columns = {"a", "c"}, .with = ry::Impute::most_frequent, .category_limit = 1}};
  CHECK_THROWS_WITH(fitted(few, holes()), ContainsSubstring("SimpleImputer: column \"a\" has more than 1 categories"));
}

}  // namespace imputer_test
