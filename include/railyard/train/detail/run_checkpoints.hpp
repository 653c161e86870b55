// SPDX-License-Identifier: MIT
// The checkpoints of a run as its supervisor sees them: put together, written, counted. Train room.
#pragma once

#include "railyard/train/controller.hpp"
#include "railyard/train/detail/accepted_changes.hpp"
#include "railyard/train/detail/checkpoint_writer.hpp"
#include "railyard/train/detail/patience.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/run_log.hpp"
#include "railyard/train/detail/save_book.hpp"
#include "railyard/train/run_config.hpp"

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/core/callback.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Says which checkpoints are kept, in the words of the checkpoint room.
[[nodiscard]] inline Retention retention_of(const CheckpointConfig& config) {
  return {.keep = config.keep, .score = config.score, .order = config.order};
}

/// Returns the newest checkpoint that is whole, of an earlier program, and removes what it has left unfinished;
/// problems gets what is wrong with newer ones, and what cannot be removed. There may be none yet, but if there are
/// any, or have been, a run does not begin anew because they cannot be read, or are gone. recorded: the last one that
/// was written; empty if none was. Throws: ConfigError if it may not begin at the beginning, but would have to.
[[nodiscard]] inline std::optional<Checkpoint> find_checkpoint(
    const std::filesystem::path& run, const RunLease& lease, const RunConfig& config, const std::string& recorded,
    std::vector<std::string>& problems, std::shared_ptr<Files> files = std::make_shared<Files>()) {
  CheckpointFolder folder{run / "checkpoints", lease.generation(), std::move(files)};
  problems = folder.sweep();
  std::vector<std::string> damages;
  auto newest = folder.newest_whole(damages);
  if (!newest && !damages.empty()) {
    throw ConfigError{
        compose("no checkpoint of the run in {} is whole, the newest because: {}; put one back that is, or "
                "begin anew with another RunConfig::name",
                run.string(), damages.front())};
  }
  for (const std::string& damage : damages) problems.push_back(damage + "; an older checkpoint is taken");
  if (!newest && !recorded.empty() && !accepts_change(config.accept_changes, "checkpoints")) {
    throw ConfigError{
        compose("the run in {} has written checkpoints, the last one {}, but none is there any more: put checkpoints/ "
                "back, or begin at the beginning by .accept_changes = {{\"checkpoints\"}}, or choose another "
                "RunConfig::name",
                run.string(), recorded)};
  }
  if (!newest && config.resume == Resume::required) {
    throw ConfigError{
        compose("RunConfig::resume is Resume::required, but the run in {} has no checkpoint: name the run that has, or "
                "say Resume::if_unfinished to begin at the beginning",
                run.string())};
  }
  return newest;
}

/// Returns the newest checkpoint that is whole, where problems have been told of already.
[[nodiscard]] inline std::optional<Checkpoint> newest_of(const CheckpointFolder& folder) {
  std::vector<std::string> told;
  return folder.newest_whole(told);
}

/// Returns where each rank's part of a state is.
[[nodiscard]] inline std::vector<std::uint8_t> slots_of(const std::vector<SavedMessage>& saves) {
  std::vector<std::uint8_t> slots;
  for (const SavedMessage& save : saves) slots.push_back(static_cast<std::uint8_t>(save.slot));
  return slots;
}

/// Is what a run leaves of checkpoints to its Result.
struct LeftCheckpoints {
  std::optional<Checkpoint> newest{};
  std::vector<Checkpoint> best{};
  int num_failed = 0;
  bool is_state_saved = true;

  void move_to(ResultFields& fields) {
    fields.checkpoint = std::move(newest);
    fields.best_checkpoints = std::move(best);
    fields.failed_checkpoints = num_failed;
    fields.is_state_saved = is_state_saved;
  }

  /// Looks them up. problems gets what is wrong with them.
  void look_up(const CheckpointFolder& folder, const Retention& retention, std::vector<std::string>& problems) {
    std::string where = "the beginning";
    try {
      newest = newest_of(folder);
      if (newest) where = compose("{} (step {})", newest->path().string(), newest->manifest().step);
      std::vector<std::string> damages;
      best = folder.best(retention, damages);
      for (const std::string& damage : damages) problems.push_back(damage + "; it is left out of the best checkpoints");
    } catch (const Error& error) {
      if (!newest) where = "the newest checkpoint that can be read then";
      problems.emplace_back(error.what());
    }
    if (is_state_saved) return;
    problems.push_back(compose(
        "what the run was to save last is not saved: make room, and a run of the same name goes on from {}", where));
  }
};

/// Owns the writer, and holds the newest copy of the state in memory. The lease and the directory must outlive it.
class RunCheckpoints {
 public:
  RunCheckpoints(const RunInfo& info, const CheckpointConfig& config, const RunLease& lease, RunDirectory& directory,
                 WorkerGroup& group)
      : environment_{{"backend", info.backend}, {"scaling", info.scaling}, {"seed", std::to_string(info.seed)}},
        run_(info.path),
        generation_(lease.generation()),
        group_(&group),
        book_(info.world_size),
        copies_(info.world_size),
        writer_(info.path, folder_of(info, lease), retention_of(config), group, [&directory] { directory.await(); }) {}

  /// Takes what a rank has saved; a checkpoint that is whole with it is on its way to the disk, and a copy that is
  /// whole is held until the next one is. metrics: what rank 0 has reported last, if it is the rank.
  void add(int rank, SavedMessage save, const Metrics& metrics, int attempt) {
    if (save.slot != SavedMessage::no_slot) group_->hold_snapshot(rank, save.slot);
    if (save.is_memory) return add_copy(rank, std::move(save));
    if (rank == 0) metrics_.push_back(save.is_report ? metrics : Metrics{});
    book_.add(rank, std::move(save));
    while (const auto saves = book_.take()) {
      submit(*saves, std::move(metrics_.front()), attempt);
      metrics_.pop_front();
    }
  }

  /// Says that a rank, which ends no more steps, has gone by one that another rank has saved; nothing otherwise.
  [[nodiscard]] std::optional<Failure> part_failure(int rank) const {
    return part_failure(rank, std::numeric_limits<std::uint64_t>::max());
  }
  /// The same of a rank that goes on, and would keep the others waiting for ever. What it has posted may still be on
  /// its way, so it is said once that has been so for a while. steps(rank): that a rank has ended.
  template <class Steps>
  [[nodiscard]] std::optional<Failure> late_part_failure(const Steps& steps, Deadline::Clock::time_point now) {
    const int found = book_.late_rank(steps);
    return patience_.is_over(found, now) ? part_failure(found, steps(found)) : std::nullopt;
  }

  [[nodiscard]] bool drain(const Deadline& deadline) { return writer_.drain(deadline); }
  /// Takes note of what has been written since, and tells of it. is_training: whether workers train on meanwhile.
  void note_outcomes(RunLog& log, bool is_training) {
    for (const SaveOutcome& outcome : writer_.take_outcomes()) {
      log.tell_of(outcome, is_training);
      const Place place{outcome.manifest.step, outcome.manifest.report};
      has_last_failed_ = outcome.path.empty();
      if (has_last_failed_) {
        ++num_failed_;
        if (saved_ == place) saved_ = written_;
        continue;
      }
      written_ = std::max(written_, place);
      if (outcome.manifest.attempt == attempt_) ++num_of_attempt_;  // not one that was still being written
      warn_of_score(outcome.manifest.metrics, log);
      ++num_written_;
      if (outcome.doubt.empty()) continue;
      log.warn(compose("checkpoints in {} may not last: {}", run_.string(), outcome.doubt));
    }
  }
  /// How many have been written by this program; in the attempt under way.
  [[nodiscard]] int num_written() const noexcept { return num_written_; }
  [[nodiscard]] int num_of_attempt() const noexcept { return num_of_attempt_; }

  /// Forgets what only some ranks have saved; when all have ended.
  void end_attempt() {
    for (SaveBook* book : {&book_, &copies_}) {
      for (const auto& [rank, save] : book->take_rest()) release(rank, save);
    }
    metrics_.clear();
  }

  /// The newest copy of the state in memory, by rank; empty if there is none, or a checkpoint has been saved since. It
  /// may still have to be written, then.
  [[nodiscard]] std::vector<SavedMessage> newest_copy() const {
    return held_.empty() || place_of(held_.front()) < saved_ ? std::vector<SavedMessage>{} : held_;
  }

  /// The newest state in memory, by rank: that copy, or the newest checkpoint while it is being written, and afterwards
  /// until a worker needs its memory. To be asked when no worker is left. Files that the user has added are found in a
  /// checkpoint only.
  [[nodiscard]] std::vector<SavedMessage> newest_in_memory() {
    auto copy = newest_copy();
    if (!copy.empty() || submitted_.empty() || has_user_files(submitted_)) return copy;
    return writer_.holds_last() || is_left(submitted_) ? submitted_ : copy;
  }
  /// Returns it if the next workers find it there, even if it has been written meanwhile; nothing otherwise.
  /// can_exchange: they are as many as before, and those of each process can take from others what it lacks.
  [[nodiscard]] std::vector<SavedMessage> kept(std::vector<SavedMessage> copy, bool can_exchange) {
    if (copy.empty() || group_->shares_snapshots()) return copy;
    return can_exchange && group_->keeps_snapshots(slots_of(copy)) ? copy : std::vector<SavedMessage>{};
  }
  /// Whether so many workers find it there as they would have when it was decided to go on from it.
  [[nodiscard]] bool still_keeps(const std::vector<std::uint8_t>& slots, int world_size) {
    if (group_->shares_snapshots()) return true;
    return world_size == static_cast<int>(slots.size()) && group_->keeps_snapshots(slots);
  }

  /// Makes a checkpoint of the newest copy, if there is one, which can no more be gone on from without reading. What is
  /// lost with another process is not to be had any more.
  void write_newest_copy(int attempt) {
    if (const auto copy = newest_copy(); !copy.empty()) {
      is_reachable(copy) ? submit(copy, {}, attempt) : release(copy);
      held_.clear();
    }
  }

  /// So many workers begin, after the end of those before.
  void begin_attempt(int world_size, int attempt) {
    book_ = SaveBook{world_size};
    copies_ = SaveBook{world_size};
    attempt_ = attempt;
    num_of_attempt_ = 0;
  }

  /// Returns the newest checkpoint that is whole, from which the workers go on; nothing if there has been none, so that
  /// they begin at the beginning. Only while nothing is being written. Throws: Error if they may not.
  [[nodiscard]] std::optional<Checkpoint> go_back(bool began_with_checkpoint) {
    std::vector<std::string> problems;
    auto newest = writer_.folder().newest_whole(problems);
    if (!newest && !problems.empty()) throw Error{problems.front()};
    if (!newest && (began_with_checkpoint || num_written_ > 0)) throw Error{"all that were there are gone"};
    written_ = newest ? Place{newest->manifest().step, newest->manifest().report} : Place{0, -1};
    saved_ = written_;
    submitted_.clear();
    release(std::exchange(held_, {}));  // what is trained anew makes copies of its own
    return newest;
  }

  /// The folder; only while nothing is being written, as what is below.
  [[nodiscard]] const CheckpointFolder& folder() { return writer_.folder(); }
  /// What is left of them at the end. problems gets what is wrong.
  [[nodiscard]] LeftCheckpoints left(std::vector<std::string>& problems) {
    LeftCheckpoints left = not_looked_up();
    left.look_up(writer_.folder(), writer_.retention(), problems);
    sweep(problems);
    return left;
  }
  /// The same, where storage is not to be asked.
  [[nodiscard]] LeftCheckpoints not_looked_up() const {
    return {.num_failed = num_failed_, .is_state_saved = !has_last_failed_};
  }

 private:
  // Of a rank that has ended so many steps.
  [[nodiscard]] std::optional<Failure> part_failure(int rank, std::uint64_t steps) const {
    const int other = book_.waits_for(rank, steps);
    if (other < 0) return std::nullopt;
    return Failure{.rank = rank,
                   .what = compose("has not saved where rank {} has: every rank passes its TrainState to report(), or "
                                   "none does",
                                   other),
                   .kind = Failure::Kind::final};
  }

  [[nodiscard]] static bool has_user_files(const std::vector<SavedMessage>& saves) {
    return std::any_of(saves.begin(), saves.end(), [](const SavedMessage& save) {
      return std::any_of(save.files.begin(), save.files.end(),
                         [](const SavedFile& file) { return file.name.starts_with(user_folder); });
    });
  }
  // Of a file that several ranks have copied, the first one's counts.
  [[nodiscard]] bool is_reachable(const std::vector<SavedMessage>& saves) const {
    std::set<std::string_view> names;
    for (std::size_t rank = 0; rank < saves.size(); ++rank) {
      const bool is_there = group_->has_snapshots_of(static_cast<int>(rank));
      for (const SavedFile& file : saves[rank].files) {
        if (names.insert(file.name).second && !is_there) return false;
      }
    }
    return true;
  }
  // Whether nobody has touched the memory of what was written.
  [[nodiscard]] bool is_left(const std::vector<SavedMessage>& saves) const {
    for (std::size_t rank = 0; rank < saves.size(); ++rank) {
      const std::vector<std::byte> message = encode_saved(saves[rank]);
      const std::size_t size = sizeof(std::uint64_t) + message.size();
      if (!has_head(group_->left_snapshot(static_cast<int>(rank), saves[rank].slot, size), message)) return false;
    }
    return true;
  }
  [[nodiscard]] static CheckpointFolder folder_of(const RunInfo& info, const RunLease& lease) {
    CheckpointFolder folder{info.path / "checkpoints", lease.generation()};
    folder.still_mine = [&lease] { return lease.is_held(); };
    return folder;
  }

  // What could not be removed when a checkpoint was given up, because a process that was lost still held it, can be
  // now.
  void sweep(std::vector<std::string>& problems) {
    try {
      for (std::string& text : writer_.folder().sweep()) problems.push_back(std::move(text));
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }

  // Of two states of a run, the one with more steps, or more reports after the same, is newer.
  using Place = std::pair<std::uint64_t, std::int64_t>;
  [[nodiscard]] static Place place_of(const SavedMessage& save) noexcept { return {save.step, save.report}; }

  // A metric that reports never have would keep any checkpoints instead of the best.
  void warn_of_score(const Metrics& metrics, RunLog& log) {
    const std::string& score = writer_.retention().score;
    if (has_missed_score_ || score.empty() || metrics.empty() || metrics.find(score) != nullptr) return;
    has_missed_score_ = true;
    std::string names;
    for (const auto& [name, value] : metrics) names += compose("{}\"{}\"", names.empty() ? "" : ", ", name);
    log.warn(
        compose("a checkpoint has no metric \"{}\", which CheckpointConfig::score names, and counts as the worst: "
                "its report has {}",
                score, names));
  }

  void add_copy(int rank, SavedMessage save) {
    copies_.add(rank, std::move(save));
    while (auto copy = copies_.take()) {
      const bool is_whole = std::none_of(copy->begin(), copy->end(),
                                         [](const SavedMessage& part) { return part.slot == SavedMessage::no_slot; });
      if (is_whole) std::swap(held_, *copy);
      release(*copy);
    }
  }

  // One that cannot be submitted is one that cannot be written: training goes on.
  void submit(const std::vector<SavedMessage>& saves, Metrics metrics, int attempt) {
    saved_ = std::max(saved_, place_of(saves.front()));
    Manifest manifest = manifest_of(saves, std::move(metrics), attempt);
    try {
      for (std::size_t rank = 0; rank < saves.size(); ++rank) {
        if (saves[rank].slot == SavedMessage::no_slot) throw Error{compose("rank {}: {}", rank, saves[rank].failure)};
      }
      writer_.submit(job_of(saves, manifest));
      submitted_ = saves;
    } catch (const std::exception& error) {
      release(saves);
      writer_.note_failure(std::move(manifest), error.what());
    }
  }

  [[nodiscard]] Manifest manifest_of(const std::vector<SavedMessage>& saves, Metrics metrics, int attempt) const {
    const SavedMessage& first = saves.front();
    Manifest manifest{.world_size = static_cast<int>(saves.size()),
                      .step = first.step,
                      .epoch = first.epoch,
                      .report = first.report,
                      .attempt = attempt,
                      .generation = generation_,
                      .metrics = std::move(metrics),
                      .environment = environment_};
    for (const SavedMessage& save : saves) manifest.samples += save.samples;
    for (const auto& [name, value] : first.environment) manifest.environment.set(name, value);
    return manifest;
  }

  [[nodiscard]] SaveJob job_of(const std::vector<SavedMessage>& saves, const Manifest& manifest) {
    SaveJob job{.manifest = manifest};
    std::set<std::string_view> names;
    for (std::size_t at = 0; at < saves.size(); ++at) {
      const int rank = static_cast<int>(at);
      const SavedMessage& save = saves[at];
      job.slots.push_back({.rank = rank, .slot = save.slot});
      for (const SavedFile& file : save.files) {
        if (!names.insert(file.name).second) continue;  // of another process, which has a copy of its own
        job.parts.push_back(
            {.name = file.name, .rank = rank, .slot = save.slot, .offset = file.offset, .size = file.size});
      }
    }
    return job;
  }

  void release(const std::vector<SavedMessage>& saves) noexcept {
    for (std::size_t rank = 0; rank < saves.size(); ++rank) release(static_cast<int>(rank), saves[rank]);
  }
  void release(int rank, const SavedMessage& save) noexcept {
    if (save.slot != SavedMessage::no_slot) group_->release_snapshot(rank, save.slot);
  }

  NamedValues environment_;
  std::filesystem::path run_;
  std::uint64_t generation_;
  WorkerGroup* group_;
  bool has_missed_score_ = false;
  SaveBook book_;
  SaveBook copies_;
  Patience patience_{};                    // with a rank that seems to have no part in a checkpoint
  std::vector<SavedMessage> held_{};       // the newest copy that is whole, by rank
  std::vector<SavedMessage> submitted_{};  // what the writer was given last, by rank
  Place saved_{0, -1};                     // of the newest checkpoint, unless it could not be written
  Place written_{0, -1};
  int num_written_ = 0;
  int num_failed_ = 0;
  int attempt_ = 0;  // that is under way
  int num_of_attempt_ = 0;
  bool has_last_failed_ = false;
  std::deque<Metrics> metrics_{};  // of rank 0, by checkpoint that is not whole yet
  CheckpointWriter writer_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
