// SPDX-License-Identifier: MIT
// What a run leaves to its caller. Train room.
#pragma once

#include "railyard/train/step_times.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/value.hpp"
#include "railyard/data/any_preprocessor.hpp"
#include "railyard/data/detail/dataset_preprocessors.hpp"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says where the time of a run went. Units: seconds.
struct Timings {
  double start = 0;       ///< from the call of fit() until every worker existed
  double first_line = 0;  ///< from the call of fit() until every worker was about to call the training function
  double training = 0;    ///< from then until the last worker had ended
  double teardown = 0;    ///< from then until fit() returned
};

/// Says how one start of a run's workers ended.
struct Attempt {
  std::string error{};           ///< what failed first; empty if nothing did
  int failed_rank = -1;          ///< -1 if none did, or it failed outside of any worker
  std::uint64_t begin_step = 0;  ///< of the checkpoint from which it went on
  std::uint64_t end_step = 0;    ///< the last step that any rank had ended
  std::uint64_t lost_steps = 0;  ///< steps that the next attempt had to do again
  double seconds = 0;            ///< from the call of fit() until its last worker had ended
  int world_size = 0;
};

/// Holds the fields of a Result while it is put together.
struct ResultFields {
  std::string error{};
  int failed_rank = -1;
  int exit_status = 0;
  std::vector<Metrics> history{};
  std::filesystem::path path{};
  int world_size = 0;
  double seconds = 0;
  Timings timings{};
  bool is_leader = true;
  std::vector<std::string> warnings{};
  std::vector<StepTimes> step_times_by_rank{};
  std::vector<Attempt> attempts{};
  std::optional<Checkpoint> checkpoint{};
  std::vector<Checkpoint> best_checkpoints{};
  int failed_checkpoints = 0;
  bool is_state_saved = true;
  bool is_recorded = false;
  /// What changes the samples of the Trainer's datasets, by their names; those that nothing does are left out.
  std::vector<std::pair<std::string, detail::DatasetPreprocessors>> preprocessors{};
};

/// Is what fit() returns: converts to true if the run succeeded.
class [[nodiscard]] Result {
 public:
  explicit Result(ResultFields fields) : fields_(std::move(fields)) {}

  [[nodiscard]] explicit operator bool() const noexcept { return fields_.error.empty(); }
  /// What failed first, where and why, and where to look; empty if the run succeeded.
  [[nodiscard]] const std::string& error() const noexcept { return fields_.error; }
  /// The first rank that failed; -1 if none did, or the run failed outside of any worker.
  [[nodiscard]] int failed_rank() const noexcept { return fields_.failed_rank; }
  /// What main() may return: 0, 1 after a failure, 128 + signal after Ctrl-C or SIGTERM, RunConfig::preemption's status
  /// (75) where the state is saved and the run is to be started again.
  [[nodiscard]] int exit_status() const noexcept { return fields_.exit_status; }
  /// Rank 0's last metrics; empty if it has reported none.
  [[nodiscard]] const Metrics& metrics() const noexcept {
    return fields_.history.empty() ? none_ : fields_.history.back();
  }
  /// All of rank 0's metrics, in order.
  [[nodiscard]] const std::vector<Metrics>& history() const noexcept { return fields_.history; }
  /// The run's directory.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return fields_.path; }
  [[nodiscard]] int world_size() const noexcept { return fields_.world_size; }
  /// How long fit() took. Units: seconds.
  [[nodiscard]] double seconds() const noexcept { return fields_.seconds; }
  [[nodiscard]] const Timings& timings() const noexcept { return fields_.timings; }
  /// Where the time of the average rank's steps has gone, from its first exchange of gradients to its end; the bytes
  /// are those of all ranks together. All 0 if no rank that has trained a prepared model has returned.
  [[nodiscard]] StepTimes step_times() const { return detail::average_of(fields_.step_times_by_rank); }
  /// The same of each rank; all 0 for one that has failed.
  [[nodiscard]] const std::vector<StepTimes>& step_times_by_rank() const noexcept { return fields_.step_times_by_rank; }
  /// Is this the one process in which code after fit() should speak for the run?
  [[nodiscard]] bool is_leader() const noexcept { return fields_.is_leader; }
  /// What went wrong without ending the run, such as a log that could not be written.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return fields_.warnings; }

  /// The starts of the run's workers in this fit(), the last one included.
  [[nodiscard]] const std::vector<Attempt>& attempts() const noexcept { return fields_.attempts; }
  /// The newest checkpoint; none if there is none.
  [[nodiscard]] const std::optional<Checkpoint>& checkpoint() const noexcept { return fields_.checkpoint; }
  /// The checkpoints that CheckpointConfig keeps for their score, best first; the metrics are in their manifests. See
  /// CheckpointFolder::best().
  [[nodiscard]] const std::vector<Checkpoint>& best_checkpoints() const noexcept { return fields_.best_checkpoints; }
  /// Returns what the samples of a dataset of the Trainer were changed by before the workers saw them
  /// (Dataset::transform()): one as it is, several as a Chain; with what they have learned as checkpoint() holds it, if
  /// it does. Without a Trainer, and for what the training function has added: Checkpoint::load_preprocessor(). Throws:
  /// ConfigError that lists the datasets that have such; DataError for a damaged checkpoint.
  /// Example: ry::EpochReader{samples.transform(result.preprocessor("train")), {.global_batch_size = 256}}
  [[nodiscard]] AnyPreprocessor preprocessor(std::string_view dataset) const {
    std::vector<std::string> names;
    for (const auto& [name, preprocessors] : fields_.preprocessors) {
      names.push_back(detail::compose("\"{}\"", name));
      if (name != dataset) continue;
      const auto state = checkpoint() ? checkpoint()->preprocessor_state(name) : std::nullopt;
      return preprocessors.all(state ? &*state : nullptr);
    }
    throw ConfigError{detail::compose(
        "Result::preprocessor(\"{}\"): transform() was called of no dataset that the Trainer has by that name: it was "
        "of {}; what the training function has added is in checkpoint()->load_preprocessor()",
        dataset, names.empty() ? "none" : detail::joined(names, ", "))};
  }
  /// Returns it with the preprocessors of the Trainer's datasets.
  [[nodiscard]] Result with(std::vector<std::pair<std::string, detail::DatasetPreprocessors>> preprocessors) && {
    fields_.preprocessors = std::move(preprocessors);
    return std::move(*this);
  }

  /// How many checkpoints could not be written in this fit(): warnings() tell of each.
  [[nodiscard]] int failed_checkpoints() const noexcept { return fields_.failed_checkpoints; }
  /// Whether the newest state that was to be saved is: false if its checkpoint could not be written, so that
  /// checkpoint() is an older one, or none. Also a run that has succeeded is gone on with from there, then, by the next
  /// fit() of its name.
  [[nodiscard]] bool is_state_saved() const noexcept { return fields_.is_state_saved; }
  /// Whether the run had succeeded before, so that fit() has only read what it left.
  [[nodiscard]] bool is_recorded() const noexcept { return fields_.is_recorded; }

  /// Writes error() to standard error if the run did not succeed. Returns *this.
  /// Example: return trainer.fit().print_error().exit_status();
  const Result& print_error() const {
    if (!*this) static_cast<void>(std::fprintf(stderr, "%s\n", fields_.error.c_str()));
    return *this;
  }
  /// Returns *this if the run succeeded. Throws: WorkerError with error() if it did not; what main() does not catch
  /// ends the program by SIGABRT, whatever exit_status() is.
  const Result& value_or_throw() const {
    if (!*this) throw WorkerError{fields_.failed_rank, fields_.error};
    return *this;
  }

 private:
  ResultFields fields_;
  Metrics none_{};
};

}  // namespace railyard::inline v0_1
