// SPDX-License-Identifier: MIT
#include "railyard/data/any_preprocessor.hpp"

#include "railyard/data/batch_mapper.hpp"
#include "railyard/data/chain.hpp"
#include "railyard/data/concatenator.hpp"
#include "railyard/data/encoders.hpp"
#include "railyard/data/imputer.hpp"
#include "railyard/data/normalizer.hpp"
#include "railyard/data/scalers.hpp"
#include "railyard/data/tokenizer.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace any_preprocessor_test {
using preprocessing::Rows;
using preprocessing::values_of;

TEST_CASE("AnyPreprocessor: does what the one inside does") {
  const ry::Block block = Rows{}.numbers<double>("a", {1, 2, 4}).block();
  const ry::AnyPreprocessor scaler =
      preprocessing::fitted_by_workers(ry::AnyPreprocessor{ry::MaxAbsScaler{{.columns = {"a"}}}}, block, 2);
  CHECK(scaler.passes() == 1);
  CHECK(values_of(scaler.transform(block), "a") == std::vector<double>{0.25, 0.5, 1});
  CHECK(scaler.schema(block.schema()) == block.schema());
  const ry::AnyPreprocessor loaded = preprocessing::reloaded(scaler, ry::AnyPreprocessor{ry::MaxAbsScaler{}});
  CHECK(values_of(loaded.transform(block), "a") == std::vector<double>{0.25, 0.5, 1});
}

TEST_CASE("AnyPreprocessor: has no state and needs no samples where the one inside learns nothing") {
  const ry::AnyPreprocessor concatenator{ry::Concatenator{{.columns = {"a"}}}};
  CHECK(concatenator.passes() == 0);
  CHECK(concatenator.state().tensors.empty());
  CHECK(concatenator.statistics().empty());
}

// Ones of a type of which each differs from the first in one option, which are all that the type has.
template <class P>
std::vector<ry::AnyPreprocessor> variants(std::vector<typename P::Options> options) {
  std::vector<ry::AnyPreprocessor> all;
  for (auto& one : options) all.emplace_back(P{std::move(one)});
  return all;
}

std::vector<std::int64_t> one_token(std::string_view /*text*/) { return {1}; }

std::vector<std::vector<ry::AnyPreprocessor>> variants_of_all() {
  const auto same = [](const ry::Block& block) { return block; };
  const auto copy = [](const ry::Block& block) { return ry::Block{block}; };
  return {variants<ry::StandardScaler>(
              {{}, {.columns = {"a"}}, {.except = {"a"}}, {.except = {"b"}}, {.centers = false}, {.scales = false}}),
          variants<ry::MinMaxScaler>(
              {{}, {.columns = {"a"}}, {.except = {"a"}}, {.low = -1}, {.high = 2}, {.clips = true}}),
          variants<ry::MaxAbsScaler>({{}, {.columns = {"a"}}, {.except = {"a"}}, {.except = {"a", "b"}}}),
          variants<ry::RobustScaler>(
              {{}, {.columns = {"a"}}, {.except = {"a"}}, {.low = 0.1}, {.high = 0.9}, {.sketch_size = 64}}),
          variants<ry::OneHotEncoder>(
              {{}, {.columns = {"a"}}, {.except = {"a"}}, {.unseen = ry::Unseen::ignore}, {.category_limit = 3}}),
          variants<ry::OrdinalEncoder>({{},
                                        {.columns = {"a"}},
                                        {.except = {"a"}},
                                        {.unseen = ry::Unseen::ignore},
                                        {.unseen_value = -2},
                                        {.category_limit = 3}}),
          {ry::LabelEncoder{"a"}, ry::LabelEncoder{"b"}},
          variants<ry::SimpleImputer>({{},
                                       {.columns = {"a"}},
                                       {.except = {"a"}},
                                       {.with = ry::Impute::median},
                                       {.number = 1},
                                       {.text = "none"},
                                       {.sketch_size = 64},
                                       {.category_limit = 3}}),
          variants<ry::Normalizer>({{}, {.columns = {"a"}}, {.except = {"a"}}, {.norm = ry::Norm::max}}),
          variants<ry::Concatenator>({{},
                                      {.columns = {"a"}},
                                      {.except = {"a"}},
                                      {.output = "x"},
                                      {.dtype = ry::Dtype::f64},
                                      {.keeps_columns = true}}),
          variants<ry::Tokenizer>({{.tokens = one_token},
                                   {.columns = {"a"}, .tokens = one_token},
                                   {.tokens = [](std::string_view) { return std::vector<std::int64_t>{}; }}}),
          {ry::BatchMapper{same}, ry::BatchMapper{copy}},
          {ry::Chain{}, ry::Chain{ry::Normalizer{}}, ry::Chain{ry::Normalizer{{.except = {"a"}}}},
           ry::Chain{ry::BatchMapper{same}}, ry::Chain{ry::BatchMapper{copy}}}};
}

TEST_CASE("AnyPreprocessor: tells apart those of one type that differ in any one option") {
  const auto all = variants_of_all();
  for (std::size_t number = 0; number < all.size(); ++number) {
    const auto& of_type = all[number];
    for (std::size_t one = 0; one < of_type.size(); ++one) {
      CAPTURE(number, one);
      CHECK((of_type[one].passes() == 0 || of_type[one].types_alike().empty()));
      for (std::size_t other = 0; other < of_type.size(); ++other) {
        CAPTURE(other);
        CHECK((of_type[one].kind() == of_type[other].kind()) == (one == other));
      }
    }
  }
}

TEST_CASE("AnyPreprocessor: is of the same kind when it has learned anew, and of another when of other columns") {
  const auto learned_kind = [](const auto& untrained, const ry::Block& block) {
    return ry::AnyPreprocessor{preprocessing::fitted(untrained, block)}.kind();
  };
  const auto check = [&](const auto& untrained) {
    const auto numbers = [](const std::string& name, double first) {
      return Rows{}.numbers<double>(name, {first, 2, 4}).numbers<double>("label", {0, 1, 0}).block();
    };
    CHECK(learned_kind(untrained, numbers("a", 1)) == learned_kind(untrained, numbers("a", 3)));
    CHECK(learned_kind(untrained, numbers("a", 1)) != learned_kind(untrained, numbers("b", 1)));
    auto loaded = preprocessing::reloaded(preprocessing::fitted(untrained, numbers("a", 1)), untrained);
    CHECK(ry::AnyPreprocessor{loaded}.kind() == learned_kind(untrained, numbers("a", 3)));
  };
  check(ry::StandardScaler{{.except = {"label"}}});
  check(ry::OneHotEncoder{{.except = {"label"}}});
  check(ry::OrdinalEncoder{{.except = {"label"}}});
  check(ry::SimpleImputer{{.except = {"label"}}});
  check(ry::Chain{ry::RobustScaler{{.except = {"label"}}}});
}

// May know its columns, and tells of nothing else.
struct PerhapsKnowing {
  ry::TouchedColumns columns{};

  ry::TouchedColumns touches() const { return columns; }
  ry::Schema schema(const ry::Schema& before) const { return before; }
  ry::Block transform(const ry::Block& block) const { return block; }
};

TEST_CASE("AnyPreprocessor: of one that does not know its columns nothing tells but the type") {
  CHECK(ry::AnyPreprocessor{PerhapsKnowing{{{"a"}}}}.types_alike().empty());
  CHECK(ry::AnyPreprocessor{PerhapsKnowing{}}.types_alike().size() == 1);
}
}  // namespace any_preprocessor_test
