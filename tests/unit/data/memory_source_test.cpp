// SPDX-License-Identifier: MIT
#include "railyard/data/memory_source.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

namespace ry = railyard;

TEST_CASE("MemorySource: gives any of its samples, and copies nothing where they follow each other") {
  const ry::MemorySource source{
      {{"x", std::vector<float>{0, 1, 2, 3, 4}}, {"p", {3}, std::vector<std::uint8_t>(15, 1)}}};
  CHECK(source.count() == 5);
  const auto part = source.read(std::vector<std::uint64_t>{1, 2, 3});
  CHECK(part[0].values<float>()[2] == 3);
  CHECK(part[0].bytes().data() == source.read(std::vector<std::uint64_t>{1})[0].bytes().data());
  const auto mixed = source.read(std::vector<std::uint64_t>{4, 0, 4});
  CHECK(mixed[0].values<float>()[0] == 4);
  CHECK(mixed[0].values<float>()[1] == 0);
  CHECK(mixed[1].sample(2).size() == 3);
  CHECK(mixed.ids()[2] == 4);
}

TEST_CASE("MemorySource: goes on with any sample") {
  const ry::MemorySource source{{{"x", std::vector<float>{0, 1, 2, 3, 4}}}};
  const auto reader = source.open(2);
  CHECK(reader->next(2)[0].values<float>()[0] == 2);
  CHECK(reader->next(9).rows() == 1);
  CHECK(reader->next(9).empty());
  CHECK(source.open(7)->next(1).empty());
}

TEST_CASE("MemorySource: refuses columns that differ in length or are no whole samples") {
  CHECK_THROWS_WITH((ry::MemorySource{{{"x", std::vector<float>(3)}, {"y", std::vector<float>(2)}}}),
                    ContainsSubstring("column \"y\" has 2 samples and column \"x\" has 3"));
  CHECK_THROWS_WITH((ry::NamedColumn{"p", {2}, std::vector<float>(3)}), ContainsSubstring("are no column \"p\""));
  CHECK_THROWS_WITH((ry::MemorySource{{{"x", std::vector<float>(3)}, {"x", std::vector<float>(3)}}}),
                    ContainsSubstring("two columns are named"));
}
