// SPDX-License-Identifier: MIT
// Samples out of text files of which each line is one. Data room.
#pragma once

#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/line_cutter.hpp"
#include "railyard/data/detail/option_columns.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/record_faults.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/detail/utf8.hpp"
#include "railyard/data/on_error.hpp"
#include "railyard/data/record_source.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how files of text lines are read.
struct TextLinesSourceOptions {
  std::string column = "text";  ///< the name of the one column
  std::string label{};
  bool has_blank_lines = true;  ///< whether a line with nothing on it is a sample
  std::size_t max_record_bytes = std::size_t{64} << 20;
  OnError on_error = OnError::stop();
};

namespace detail {

struct TextLinesPlan {
  std::shared_ptr<const Schema> schema{};
  bool has_blank_lines = true;
};

/// Makes a column of text lines.
class TextLinesParser {
 public:
  explicit TextLinesParser(const std::shared_ptr<const TextLinesPlan>& plan) : cutter_(plan->has_blank_lines) {}

  std::size_t cut(const char* text, std::size_t size, bool /*is_end*/) { return cutter_.cut(text, size); }
  [[nodiscard]] std::size_t records() const noexcept { return cutter_.lines(); }
  [[nodiscard]] std::size_t begin(std::size_t record) const noexcept { return cutter_.begin(record); }
  [[nodiscard]] std::size_t end(std::size_t record) const noexcept { return cutter_.end(record); }

  [[nodiscard]] std::vector<Column> parse(RecordFaults& faults) const {
    std::vector<std::string> lines;
    lines.reserve(records());
    const std::vector<std::size_t> left_out = faults.records();
    for (std::size_t record = 0; record < records(); ++record) {
      if (std::binary_search(left_out.begin(), left_out.end(), record)) continue;
      const std::string_view line = cutter_.line(record);
      const std::size_t wrong = find_invalid_utf8(line);
      if (wrong == line.size()) {
        lines.emplace_back(line);
      } else {
        faults.add(record, [&] { return compose("byte {} of the line is not UTF-8 text", wrong + 1); });
      }
    }
    return {Column::texts(lines)};
  }

 private:
  LineCutter cutter_;
};

}  // namespace detail

/// Is text lines as a RecordFormat.
struct TextLinesFormat {
  using Options = TextLinesSourceOptions;
  using Plan = detail::TextLinesPlan;
  using Parser = detail::TextLinesParser;
  static constexpr const char* name = "text";

  [[nodiscard]] static detail::RecordRules rules(const Options& options) {
    return {.has_blank_records = options.has_blank_lines};
  }
  static void identify(const Options& options, detail::Fingerprint& fingerprint) {
    fingerprint.add(options.has_blank_lines);
  }
  [[nodiscard]] static std::shared_ptr<const Plan> plan(const Options& options, const std::string& file,
                                                        detail::TextHead& /*head*/) {
    const Schema schema{Field::text(options.column)};
    if (!options.label.empty()) (void)detail::column_of_option(file, ".label", schema, options.label);
    return std::make_shared<const Plan>(Plan{std::make_shared<const Schema>(schema), options.has_blank_lines});
  }
  [[nodiscard]] static std::optional<std::size_t> header_size(const Plan& /*plan*/, const std::string& /*file*/,
                                                              const char* /*text*/, std::size_t /*size*/,
                                                              bool /*is_end*/) {
    return 0;
  }
};

/// Reads the lines of text files, as CsvSource reads records. Example: ry::TextLinesSource{"books/*.txt"}
using TextLinesSource = RecordSource<TextLinesFormat>;
static_assert(IndexedSource<TextLinesSource>);

/// Reads the lines of compressed files. Example: ry::TextLinesStream{ry::gzip("books/*.txt.gz")}
using TextLinesStream = RecordStream<TextLinesFormat>;
static_assert(DatasetSource<TextLinesStream> && !IndexedSource<TextLinesStream>);

}  // namespace railyard::inline v0_1
