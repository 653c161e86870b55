// SPDX-License-Identifier: MIT
#include "railyard/torch/batch.hpp"

#include "support/catch.hpp"

#include "railyard/core/error.hpp"
#include "railyard/data/block_builder.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace batch_test {

/// Has three samples: two columns of numbers, a label, a text and numbers that differ in length.
inline ry::Block samples() {
  const auto schema = std::make_shared<const ry::Schema>(std::vector<ry::Field>{
      {.name = "height", .dtype = ry::Dtype::f64},
      {.name = "place", .dtype = ry::Dtype::i32, .shape = {2}},
      {.name = "label", .dtype = ry::Dtype::i64},
      ry::Field::text("name"),
      {.name = "grades", .dtype = ry::Dtype::i64, .shape = {-1}},
  });
  ry::BlockBuilder builder{schema};
  for (int at = 0; at < 3; ++at) {
    ry::SampleWriter& sample = builder.add(static_cast<std::uint64_t>(at));
    sample.set("height", at + 0.5);
    sample.set("place", std::vector<std::int32_t>{at, -at});
    sample.set("label", at * 10);
    sample.set("name", std::string(static_cast<std::size_t>(at), 'a'));
    sample.set("grades", std::vector<std::int64_t>(static_cast<std::size_t>(at), 7));
  }
  return builder.build();
}

TEST_CASE("Batch: of samples has the label as target, and the other columns of numbers side by side as data") {
  const ry::Batch batch{samples(), "label"};
  CHECK(batch.size() == 3);
  CHECK(batch.completes_step());
  CHECK(torch::equal(batch.data, torch::tensor({{0.5F, 0.F, 0.F}, {1.5F, 1.F, -1.F}, {2.5F, 2.F, -2.F}})));
  CHECK(torch::equal(batch.target, torch::tensor({0, 10, 20}, torch::kLong)));
  CHECK(batch.columns().schema().size() == 5);
}

TEST_CASE("Batch: of samples without a label has no target, and a single column of numbers as it is") {
  const ry::Block all = samples();
  const auto schema = std::make_shared<const ry::Schema>(std::vector<ry::Field>{all.schema()[1], all.schema()[3]});
  const ry::Batch batch{ry::Block{schema, {all[1], all[3]}, {0, 1, 2}}};
  CHECK_FALSE(batch.target.defined());
  CHECK(torch::equal(batch.data, torch::tensor({{0, 0}, {1, -1}, {2, -2}}, torch::kInt)));
}

TEST_CASE("Batch: of samples refuses a label of texts, and says what makes numbers of them") {
  CHECK_THROWS_WITH((ry::Batch{samples(), "name"}),
                    ContainsSubstring("the label \"name\" is a column of texts") && ContainsSubstring("LabelEncoder"));
}

TEST_CASE("Batch: of samples refuses a label that is no column, and names those that are") {
  CHECK_THROWS_WITH((ry::Batch{samples(), "lable"}), ContainsSubstring("\"lable\"") && ContainsSubstring("\"label\""));
}

TEST_CASE("Batch: gives any column by name, those that differ in length with padding") {
  const ry::Batch batch{samples(), "label", -1};
  CHECK(torch::equal(batch.tensor("height"), torch::tensor({0.5, 1.5, 2.5}, torch::kDouble)));
  CHECK(torch::equal(batch.tensor("grades"), torch::tensor({{-1, -1}, {7, -1}, {7, 7}}, torch::kLong)));
  CHECK_THROWS_WITH(batch.tensor("grade"), ContainsSubstring("\"grades\""));
}

TEST_CASE("Batch: gives texts as their bytes") {
  const at::Tensor names = ry::Batch{samples(), "label"}.tensor("name");
  CHECK(torch::equal(names, torch::tensor({{0, 0}, {97, 0}, {97, 97}}, torch::kByte)));  // a is 97
}

TEST_CASE("Batch: tells how long the samples of a column are") {
  const ry::Batch batch{samples(), "label"};
  CHECK(torch::equal(batch.lengths("grades"), torch::tensor({0, 1, 2}, torch::kLong)));
  CHECK(torch::equal(batch.lengths("place"), torch::tensor({2, 2, 2}, torch::kLong)));
  CHECK(torch::equal(batch.lengths("height"), torch::tensor({1, 1, 1}, torch::kLong)));
}

TEST_CASE("Batch: has tensors of its own, so that the loop may write to them") {
  ry::Batch batch{samples(), "label"};
  batch.data.zero_();
  batch.target.zero_();
  CHECK(batch.tensor("height")[2].item<double>() == 2.5);
  CHECK(batch.columns().column("label").values<std::int64_t>()[2] == 20);
}

TEST_CASE("Batch: keeps what its loader says, and has no columns where that has no Dataset") {
  const ry::Batch standing_in{torch::ones({1, 2}), torch::ones({1}), 0, false};
  CHECK(standing_in.size() == 0);
  CHECK_FALSE(standing_in.completes_step());
  CHECK_THROWS_AS(standing_in.columns(), ry::ConfigError);
  CHECK_THROWS_AS(standing_in.tensor("x"), ry::ConfigError);
  CHECK_THROWS_AS(standing_in.lengths("x"), ry::ConfigError);
  CHECK_FALSE(ry::Batch{}.data.defined());
}

}  // namespace batch_test
