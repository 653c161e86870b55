// SPDX-License-Identifier: MIT
// Samples out of files of comma-separated values (RFC 4180). Data room.
#pragma once

#include "railyard/data/csv_source_options.hpp"
#include "railyard/data/detail/csv_parser.hpp"
#include "railyard/data/detail/csv_plan.hpp"
#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/record_source.hpp"

#include "railyard/core/dataset_source.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace railyard::inline v0_1 {

/// Is CSV as a RecordFormat. Fields may be quoted, and hold separators, line breaks and doubled quotes then; lines end
/// with LF or CRLF; lines with nothing on them are left out.
struct CsvFormat {
  using Options = CsvSourceOptions;
  using Plan = detail::CsvPlan;
  using Parser = detail::CsvParser;
  static constexpr const char* name = "CSV";

  [[nodiscard]] static detail::RecordRules rules(const Options& options) { return {.quote = options.quote}; }
  static void identify(const Options& options, detail::Fingerprint& fingerprint) {
    fingerprint.add(options.delimiter);
    fingerprint.add(options.quote);
    fingerprint.add(options.has_header);
    fingerprint.add(options.names);
    fingerprint.add(options.missing);
  }
  [[nodiscard]] static std::shared_ptr<const Plan> plan(const Options& options, const std::string& file,
                                                        detail::TextHead& head) {
    return detail::make_csv_plan(options, file, head);
  }
  [[nodiscard]] static bool has_records(const Options& options, const detail::TextHead& head) {
    return detail::has_csv_records(options, head);
  }

  /// Returns how many characters the header takes, or nothing if more text is needed to say so. Throws: DataError if it
  /// is not that of the first file.
  [[nodiscard]] static std::optional<std::size_t> header_size(const Plan& plan, const std::string& file,
                                                              const char* text, std::size_t size, bool is_end) {
    if (!plan.options.has_header) return 0;
    detail::CsvCutter cutter{plan.options.delimiter, plan.options.quote};
    cutter.cut(text, size, is_end);
    if (cutter.records().empty()) return is_end ? std::optional{size} : std::nullopt;
    detail::check_csv_header(cutter, file);
    const auto names = detail::csv_names(cutter, plan.options.quote, true);
    for (std::size_t at = 0; at < std::max(names.size(), plan.header.size()); ++at) {
      const std::string here = at < names.size() ? names[at] : "nothing";
      const std::string there = at < plan.header.size() ? plan.header[at] : "nothing";
      if (here == there || (at < names.size() && at < plan.header.size() && !plan.options.names.empty())) continue;
      throw DataError{
          detail::compose("{}:1: column {} of the header is \"{}\", and in {} it is \"{}\": files that are "
                          "read as one have the same columns",
                          file, at + 1, detail::shown_text(here), plan.file, detail::shown_text(there))};
    }
    return cutter.end(0);
  }
};

/// Reads CSV files, by path, list or pattern, as one source: the numbers of a file's samples follow the former file's.
/// Example: ry::Dataset digits{ry::CsvSource{"digits-*.csv", {.label = "digit"}}};
using CsvSource = RecordSource<CsvFormat>;
static_assert(IndexedSource<CsvSource>);

/// Reads compressed CSV files, one sample after another. Example: ry::CsvStream{ry::gzip("digits.csv.gz"), {}}
using CsvStream = RecordStream<CsvFormat>;
static_assert(DatasetSource<CsvStream> && !IndexedSource<CsvStream>);

}  // namespace railyard::inline v0_1
