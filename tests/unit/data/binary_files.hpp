// SPDX-License-Identifier: MIT
// What the tests of sources of binary files share.
#pragma once

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/error.hpp"

#include "support/catch.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace binary_files {

namespace ry = railyard;

/// Returns the bytes of a number.
template <class T>
std::string bytes_of(T number, std::endian order = std::endian::little) {
  std::string bytes(reinterpret_cast<const char*>(&number), sizeof number);
  return order == std::endian::native ? bytes : std::string{bytes.rbegin(), bytes.rend()};
}
template <class T>
std::string bytes_of(const std::vector<T>& numbers, std::endian order = std::endian::little) {
  std::string bytes;
  for (const T number : numbers) bytes += bytes_of(number, order);
  return bytes;
}

/// Returns the values of a column of all samples, read one after another.
template <class T, class Source>
std::vector<T> all_values(const Source& source, const std::string& column, std::size_t most_rows = 3) {
  std::vector<T> values;
  const auto reader = source.open(0);
  std::uint64_t next = 0;
  for (ry::Block block = reader->next(most_rows); !block.empty(); block = reader->next(most_rows)) {
    REQUIRE(block.rows() <= most_rows);
    for (const std::uint64_t id : block.ids()) REQUIRE(id == next++);
    const auto part = block.column(column).values<T>();
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

/// Checks that the source gives each sample alone, in another order, and from any sample on, as one after another.
template <class Source>
void check_order_of(const Source& source) {
  const std::uint64_t count = *source.count();
  const auto reader = source.open(0);
  std::vector<std::uint64_t> backwards;
  for (std::uint64_t id = count; id-- > 0;) backwards.push_back(id);
  const ry::Block reversed = source.read(backwards);
  const ry::Schema schema = source.schema();
  for (std::uint64_t id = 0; id < count; ++id) {
    const ry::Block next = reader->next(1);
    REQUIRE(next.rows() == 1);
    const ry::Block from = source.open(id)->next(1);
    for (std::size_t column = 0; column < schema.size(); ++column) {
      CHECK(next[column].text(0) == reversed[column].text(static_cast<std::size_t>(count - 1 - id)));
      CHECK(next[column].text(0) == from[column].text(0));
    }
  }
  CHECK(reader->next(1).empty());
  CHECK(source.open(count)->next(1).empty());
  const std::uint64_t behind[] = {count};
  CHECK_THROWS_AS(source.read(behind), ry::ConfigError);
}

/// Reads all samples and returns the error that this ends with.
template <class Source>
std::string error_of(const Source& source) {
  try {
    for (const auto reader = source.open(0); !reader->next(100).empty();) {
    }
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace binary_files
