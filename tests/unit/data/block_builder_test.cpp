// SPDX-License-Identifier: MIT
#include "railyard/data/block_builder.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

const auto triple_schema = std::make_shared<const ry::Schema>(
    ry::Schema{{"x", ry::Dtype::f64}, {"list", ry::Dtype::u8, {-1, 2}}, ry::Field::text("t")});

}  // namespace

TEST_CASE("BlockBuilder: makes blocks of what is set, and begins anew") {
  ry::BlockBuilder builder{triple_schema};
  for (std::uint64_t id = 0; id < 3; ++id) {
    auto& out = builder.add(id + 5);
    out.set("t", std::string(id, 't'));
    out.set("list", std::vector<std::uint8_t>(2 * id, 3));
    out.set("x", 1);
    out.set("x", static_cast<double>(id) / 2);  // the last value stays
  }
  const auto block = builder.build();
  REQUIRE(block.rows() == 3);
  CHECK(block.ids()[2] == 7);
  CHECK(block[0].values<double>()[1] == 0.5);
  CHECK(block[1].sample(2).size() == 4);
  CHECK(block[2].text(0).empty());
  CHECK(block[2].text(2) == "tt");
  CHECK(builder.build().rows() == 0);
}

TEST_CASE("BlockBuilder: takes the last sample back") {
  ry::BlockBuilder builder{triple_schema};
  auto& first = builder.add(0);
  first.set("x", 1);
  first.set("list", std::vector<std::uint8_t>{1, 2});
  first.set("t", "kept");
  builder.add(1).set("t", "dropped");
  builder.drop_last();
  const auto block = builder.build();
  REQUIRE(block.rows() == 1);
  CHECK(block[2].text(0) == "kept");
}

TEST_CASE("BlockBuilder: refuses what does not fit into a column") {
  ry::BlockBuilder builder{triple_schema};
  auto& out = builder.add(0);
  CHECK_THROWS_WITH(out.set("list", std::vector<std::uint8_t>(3)), ContainsSubstring("a multiple of 2"));
  CHECK_THROWS_WITH(out.set("x", std::vector<double>(2)), ContainsSubstring("was set to 2 x f64, and a sample has 1"));
  CHECK_THROWS_WITH(out.set("t", 1), ContainsSubstring("column \"t\" is text"));
  CHECK_THROWS_WITH(out.set("x", "1"), ContainsSubstring("column \"x\" is numbers"));
  CHECK_THROWS_WITH(builder.add(1), ContainsSubstring("was not set"));
}

TEST_CASE("BlockBuilder: refuses numbers that a column of integers cannot hold") {
  ry::BlockBuilder builder{
      std::make_shared<const ry::Schema>(ry::Schema{{"small", ry::Dtype::u8}, {"large", ry::Dtype::i64}})};
  auto& out = builder.add(0);
  for (const double value : {256.0, -1.0, 1e30, std::nan(""), -std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH(out.set("small", value), ContainsSubstring("column \"small\" is u8 and was set to"));
  }
  CHECK_THROWS_WITH(out.set("small", 300), ContainsSubstring("300"));
  CHECK_THROWS_WITH(out.set("large", 0x1p63), ContainsSubstring("cannot hold"));
  CHECK_THROWS_WITH(out.set("large", std::uint64_t{1} << 63U), ContainsSubstring("cannot hold"));
  CHECK_THROWS_WITH(out.set("large", -0x1.0000000000001p63), ContainsSubstring("cannot hold"));
  CHECK_THROWS_WITH(out.set("small", std::int8_t{-1}), ContainsSubstring("-1"));
  CHECK_THROWS_WITH(out.set("large", -0x1p63 * 2), ContainsSubstring("cannot hold"));
  out.set("small", -0.9);
  out.set("small", true);
  out.set("small", 255.9);
  out.set("large", -0x1p63);
  const auto block = builder.build();
  CHECK(block[0].values<std::uint8_t>()[0] == 255);
  CHECK(block[1].values<std::int64_t>()[0] == std::numeric_limits<std::int64_t>::min());
}
