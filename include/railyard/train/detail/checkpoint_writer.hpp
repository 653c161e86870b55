// SPDX-License-Identifier: MIT
// Writes checkpoints on a thread of the supervisor, while the workers go on. Train room.
#pragma once

#include "railyard/train/detail/follower_parts.hpp"

#include "railyard/checkpoint/checkpoint_folder.hpp"
#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/checkpoint/detail/storage.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/scaling.hpp"

#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is a checkpoint that all ranks have saved, and that is to be written.
struct SaveJob {
  struct Slot {
    int rank = 0;
    int slot = 0;
  };
  Manifest manifest{};
  std::vector<SavedPart> parts{};
  std::vector<Slot> slots{};  // where the parts are, to be given back afterwards
};

/// Says what has become of a SaveJob.
struct SaveOutcome {
  Manifest manifest{};
  std::filesystem::path path{};  ///< empty if it could not be written
  std::string error{};           ///< also of checkpoints that could not be removed
  std::string doubt{};           ///< why this one, the first, may not last where it is; empty if no reason is known
};

/// Owns the thread. One after another, in order: so the newest checkpoint is always the latest that was saved.
class CheckpointWriter {
 public:
  /// run: the run's directory, in which the folder lies. await_reports: waits until all that was reported so far is
  /// written; called on another thread.
  CheckpointWriter(std::filesystem::path run, CheckpointFolder folder, Retention retention, WorkerGroup& group,
                   std::function<void()> await_reports, std::shared_ptr<Files> files = std::make_shared<Files>())
      : run_(std::move(run)),
        await_reports_(std::move(await_reports)),
        files_(std::move(files)),
        folder_(std::move(folder)),
        retention_(std::move(retention)),
        group_(&group) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Writes what has been submitted.
  ~CheckpointWriter() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// Throws: what the system or the memory refuses; the job's memory is the caller's to give back then.
  void submit(SaveJob job) {
    const std::lock_guard lock{mutex_};
    if (!thread_.joinable()) start();
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  /// Takes note of a checkpoint that could not even be submitted.
  void note_failure(Manifest manifest, std::string error) {
    const std::lock_guard lock{mutex_};
    outcomes_.push_back({.manifest = std::move(manifest), .error = std::move(error)});
  }

  /// Whether the memory of what was submitted last is still held: it is given back once that is written.
  [[nodiscard]] bool holds_last() {
    const std::lock_guard lock{mutex_};
    return !jobs_.empty() || holds_job_;
  }

  /// Waits until all has been written, or the time is over. Returns whether it has.
  [[nodiscard]] bool drain(const Deadline& deadline) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, deadline.remaining(), [this] { return jobs_.empty() && !is_writing_; });
  }

  [[nodiscard]] std::vector<SaveOutcome> take_outcomes() {
    const std::lock_guard lock{mutex_};
    return std::exchange(outcomes_, {});
  }

  /// Only while nothing is being written.
  [[nodiscard]] CheckpointFolder& folder() noexcept { return folder_; }
  [[nodiscard]] const Retention& retention() const noexcept { return retention_; }

 private:
  void start() {
    const BlockSignals block{deferrable_signals()};  // they are for the thread that called fit()
    thread_ = std::thread{[this] { run(); }};
  }

  void run() {
    std::unique_lock lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return is_ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      SaveJob job = std::move(jobs_.front());
      jobs_.pop_front();
      is_writing_ = holds_job_ = true;
      lock.unlock();
      SaveOutcome outcome = write(job);
      lock.lock();
      outcomes_.push_back(std::move(outcome));
      is_writing_ = false;
      changed_.notify_all();
    }
  }

  [[nodiscard]] SaveOutcome write(const SaveJob& job) {
    SaveOutcome outcome{.manifest = job.manifest};
    std::vector<std::string> losses;
    left_out_.begin_checkpoint(job.manifest.attempt);
    std::optional<FollowerParts> others;
    try {
      make_reports_durable(losses);
      make_run_durable();
      others.emplace(*group_, run_, job.parts, left_out_);
      outcome.path = folder_.commit(job.manifest, parts_of(job), &*others);
    } catch (const std::exception& error) {
      outcome.error = error.what();
    }
    if (others) losses.insert(losses.end(), others->complaints().begin(), others->complaints().end());
    {
      const std::lock_guard lock{mutex_};
      holds_job_ = false;  // before a worker may write to it again
    }
    for (const auto& [rank, slot] : job.slots) group_->release_snapshot(rank, slot);
    if (outcome.path.empty()) {  // what was lost besides is not told by the next attempt again
      losses.insert(losses.begin(), std::move(outcome.error));
      outcome.error = joined(losses, "; ");
      return outcome;
    }
    if (!std::exchange(has_written_, true)) outcome.doubt = folder_.doubt();
    try {
      folder_.retain(retention_);
    } catch (const std::exception& error) {
      losses.emplace_back(error.what());
    }
    outcome.error = joined(losses, "; ");
    return outcome;
  }

  // What was reported before a checkpoint has to be in the file, and to last as it does. losses gets why it may not: a
  // checkpoint is worth more than they are.
  void make_reports_durable(std::vector<std::string>& losses) {
    await_reports_();
    const auto path = run_ / "metrics.jsonl";
    try {
      if (!is_there(*files_, path)) return;
      sync_file(path, &Files::sync_data);
      if (!has_reports_) sync_directory(*files_, run_);
      has_reports_ = true;
    } catch (const Error& error) {
      losses.push_back(compose("a power cut may take reports away that a checkpoint has counted: {}", error.what()));
    }
  }

  [[nodiscard]] std::vector<CheckpointFolder::Part> parts_of(const SaveJob& job) const {
    std::vector<CheckpointFolder::Part> parts;
    for (const SavedPart& part : job.parts) {
      const auto read = [group = group_, &part](std::size_t begin, std::size_t size) {
        return group->snapshot(part.rank, part.slot, part.offset + begin, size);
      };
      parts.push_back({.name = part.name, .bytes = {part.size, read}});
    }
    return parts;
  }

  // A checkpoint is worth nothing if the directories above it are lost. Once, for it takes milliseconds.
  void make_run_durable() {
    if (is_run_durable_) return;
    make_record_durable(run_ / "run.json");
    const auto lease = run_ / "lease.json";  // has the generation of what follows
    if (is_there(*files_, lease)) make_record_durable(lease);
    sync_directory(*files_, run_);
    sync_directory(*files_, run_.parent_path());
    sync_directory(*files_, run_.parent_path().parent_path());
    is_run_durable_ = true;
  }

  // After a failed fsync nobody knows what of a file is on the disk, and the next one would say that all is: the same
  // bytes are written once more before that is believed. In place, for the lock of a lease belongs to the open file.
  void make_record_durable(const std::filesystem::path& path) {
    if (in_doubt_.count(path) == 0) {
      try {
        return sync_file(path, &Files::sync);
      } catch (const Error&) {
        in_doubt_.insert(path);
      }
    }
    const std::string text = content_of(*files_, path).value_or("");
    const auto bytes = std::as_bytes(std::span{text});
    const Descriptor file{uninterrupted([&] { return files_->open(path, O_WRONLY); })};
    const auto write = [&] { return files_->write_at(file.get(), bytes.data(), bytes.size(), 0); };
    if (!file.is_open() || uninterrupted(write) != static_cast<ssize_t>(bytes.size())) {
      throw Error{compose("{} cannot be written: {}", path.string(), explain_errno(errno))};
    }
    sync_file(path, &Files::sync);
    in_doubt_.erase(path);
  }

  void sync_file(const std::filesystem::path& path, int (Files::*sync)(int)) {
    const Descriptor file{files_->open(path, O_RDONLY)};
    if (file.is_open() && uninterrupted([&] { return ((*files_).*sync)(file.get()); }) == 0) return;
    throw Error{compose("{} cannot be made durable: {}", path.string(), explain_errno(errno))};
  }

  std::filesystem::path run_;
  std::function<void()> await_reports_;
  bool is_run_durable_ = false;                 // as far as the writing thread has seen to it
  std::set<std::filesystem::path> in_doubt_{};  // files of the run that could not be synchronised
  bool has_written_ = false;
  bool has_reports_ = false;  // and that they have a name there
  std::shared_ptr<Files> files_;
  CheckpointFolder folder_;
  Retention retention_;
  WorkerGroup* group_;
  LeftOut left_out_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SaveJob> jobs_{};
  std::vector<SaveOutcome> outcomes_{};
  bool is_writing_ = false;
  bool holds_job_ = false;
  bool is_ending_ = false;
  std::thread thread_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
