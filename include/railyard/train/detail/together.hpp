// SPDX-License-Identifier: MIT
// What the process that leads a run tells the others about it: where it is, and how it ended. Train room.
#pragma once

#include "railyard/train/detail/lease_file.hpp"
#include "railyard/train/detail/run_ledger.hpp"
#include "railyard/train/detail/wire.hpp"
#include "railyard/train/result.hpp"
#include "railyard/train/run_config.hpp"
#include "railyard/train/scaling_config.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/version.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Names what a told text is.
enum class Told : std::uint8_t {
  begin = 1,    ///< workers are about to be made, for a run of that name in that directory
  result = 2,   ///< it has ended
  refused = 3,  ///< it could not begin: a ConfigError
  failed = 4,   ///< any other exception
};

/// Is a run that has begun, and by which lease whoever leads it is known.
struct BegunRun {
  std::string name{};
  std::filesystem::path path{};
  LeaseId lease{};
  bool is_seen = false;  ///< here: the directory, and in it that very lease, or one that it was handed on from
};

[[nodiscard]] inline std::string encode_begin(const BegunRun& run) {
  WireWriter writer;
  writer.put(Told::begin);
  writer.put_text(run.name);
  writer.put_text(run.path.string());
  writer.put(run.lease.generation);
  writer.put_text(run.lease.id);
  return writer.text();
}

/// Returns the run that is about to begin; nothing if the text tells of something else.
[[nodiscard]] inline std::optional<BegunRun> decode_begin(std::string_view text) {
  WireReader reader{text};
  if (reader.take<Told>() != Told::begin) return std::nullopt;
  BegunRun run{.name = reader.take_text()};
  run.path = reader.take_text();
  run.lease.generation = reader.take<std::uint64_t>();
  run.lease.id = reader.take_text();
  return run;
}

[[nodiscard]] inline std::string encode_refusal(Told kind, std::string_view why) {
  WireWriter writer;
  writer.put(kind);
  writer.put_text(why);
  return writer.text();
}

inline void put_checkpoint(WireWriter& writer, const Checkpoint& checkpoint) {
  writer.put_text(checkpoint.path().string());
}

[[nodiscard]] inline std::string encode_result(const Result& result) {
  WireWriter writer;
  writer.put(Told::result);
  writer.put_text(result.error());
  writer.put(static_cast<std::int32_t>(result.failed_rank()));
  writer.put(static_cast<std::int32_t>(result.exit_status()));
  put_all(writer, result.history(), [&](const Metrics& metrics) { put_metrics(writer, metrics); });
  writer.put_text(result.path().string());
  writer.put(static_cast<std::int32_t>(result.world_size()));
  writer.put(result.seconds());
  writer.put(result.timings());
  put_all(writer, result.warnings(), [&](const std::string& text) { writer.put_text(text); });
  put_all(writer, result.step_times_by_rank(), [&](const StepTimes& times) { writer.put(times); });
  put_attempts(writer, result.attempts());
  writer.put(static_cast<std::uint8_t>(result.checkpoint().has_value()));
  if (result.checkpoint()) put_checkpoint(writer, *result.checkpoint());
  put_all(writer, result.best_checkpoints(), [&](const Checkpoint& one) { put_checkpoint(writer, one); });
  writer.put(static_cast<std::int32_t>(result.failed_checkpoints()));
  writer.put(static_cast<std::uint8_t>(result.is_state_saved()));
  writer.put(static_cast<std::uint8_t>(result.is_recorded()));
  return writer.text();
}

/// Opens what the leader has written. Where the storage is not shared there is nothing to open: the Result says so.
[[nodiscard]] inline std::optional<Checkpoint> take_checkpoint(WireReader& reader, ResultFields& fields,
                                                               Checkpoint (*read)(const std::filesystem::path&)) {
  const std::string path = reader.take_text();
  try {
    return read(path);
  } catch (const Error& error) {
    fields.warnings.push_back(compose("the checkpoint is not to be seen from {}: {}", host_name(), error.what()));
    return std::nullopt;
  }
}

[[nodiscard]] inline Result decode_result(WireReader& reader) {
  ResultFields fields{.error = reader.take_text(), .is_leader = false};
  fields.failed_rank = reader.take<std::int32_t>();
  fields.exit_status = reader.take<std::int32_t>();
  take_all(reader, [&] { fields.history.push_back(take_metrics(reader)); });
  fields.path = reader.take_text();
  fields.world_size = reader.take<std::int32_t>();
  fields.seconds = reader.take<double>();
  fields.timings = reader.take<Timings>();
  take_all(reader, [&] { fields.warnings.push_back(reader.take_text()); });
  take_all(reader, [&] { fields.step_times_by_rank.push_back(reader.take<StepTimes>()); });
  fields.attempts = take_attempts(reader);
  if (reader.take<std::uint8_t>() != 0) fields.checkpoint = take_checkpoint(reader, fields, &Checkpoint::open);
  take_all(reader, [&] {
    if (auto one = take_checkpoint(reader, fields, &Checkpoint::peek))
      fields.best_checkpoints.push_back(std::move(*one));
  });
  fields.failed_checkpoints = reader.take<std::int32_t>();
  fields.is_state_saved = reader.take<std::uint8_t>() != 0;
  fields.is_recorded = reader.take<std::uint8_t>() != 0;
  return Result{std::move(fields)};
}

/// Returns what the leader's fit() has returned. Throws: what it has thrown.
[[nodiscard]] inline Result result_of_told(std::string_view text) {
  WireReader reader{text};
  const auto kind = reader.take<Told>();
  if (kind == Told::result) return decode_result(reader);
  const std::string why = reader.take_text();
  if (kind == Told::refused) throw ConfigError{why};
  throw Error{why};
}

/// Says what must be the same in all processes of a run; two that differ in anything of it would wait for each other.
[[nodiscard]] inline std::string common_settings(std::string_view backend, const WorkerCount& count, bool use_gpu,
                                                 const RunConfig& run) {
  const std::string workers =
      count.is_elastic() ? compose(", {} to {} workers together", count.min(), count.max()) : std::string{};
  return compose("railyard {}, {}{}{}, seed {}, name \"{}\", a checkpoint every {} steps{}{}", version, backend,
                 workers, use_gpu ? ", a GPU for each worker" : "", run.seed, run.name, run.checkpoint.every_steps,
                 run.accept_changes.empty() ? "" : ", accepts changes of ", joined(run.accept_changes, ", "));
}

/// Says on standard error what a process does before a run begins; nothing if it is to be quiet.
[[nodiscard]] inline std::function<void(const std::string&)> launch_lines(Progress progress) {
  if (progress == Progress::quiet) return {};
  return [](const std::string& line) { std::fprintf(stderr, "railyard: %s\n", line.c_str()); };
}

/// Returns how many workers a run of several processes may have, who make them all together at first; room: how many
/// those that are there can make. Throws: ConfigError if something else is to say that.
[[nodiscard]] inline ScalingConfig count_together(ScalingConfig config, int num_workers, std::function<int()> room) {
  if (!config.num_workers.is_elastic()) {
    config.num_workers = num_workers;
    return config;
  }
  if (config.capacity) {
    throw ConfigError{
        "ScalingConfig::capacity is set, but an engine has started several processes: there is room for as many "
        "workers as the processes make that are there; leave it empty"};
  }
  config.num_workers = WorkerCount{config.num_workers.min(), num_workers};
  config.capacity = std::move(room);
  return config;
}

/// Calls lead, and tells the other processes how it has ended, whichever way it does.
template <class S, class Lead>
[[nodiscard]] Result tell_others(S& scaling, const Lead& lead) {
  try {
    Result result = lead();
    scaling.tell(encode_result(result));
    return result;
  } catch (const ConfigError& error) {
    scaling.tell(encode_refusal(Told::refused, error.what()));
    throw;
  } catch (const std::exception& error) {
    scaling.tell(encode_refusal(Told::failed, error.what()));
    throw;
  }
}

}  // namespace detail
}  // namespace railyard::inline v0_1
