// SPDX-License-Identifier: MIT
// What an earlier program has written about a run. Train room.
#pragma once

#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/json_values.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/value.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says where a report stands in metrics.jsonl. Lines can be missing: training goes on when one cannot be written.
struct HistoryLine {
  std::int64_t report = 0;
  std::uint64_t end = 0;
};

/// Is what run.json, result.json and metrics.jsonl say.
struct RunRecord {
  std::string backend{};
  std::string scaling{};
  int world_size = 0;
  std::uint64_t seed = 0;
  bool has_succeeded = false;
  double seconds = 0;
  std::vector<Metrics> history{};
  std::vector<HistoryLine> lines{};  ///< of history, in metrics.jsonl
};

/// Returns what is in a file; nothing if there is none. Throws: DataError if it cannot be read.
[[nodiscard]] inline std::string text_of_file(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream file{path, std::ios::binary};
  if (!file.is_open() && (errno == 0 || errno == ENOENT)) return {};
  try {
    if (file.is_open()) return {std::istreambuf_iterator<char>{file}, {}};
  } catch (const std::ios_base::failure&) {  // whoever asks a stream's buffer is told of errors so
  }
  throw DataError{compose("{} cannot be read: {}", path.string(), explain_errno(errno))};
}

/// Returns one line of metrics.jsonl without the columns that are not the user's.
[[nodiscard]] inline Metrics metrics_of_line(const Json& json) {
  Metrics metrics;
  for (const std::string& name : json.names()) {
    if (name == "report" || name == "seconds") continue;
    const Json& value = json.at(name);
    // What has no place in JSON was written as null.
    metrics.set(name,
                value.kind() == Json::Kind::null ? Value{std::numeric_limits<double>::quiet_NaN()} : read_value(value));
  }
  return metrics;
}

/// Reads the lines of metrics.jsonl; what follows the first one that is damaged was being written when its program
/// died.
inline void read_history(const std::filesystem::path& path, RunRecord& record) {
  const std::string text = text_of_file(path);
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    try {
      const Json json = parse_json(std::string_view{text}.substr(begin, end - begin));
      const auto report = json.at("report").as<std::int64_t>();
      record.history.push_back(metrics_of_line(json));
      begin = end + 1;
      record.lines.push_back({.report = report, .end = begin});
    } catch (const std::exception&) {
      return;
    }
  }
}

/// Reads the record of the run in that directory. Throws: ConfigError if it is none, or damaged.
[[nodiscard]] inline RunRecord read_run_record(const std::filesystem::path& run) {
  RunRecord record;
  try {
    const Json json = parse_json(text_of_file(run / "run.json"));
    record.backend = json.at("backend").text();
    record.scaling = json.at("scaling").text();
    record.world_size = json.at("world_size").as<int>();
    record.seed = json.at("seed").as<std::uint64_t>();
  } catch (const std::exception& error) {
    throw ConfigError{compose(
        "{} exists, but its run.json is no record of a run ({}): choose another RunConfig::name, or put back the "
        "file as it was",
        run.string(), error.what())};
  }
  try {
    const Json json = parse_json(text_of_file(run / "result.json"));
    record.has_succeeded = json.at("succeeded").boolean();
    record.seconds = json.at("seconds").as<double>();
  } catch (const std::exception&) {  // it has not come to its end
    record.has_succeeded = false;
  }
  try {
    read_history(run / "metrics.jsonl", record);
  } catch (const DataError& error) {
    throw ConfigError{compose("{}: make it readable, or choose another RunConfig::name", error.what())};
  }
  return record;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
