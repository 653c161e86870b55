// SPDX-License-Identifier: MIT
// Gives the readers of text files whatever libFuzzer comes up with: they refuse it or read it, and what they say of a
// sample does not depend on whether it is read alone, after others, or out of order.
#include "railyard/data/csv_source.hpp"
#include "railyard/data/json_lines_source.hpp"
#include "railyard/data/text_lines_source.hpp"

#include "fuzz/sources.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

// The blocks grow, so that few of them have all the rows of the longest input.
template <class Source>
void check_skipping(const Source& in_order, const Source& counted) {
  const auto count = *counted.count();
  const auto reader = in_order.open(0);
  std::uint64_t seen = 0;
  std::size_t most_rows = 5;
  for (ry::Block block = reader->next(most_rows); !block.empty(); block = reader->next(most_rows *= 2)) {
    const std::vector<std::uint64_t> backwards(block.ids().rbegin(), block.ids().rend());
    const ry::Block others = counted.read(backwards);
    for (std::size_t row = 0; row < block.rows(); ++row) {
      fuzz::require(block.ids()[row] == seen++);
      fuzz::require(fuzz::are_equal(block, row, others, block.rows() - 1 - row));
    }
    fuzz::require(fuzz::are_equal(block, block.rows() - 1, counted.read(std::span{backwards}.first(1)), 0));
  }
  fuzz::require(seen == count);
  fuzz::require(in_order.count() == count);
  if (seen > 1) fuzz::require(counted.open(seen / 2)->next(1).ids()[0] == seen / 2);
}

// Where the first damage is an error: all is read where nothing is damaged, as many samples as the line ends alone say,
// and as whoever has read them has counted, which are looked at in turn: each costs as much as the reading.
template <class Source>
void check_stopping(const Source& source, bool is_damaged, bool counts_line_ends) {
  if (counts_line_ends) static_cast<void>(source.count());  // which is kept
  std::uint64_t seen = 0;
  const auto reader = source.open(0);
  try {
    for (ry::Block block = reader->next(100); !block.empty(); block = reader->next(100)) seen += block.rows();
  } catch (const ry::DataError&) {
    fuzz::require(is_damaged);
    return;
  }
  fuzz::require(!is_damaged);
  fuzz::require(source.count() == seen);
}

template <class Source>
void check(const std::string& path, typename Source::Options options, bool counts_line_ends) {
  try {
    options.on_error = ry::OnError::skip();
    const Source in_order{path, options};
    check_skipping(in_order, Source{path, options});
    options.on_error = ry::OnError::stop();
    check_stopping(Source{path, options}, in_order.skipped() > 0, counts_line_ends);
  } catch (const ry::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string path = fuzz::write_file({reinterpret_cast<const char*>(data) + 1, size - 1});
  const bool flag = data[0] % 2 == 0;
  const bool counts_line_ends = size % 2 == 0;
  switch (data[0] / 2 % 3) {
    case 0:
      check<ry::CsvSource>(path, {.has_header = flag, .inference_rows = 2}, counts_line_ends);
      break;
    case 1:
      check<ry::JsonLinesSource>(path, {.flatten = flag, .ignore_unknown = flag, .inference_rows = 2},
                                 counts_line_ends);
      break;
    default:
      check<ry::TextLinesSource>(path, {.has_blank_lines = flag}, counts_line_ends);
  }
  return 0;
}
