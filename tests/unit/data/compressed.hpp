// SPDX-License-Identifier: MIT
// What the tests of compressed files share.
#pragma once

#include "railyard/core/error.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace compressed {

namespace ry = railyard;

/// Returns lines of two numbers, of which the first ones count from begin to end - 1.
inline std::string many_rows(int begin, int end) {
  std::string text;
  for (int row = begin; row < end; ++row) text += std::to_string(row) + "," + std::to_string(row * 7919 % 1000) + "\n";
  return text;
}

/// Returns the text of a file of three parts, each compressed alone: more than the pieces of input and of output.
template <class Compress>
std::string parts_of_many_rows(const Compress& compress) {
  return compress("id,x\n" + many_rows(0, 60'000)) + compress(many_rows(60'000, 60'001)) +
         compress(many_rows(60'001, 100'000));
}

/// Checks that these parts are read as one, from any sample on.
template <class Files>
void check_many_rows(const Files& files) {
  const ry::CsvStream source{files, {.label = "x"}};
  CHECK(source.count() == std::nullopt);
  CHECK(source.label() == "x");
  std::int64_t next = 0;
  const auto reader = source.open(0);
  for (ry::Block block = reader->next(1000); !block.empty(); block = reader->next(1000)) {
    for (const std::int64_t id : block.column("id").values<std::int64_t>()) REQUIRE(id == next++);
  }
  CHECK(next == 100'000);
  CHECK(source.open(70'000)->next(1).ids()[0] == 70'000);
  CHECK(source.open(100'000)->next(1).empty());
}

/// Reads all lines and returns the error that this ends with.
template <class Files>
std::string error_of_lines(const Files& files) {
  try {
    const ry::TextLinesStream source{files};
    for (const auto reader = source.open(0); !reader->next(1000).empty();) {
    }
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace compressed
