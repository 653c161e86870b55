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

template <class Source>
void check_skipping(const Source& in_order, const Source& counted) {
  const auto count = *counted.count();
  const auto reader = in_order.open(0);
  std::uint64_t seen = 0;
  for (ry::Block block = reader->next(5); !block.empty(); block = reader->next(5)) {
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

// Where the first damage is an error: it is the same whether it was read, or counted by the line ends alone.
template <class Source>
void check_stopping(const Source& in_order, const Source& counted) {
  std::uint64_t seen = 0;
  const auto reader = in_order.open(0);
  for (ry::Block block = reader->next(100); !block.empty(); block = reader->next(100)) seen += block.rows();
  fuzz::require(in_order.count() == seen);
  fuzz::require(counted.count() == seen);
}

template <class Source>
void check(const std::string& path, typename Source::Options options) {
  try {
    options.on_error = ry::OnError::skip();
    check_skipping(Source{path, options}, Source{path, options});
    options.on_error = ry::OnError::stop();
    check_stopping(Source{path, options}, Source{path, options});
  } catch (const ry::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string path = fuzz::write_file({reinterpret_cast<const char*>(data) + 1, size - 1});
  const bool flag = data[0] % 2 == 0;
  switch (data[0] / 2 % 3) {
    case 0:
      check<ry::CsvSource>(path, {.has_header = flag, .inference_rows = 2});
      break;
    case 1:
      check<ry::JsonLinesSource>(path, {.flatten = flag, .ignore_unknown = flag, .inference_rows = 2});
      break;
    default:
      check<ry::TextLinesSource>(path, {.has_blank_lines = flag});
  }
  return 0;
}
