// SPDX-License-Identifier: MIT
#include "railyard/data/function_source.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace ry = railyard;

TEST_CASE("SampleFunctionSource: makes any sample, and all in turn") {
  const ry::SampleFunctionSource source{{{"x", ry::Dtype::f32}}, 5, [](std::uint64_t id, ry::SampleWriter& out) {
                                          if (id == 4) throw std::runtime_error{"gone"};
                                          out.set("x", id * 10);
                                        }};
  CHECK(source.read(std::vector<std::uint64_t>{3, 1})[0].values<float>()[0] == 30);
  const auto reader = source.open(2);
  CHECK(reader->next(2).ids()[1] == 3);
  CHECK_THROWS_WITH(reader->next(2), ContainsSubstring("function: sample 4: gone"));
  CHECK_THROWS_AS(source.read(std::vector<std::uint64_t>{4}), ry::DataError);
}

TEST_CASE("GeneratorSource: begins anew each time it is opened, and goes on by making what was before again") {
  int begun = 0;
  const ry::GeneratorSource source{{{"x", ry::Dtype::f32}}, [&begun] {
                                     ++begun;
                                     return [at = 0](ry::SampleWriter& out) mutable {
                                       out.set("x", at);
                                       return at++ < 5;
                                     };
                                   }};
  CHECK(source.open(0)->next(9).rows() == 5);
  const auto later = source.open(3);
  const auto block = later->next(9);
  CHECK(begun == 2);
  REQUIRE(block.rows() == 2);
  CHECK(block.ids()[0] == 3);
  CHECK(block[0].values<float>()[0] == 3);
  CHECK(later->next(9).empty());
  CHECK(source.open(9)->next(1).empty());
}

TEST_CASE("GeneratorSource: names the sample where the generator throws or leaves a column out") {
  const ry::GeneratorSource source{{{"x", ry::Dtype::f32}}, [] {
                                     return [at = 0](ry::SampleWriter& out) mutable {
                                       if (at++ < 2) out.set("x", at);
                                       return true;
                                     };
                                   }};
  CHECK_THROWS_WITH(source.open(0)->next(9), ContainsSubstring("generator: sample 2: column \"x\" was not set"));
}
