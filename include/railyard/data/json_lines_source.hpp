// SPDX-License-Identifier: MIT
// Samples out of files of which each line is a JSON object. Data room.
#pragma once

#include "railyard/data/detail/fingerprint.hpp"
#include "railyard/data/detail/json_lines_parser.hpp"
#include "railyard/data/detail/json_lines_plan.hpp"
#include "railyard/data/detail/line_cutter.hpp"
#include "railyard/data/detail/record_counter.hpp"
#include "railyard/data/detail/text_head.hpp"
#include "railyard/data/json_lines_source_options.hpp"
#include "railyard/data/record_source.hpp"

#include "railyard/core/dataset_source.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace railyard::inline v0_1 {

/// Is JSON Lines as a RecordFormat. A key is a column: of numbers, truths, texts, or of arrays of numbers, which may
/// differ in length. A key that is missing or null is NaN, an empty text or an empty array.
struct JsonLinesFormat {
  using Options = JsonLinesSourceOptions;
  using Plan = detail::JsonLinesPlan;
  using Parser = detail::JsonLinesParser;
  static constexpr const char* name = "JSON Lines";

  [[nodiscard]] static detail::RecordRules rules(const Options& /*options*/) { return {}; }
  static void identify(const Options& options, detail::Fingerprint& fingerprint) {
    fingerprint.add(options.flatten);
    fingerprint.add(options.ignore_unknown);
  }
  [[nodiscard]] static std::shared_ptr<const Plan> plan(const Options& options, const std::string& file,
                                                        detail::TextHead& head) {
    return detail::make_json_lines_plan(options, file, head);
  }
  [[nodiscard]] static bool has_records(const Options& /*options*/, const detail::TextHead& head) {
    detail::LineCutter cutter{false};
    cutter.cut(head.text(), head.size());
    return !head.is_whole() || cutter.lines() > 0;
  }
  [[nodiscard]] static std::optional<std::size_t> header_size(const Plan& /*plan*/, const std::string& /*file*/,
                                                              const char* /*text*/, std::size_t /*size*/,
                                                              bool /*is_end*/) {
    return 0;
  }
};

/// Reads files of JSON Lines, as CsvSource reads records. Example: ry::JsonLinesSource{"reviews.jsonl"}
using JsonLinesSource = RecordSource<JsonLinesFormat>;
static_assert(IndexedSource<JsonLinesSource>);

/// Reads compressed files of JSON Lines. Example: ry::JsonLinesStream{ry::zstd("reviews.jsonl.zst")}
using JsonLinesStream = RecordStream<JsonLinesFormat>;
static_assert(DatasetSource<JsonLinesStream> && !IndexedSource<JsonLinesStream>);

}  // namespace railyard::inline v0_1
