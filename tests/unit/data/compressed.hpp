// SPDX-License-Identifier: MIT
// What the tests of compressed files share.
#pragma once

#include "railyard/core/error.hpp"
#include "railyard/data/csv_source.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "support/catch.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace compressed {

namespace ry = railyard;

/// Returns lines of two numbers, of which the first ones count from begin to end - 1.
inline std::string many_rows(int begin, int end) {
  std::string text;
  for (int row = begin; row < end; ++row)
    text += std::to_string(row) + "," + std::to_string(row * 7919LL % 1000) + "\n";
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

/// Counts how often a file "1" was opened by open_counted(), which reads files as if they were compressed.
inline std::atomic<int>& times_first_opened() {
  static std::atomic<int> times{0};
  return times;
}
inline std::unique_ptr<ry::detail::ByteStream> open_counted(const std::string& path) {
  if (path.ends_with("1")) ++times_first_opened();
  return std::make_unique<ry::detail::FileBytes>(path);
}

/// Checks that whoever goes on at any place is given the rest, in all columns, and that the first file is left out
/// where that place is in another one. Samples of it: those before num_in_first.
inline void check_leaves_out_files(const ry::Dataset& dataset, std::uint64_t num_in_first) {
  const auto rest_of = [&](const ry::EpochOptions& options, std::vector<ry::EpochPosition>* places) {
    std::vector<std::string> rows;
    ry::EpochReader reader{dataset, options};
    while (const auto step = reader.next()) {
      std::string row;
      for (const std::uint64_t id : step->block.ids()) row += std::to_string(id) + " ";
      for (const ry::Column& column : step->block.columns()) {
        for (std::size_t at = 0; at < column.rows(); ++at) row += std::string{column.text(at)} + " ";
      }
      rows.push_back(std::move(row));
      if (places != nullptr) places->push_back(step->after);
    }
    return rows;
  };
  for (const std::size_t threads : {0U, 2U}) {
    ry::EpochOptions options{.global_batch_size = 2, .threads = threads, .bound_bytes = 1};
    std::vector<ry::EpochPosition> places;
    const auto whole = rest_of(options, &places);
    for (std::size_t at = 0; at < places.size(); ++at) {
      options.from = places[at];
      times_first_opened() = 0;
      CHECK(rest_of(options, nullptr) == std::vector(whole.begin() + static_cast<std::ptrdiff_t>(at) + 1, whole.end()));
      if (places[at].consumed() < num_in_first) CHECK(times_first_opened() == 1);
      if (places[at].consumed() > num_in_first + 2) CHECK(times_first_opened() == 0);
    }
  }
}

/// Checks that a source of two files refuses places that are none of them. last: the name of the second.
template <class Source>
void check_refuses_places(const Source& source, const std::string& last) {
  const auto error_of = [&](std::uint64_t from, const ry::ReaderPlace& place) -> std::string {
    try {
      static_cast<void>(source.open(from, place));
    } catch (const ry::DataError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of(0, {}) == "");
  CHECK_THAT(error_of(1, {.file = 1, .samples = 2}),
             ContainsSubstring(last) && ContainsSubstring("file 2 of 2") && ContainsSubstring("give those files"));
  CHECK_THAT(error_of(9, {.file = 2, .samples = 4}), ContainsSubstring("after its last file"));
  CHECK_THAT(error_of(9, {.file = 7, .samples = 9}), ContainsSubstring("after its last file, file 8 of 2"));
  CHECK_THAT(error_of(9, {.file = 0, .samples = 9}), ContainsSubstring("file 1 of 2"));
}

}  // namespace compressed
