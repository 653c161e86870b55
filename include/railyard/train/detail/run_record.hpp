// SPDX-License-Identifier: MIT
// What an earlier program has written about a run. Train room.
#pragma once

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/json.hpp"
#include "railyard/checkpoint/detail/json_values.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/value.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
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

/// Is what run.json, result.json, metrics.jsonl and events.jsonl say.
struct RunRecord {
  std::string backend{};
  std::string scaling{};
  int world_size = 0;
  std::optional<std::uint64_t> seed{};
  NamedValues settings{};      ///< all that run.json says; empty if it is lost
  bool is_recovered = false;   ///< run.json is lost, and the newest checkpoint has said what it did
  bool has_succeeded = false;  ///< and what was to be saved of it is
  double seconds = 0;
  std::vector<Metrics> history{};
  std::vector<HistoryLine> lines{};  ///< of history, in metrics.jsonl
  std::string last_checkpoint{};     ///< the newest that was ever written; empty if none was
  std::vector<std::string> problems{};
};

/// Returns what is in a file; nothing if there is none. Throws: DataError if it cannot be read.
[[nodiscard]] inline std::string text_of_file(const std::filesystem::path& path,
                                              const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  return content_of(*files, path).value_or(std::string{});
}

/// Returns what run.json says, but for numbers that JSON does not know.
[[nodiscard]] inline NamedValues values_of_record(const Json& json) {
  NamedValues values;
  for (std::size_t at = 0; at < json.names().size(); ++at) {
    if (json.items()[at].kind() != Json::Kind::null) values.set(json.names()[at], read_value(json.items()[at]));
  }
  return values;
}

/// Returns one line of metrics.jsonl without the columns that are not the user's.
[[nodiscard]] inline Metrics metrics_of_line(const Json& json) {
  Metrics metrics;
  for (std::size_t at = 0; at < json.names().size(); ++at) {
    const std::string& name = json.names()[at];
    if (name == "report" || name == "seconds") continue;
    const Json& value = json.items()[at];
    // What has no place in JSON was written as null.
    metrics.set(name,
                value.kind() == Json::Kind::null ? Value{std::numeric_limits<double>::quiet_NaN()} : read_value(value));
  }
  return metrics;
}

/// Calls take with each line of a file of JSON objects and where it ends, and adds to problems how many are damaged.
/// What follows the last line feed was being written when its program died.
template <class Take>
void read_json_lines(const std::filesystem::path& path, const std::shared_ptr<Files>& files,
                     std::vector<std::string>& problems, const Take& take) {
  const std::string text = text_of_file(path, files);
  std::size_t begin = 0;
  std::size_t number = 0;
  std::size_t num_damaged = 0;
  std::size_t first_damaged = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    ++number;
    try {
      take(parse_json(std::string_view{text}.substr(begin, end - begin)), std::uint64_t{end + 1});
    } catch (const std::exception&) {
      if (num_damaged++ == 0) first_damaged = number;
    }
    begin = end + 1;
  }
  if (num_damaged == 0) return;
  problems.push_back(compose("{} line(s) of {} are damaged and left out, the first one is line {}", num_damaged,
                             path.string(), first_damaged));
}

/// Reads the lines of metrics.jsonl.
inline void read_history(const std::filesystem::path& path, const std::shared_ptr<Files>& files, RunRecord& record) {
  read_json_lines(path, files, record.problems, [&record](const Json& json, std::uint64_t end) {
    const auto report = json.at("report").as<std::int64_t>();
    record.history.push_back(metrics_of_line(json));
    record.lines.push_back({.report = report, .end = end});
  });
}

/// Reads the lines of events.jsonl: a checkpoint is durable before it is told of there.
inline void read_events(const std::filesystem::path& path, const std::shared_ptr<Files>& files, RunRecord& record) {
  try {
    std::vector<std::string> ignored;  // the run needs none of its lines
    read_json_lines(path, files, ignored, [&record](const Json& json, std::uint64_t /*end*/) {
      const std::string event{json.at("event").text()};
      if (event == "checkpoint") record.last_checkpoint = json.at("path").text();
      if (event == "begun_anew") record.last_checkpoint.clear();
    });
  } catch (const DataError&) {  // neither is the file needed
  }
}

/// Whether a run has told that it has written checkpoints: before the first one, run.json came to the disk.
[[nodiscard]] inline bool tells_of_checkpoints(const std::filesystem::path& run, const std::shared_ptr<Files>& files) {
  RunRecord record;
  read_events(run / "events.jsonl", files, record);
  return !record.last_checkpoint.empty();
}

/// Takes from the newest checkpoint what run.json has said, which is lost or damaged: why says how.
/// Throws: ConfigError if there is none.
inline void recover_record(const std::filesystem::path& run, const std::shared_ptr<Files>& files, std::string_view why,
                           RunRecord& record) {
  const auto newest = newest_checkpoint(run, files);
  if (!newest) {
    throw ConfigError{compose(
        "{} exists, but its run.json is no record of a run ({}): choose another RunConfig::name, or put back the "
        "file as it was",
        run.string(), why)};
  }
  const Manifest& manifest = newest->manifest();
  const auto value_of = [&manifest](std::string_view name) {
    const Value* value = manifest.environment.find(name);
    return value != nullptr && value->is<std::string>() ? value->as<std::string>() : std::string{};
  };
  record = {.backend = value_of("backend"),
            .scaling = value_of("scaling"),
            .world_size = manifest.world_size,
            .seed = number_between<std::uint64_t>("", value_of("seed"), ""),
            .is_recovered = true};
  record.problems.push_back(compose("{} is lost ({}), and is made anew from what {} says{}",
                                    (run / "run.json").string(), why, newest->path().string(),
                                    record.seed ? "" : ", but for the seed, for which RunConfig::seed is taken"));
}

/// Reads the record of the run in that directory. Throws: ConfigError if it is none, or damaged beyond recovery.
[[nodiscard]] inline RunRecord read_run_record(const std::filesystem::path& run,
                                               const std::shared_ptr<Files>& files = std::make_shared<Files>()) {
  RunRecord record;
  try {
    const std::string text = text_of_file(run / "run.json", files);
    try {
      const Json json = parse_json(text);
      record.backend = json.at("backend").text();
      record.scaling = json.at("scaling").text();
      record.world_size = json.at("world_size").as<int>();
      record.seed = json.at("seed").as<std::uint64_t>();
      record.settings = values_of_record(json);
    } catch (const std::exception& error) {
      recover_record(run, files, text.empty() ? "it is empty or not there" : error.what(), record);
    }
  } catch (const DataError& error) {
    throw ConfigError{compose("{}: make it readable, or choose another RunConfig::name", error.what())};
  }
  try {
    const Json json = parse_json(text_of_file(run / "result.json", files));
    const Json* is_saved = json.find("state_saved");
    record.has_succeeded = json.at("succeeded").boolean() && (is_saved == nullptr || is_saved->boolean());
    record.seconds = json.at("seconds").as<double>();
  } catch (const std::exception&) {  // it has not come to its end
    record.has_succeeded = false;
  }
  try {
    read_history(run / "metrics.jsonl", files, record);
    read_events(run / "events.jsonl", files, record);
  } catch (const DataError& error) {
    throw ConfigError{compose("{}: make it readable, or choose another RunConfig::name", error.what())};
  }
  return record;
}

}  // namespace detail
}  // namespace railyard::inline v0_1
