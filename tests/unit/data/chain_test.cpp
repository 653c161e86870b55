// SPDX-License-Identifier: MIT
#include "railyard/data/chain.hpp"

#include "railyard/data/batch_mapper.hpp"
#include "railyard/data/concatenator.hpp"
#include "railyard/data/encoders.hpp"
#include "railyard/data/imputer.hpp"
#include "railyard/data/normalizer.hpp"
#include "railyard/data/scalers.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace chain_test {
using preprocessing::are_near;
using preprocessing::fitted;
using preprocessing::nan;
using preprocessing::Rows;
using preprocessing::values_of;

inline ry::Block passengers() {
  return Rows{}
      .numbers<double>("age", {20, nan, 40})
      .texts("sex", {"f", "m", "f"})
      .numbers<std::int64_t>("survived", {1, 0, 1})
      .block();
}
inline ry::Chain untrained() {
  return ry::Chain{ry::SimpleImputer{{.columns = {"age"}}},
                   ry::BatchMapper{[](const ry::Block& block) { return block; }},
                   ry::MinMaxScaler{{.columns = {"age"}}}, ry::OneHotEncoder{{.columns = {"sex"}}},
                   ry::Concatenator{{.columns = {"age", "sex"}}}};
}

TEST_CASE("Chain: lets each step learn from what those before it make") {
  const ry::Chain chain = fitted(untrained(), passengers());
  CHECK(chain.passes() == 2);  // the function may change any column, so what follows waits for the imputer
  const ry::Block block = chain.transform(passengers());
  CHECK(values_of(block, "data") == std::vector<double>{0, 1, 0, 0.5, 0, 1, 1, 1, 0});
  CHECK(block.schema() == chain.schema(passengers().schema()));
  CHECK(block.schema().names() == "\"survived\", \"data\"");
}

TEST_CASE("Chain: lets steps of different columns learn in one pass what they would learn in several") {
  const auto learned_apart = [](auto... steps) {
    ry::Block block = passengers();
    ((preprocessing::fit(steps, block), block = steps.transform(block)), ...);
    return values_of(ry::Concatenator{{.columns = {"age", "sex", "survived"}}}.transform(block), "data");
  };
  const ry::SimpleImputer imputer{{.columns = {"age"}}};
  const ry::OrdinalEncoder encoder{{.columns = {"sex"}}};
  const ry::Normalizer normalizer{{.columns = {"sex"}, .norm = ry::Norm::l1}};
  const ry::StandardScaler scaler{{.columns = {"survived", "age"}}};
  const ry::MaxAbsScaler other{{.columns = {"sex"}}};
  const ry::Concatenator end{{.columns = {"age", "sex", "survived"}}};
  const ry::Chain chain{imputer, encoder, scaler, other, end};
  CHECK(chain.passes() == 2);
  CHECK(values_of(fitted(chain, passengers()).transform(passengers()), "data") ==
        learned_apart(imputer, encoder, scaler, other));
  CHECK(ry::Chain{imputer, encoder, normalizer}.passes() == 1);
  CHECK(ry::Chain{imputer, encoder, normalizer, other}.passes() == 2);  // which gets what the Normalizer makes
  CHECK(ry::Chain{imputer, ry::StandardScaler{{.except = {"age"}}}}.passes() == 2);
  CHECK(ry::Chain{imputer, end, ry::MinMaxScaler{{.columns = {"data"}}}}.passes() == 2);
}

TEST_CASE("Chain: learns the same from any number of workers, and after a checkpoint") {
  const auto expected = values_of(fitted(untrained(), passengers()).transform(passengers()), "data");
  for (const std::size_t workers : {1U, 2U, 3U, 5U}) {
    const ry::Chain learned = preprocessing::fitted_by_workers(untrained(), passengers(), workers);
    const ry::Chain loaded = preprocessing::reloaded(learned, untrained());
    CHECK(are_near(values_of(loaded.transform(passengers()), "data"), expected));
  }
  CHECK_THROWS_WITH(ry::Chain{ry::MaxAbsScaler{}}.load_state(untrained().state()),
                    ContainsSubstring("a Chain of 1 steps was given the state of one of 5"));
}

TEST_CASE("Chain: can be a step of a chain, empty, or nothing that learns") {
  const ry::Chain outer{std::vector<ry::AnyPreprocessor>{untrained(), ry::MaxAbsScaler{{.columns = {"data"}}}}};
  const ry::Chain learned = preprocessing::reloaded(fitted(outer, passengers()), outer);
  CHECK(learned.passes() == 3);
  CHECK(values_of(learned.transform(passengers()), "data")[3] == 0.5);
  CHECK(fitted(ry::Chain{}, passengers()).transform(passengers()).schema() == passengers().schema());
  const ry::Chain concatenates{ry::Concatenator{{.columns = {"age"}}}};
  CHECK(fitted(concatenates, passengers()).passes() == 0);
}

TEST_CASE("Chain: copies are independent") {
  const ry::Chain untouched = untrained();
  ry::Chain copy = untouched;
  preprocessing::fit(copy, passengers());
  CHECK_THROWS_AS(untouched.transform(passengers()), ry::ConfigError);
  ry::Chain assigned;
  assigned = copy;
  CHECK(values_of(assigned.transform(passengers()), "data")[3] == 0.5);
}

TEST_CASE("Chain: survives a state with any one byte changed, or says that it is damaged") {
  const ry::Chain chain{ry::SimpleImputer{{.columns = {"age", "sex"}, .with = ry::Impute::most_frequent}},
                        ry::MinMaxScaler{{.columns = {"age"}}}, ry::OneHotEncoder{{.columns = {"sex"}}}};
  const ry::State state = fitted(chain, passengers()).state();
  std::size_t num_refused = 0;
  for (std::size_t at = 0; at < state.tensors.size(); ++at) {
    for (std::int64_t damaged = 0; damaged < state.tensors[at].count(); ++damaged) {
      ry::State changed = state;
      changed.tensors[at].read = [&, at, damaged](std::int64_t begin, std::int64_t end, std::byte* to) {
        state.tensors[at].read(begin, end, to);
        to[damaged - begin] ^= std::byte{0x81};
      };
      ry::Chain loaded = chain;
      try {
        loaded.load_state(changed);
        static_cast<void>(loaded.transform(passengers()));
      } catch (const ry::Error&) {
        ++num_refused;
      }
    }
  }
  CHECK(num_refused > 100);
}
}  // namespace chain_test
