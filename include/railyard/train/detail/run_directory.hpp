// SPDX-License-Identifier: MIT
// The directory of a run while workers train: what is written there, nobody waits for. Train room.
#pragma once

#include "railyard/train/detail/files.hpp"
#include "railyard/train/detail/json.hpp"
#include "railyard/train/detail/run_record.hpp"
#include "railyard/train/detail/storage_thread.hpp"

#include "railyard/checkpoint/detail/files.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is metrics.jsonl: a line for each report of rank 0.
class ReportFile {
 public:
  ReportFile(std::filesystem::path path, std::shared_ptr<Files> files) : file_(std::move(path), std::move(files)) {}

  /// lines: that an earlier program has written.
  void begin_with(std::vector<HistoryLine> lines) { lines_ = std::move(lines); }

  bool append(std::int64_t report, std::string_view line) {
    if (!cuts() || !file_.append(line)) return false;
    lines_.push_back({.report = report, .end = file_.size()});
    return true;
  }
  /// Takes back the lines of reports from number num_reports on, and half a line that a program has left. Where that
  /// cannot be done, it is tried again before the next line.
  bool go_back(std::int64_t num_reports) {
    const auto end = std::find_if(lines_.begin(), lines_.end(),
                                  [num_reports](const HistoryLine& line) { return line.report >= num_reports; });
    size_to_cut_ = end == lines_.begin() ? 0 : std::prev(end)->end;
    lines_.erase(end, lines_.end());
    return cuts();
  }
  /// Whether there are lines in it that were to be taken back.
  [[nodiscard]] bool is_too_long() const noexcept { return size_to_cut_.has_value(); }

  [[nodiscard]] const LineFile& file() const noexcept { return file_; }

 private:
  bool cuts() {
    if (!size_to_cut_) return true;
    if (!file_.cut(*size_to_cut_)) return false;
    size_to_cut_.reset();
    return true;
  }

  LineFile file_;
  std::vector<HistoryLine> lines_{};
  std::optional<std::uint64_t> size_to_cut_{};
};

/// Is the open files of a run, as the thread that writes them uses them, and what others are to know of that.
class RunFiles {
 public:
  using Write = std::function<bool(RunFiles&)>;
  static constexpr std::size_t metrics_at = 0;
  static constexpr std::size_t events_at = 1;
  static constexpr std::size_t first_log_at = 2;

  /// Is what has become of what was to be written to one file.
  struct Outcome {
    std::uint64_t num_done = 0;  ///< lost ones included
    std::uint64_t num_lost = 0;
    std::string reason{};  ///< of the last loss
    bool exists = false;
  };

  RunFiles(const std::filesystem::path& run, int world_size, std::shared_ptr<Files> files)
      : files_(std::move(files)), metrics_(run / "metrics.jsonl", files_), events_(run / "events.jsonl", files_) {
    for (int rank = 0; rank < world_size; ++rank) {
      logs_.push_back(std::make_unique<LineFile>(run / "logs" / compose("rank-{}.log", rank), files_, true));
    }
    outcomes_.resize(first_log_at + logs_.size());
  }

  /// See RunDirectory.
  std::function<bool()> still_mine{};
  std::chrono::nanoseconds late_after{0};
  std::atomic<bool> is_fenced{false};
  std::atomic<bool> is_given_up{false};  ///< what is still held by storage: people have been told that it is lost

  [[nodiscard]] ReportFile& metrics() noexcept { return metrics_; }
  [[nodiscard]] LineFile& line_file(std::size_t at) { return at == events_at ? events_ : *logs_[at - first_log_at]; }
  [[nodiscard]] const LineFile& file(std::size_t at) const {
    if (at == metrics_at) return metrics_.file();
    return at == events_at ? events_ : *logs_[at - first_log_at];
  }
  [[nodiscard]] const std::shared_ptr<Files>& files() const noexcept { return files_; }

  /// Whether the run is still this program's, as far as can be told. posted_at: when it was asked to write. Where that
  /// is so long ago that storage has stood still, or this program, another one may have taken the run over meanwhile.
  /// It is asked again then, unless that has been done lately; a run that is lost once stays so.
  [[nodiscard]] bool may_write(std::chrono::nanoseconds posted_at) {
    if (is_fenced || is_given_up || is_taken_) return false;
    const auto now = boot_time();
    if (!still_mine || now - std::max(posted_at, asked_at_) < late_after) return true;
    try {
      is_taken_ = !still_mine();
      if (is_taken_) return false;
      asked_at_ = now;
    } catch (const std::exception&) {  // it cannot be read, which says nothing of it
    }
    return !is_fenced;
  }

  void write(std::size_t at, std::chrono::nanoseconds posted_at, const Write& write) {
    const bool is_lost = may_write(posted_at) && !write(*this);
    const std::lock_guard lock{mutex_};
    Outcome& outcome = outcomes_[at];
    ++outcome.num_done;
    outcome.exists = file(at).exists();
    if (!metrics_.is_too_long()) cut_.reason.clear();
    if (!is_lost) return;
    outcome.reason = file(at).reason();
    if (++outcome.num_lost == 1) complaints_.push_back(file(at).complaint());
  }

  /// See ReportFile.
  void go_back(std::int64_t num_reports, std::chrono::nanoseconds posted_at) {
    const bool is_lost = may_write(posted_at) && !metrics_.go_back(num_reports);
    const std::lock_guard lock{mutex_};
    ++cut_.num_done;
    cut_.reason = is_lost ? metrics_.file().reason() : std::string{};
    if (is_lost && ++cut_.num_lost == 1) complaints_.push_back(complaint_of_cut(cut_.reason));
  }
  /// What has become of what was to be taken back; reason: why it is still there, if it is.
  [[nodiscard]] Outcome cut() const {
    const std::lock_guard lock{mutex_};
    return cut_;
  }
  [[nodiscard]] std::string complaint_of_cut(std::string_view why) const {
    return compose("reports cannot be taken back from {}: {}", metrics_.file().path().string(), why);
  }

  [[nodiscard]] Outcome outcome(std::size_t at) const {
    const std::lock_guard lock{mutex_};
    return outcomes_[at];
  }
  [[nodiscard]] std::vector<std::string> take_complaints() {
    const std::lock_guard lock{mutex_};
    return std::exchange(complaints_, {});
  }

 private:
  std::shared_ptr<Files> files_;
  ReportFile metrics_;
  LineFile events_;
  std::vector<std::unique_ptr<LineFile>> logs_{};
  std::chrono::nanoseconds asked_at_{0};  // by boot_time(): and it was this program's
  bool is_taken_ = false;
  mutable std::mutex mutex_{};
  std::vector<Outcome> outcomes_{};
  Outcome cut_{};
  std::vector<std::string> complaints_{};
};

/// Is metrics.jsonl, events.jsonl, logs/rank-0.log and so on, and at last result.json: written by a thread of its own,
/// in the order in which they come. What storage does not take, or does not answer for, is told of and counted.
class RunDirectory {
 public:
  RunDirectory(std::filesystem::path path, int world_size, std::shared_ptr<Files> files = std::make_shared<Files>(),
               const StorageLimits& limits = {})
      : path_(std::move(path)),
        limits_(limits),
        files_(std::make_shared<RunFiles>(path_, world_size, std::move(files))),
        sent_(RunFiles::first_log_at + static_cast<std::size_t>(world_size)),
        thread_(limits) {}

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Asks whether the run is still this program's before what has waited for so long is written: other programs leave
  /// it alone until then. still_mine: called on another thread, and owns all that it uses. Before anything is written.
  void ask_before_late_writes(std::chrono::nanoseconds late_after, std::function<bool()> still_mine) {
    files_->late_after = late_after;
    files_->still_mine = std::move(still_mine);
  }
  /// From here on nothing is written any more: the run is another program's.
  void fence() noexcept { files_->is_fenced = true; }
  [[nodiscard]] bool is_fenced() const noexcept { return files_->is_fenced; }
  /// From here on, what is said about a file does not promise that training goes on.
  void note_end() noexcept { is_training_ = false; }

  /// lines: of metrics.jsonl, by an earlier program. Before anything is written.
  void begin_with(std::vector<HistoryLine> lines) { files_->metrics().begin_with(std::move(lines)); }
  void append_metrics(std::int64_t report, std::string line) {
    const std::size_t size = line.size();
    write(RunFiles::metrics_at, size,
          [report, line = std::move(line)](RunFiles& files) { return files.metrics().append(report, line); });
  }
  void append_event(const JsonObject& event) { append(RunFiles::events_at, event.text()); }
  void append_log(int rank, std::string line) { append(at_of_log(rank), std::move(line)); }
  /// Takes back what was reported from number num_reports on, in metrics.jsonl.
  void go_back(std::int64_t num_reports) {
    if (is_fenced()) return;
    ++num_cuts_;  // there is room for it whatever else waits
    static_cast<void>(thread_.post(
        0, std::numeric_limits<std::size_t>::max(),
        [num_reports, files = files_, posted_at = boot_time()] { files->go_back(num_reports, posted_at); }));
  }

  /// Returns what there is to be said since the last call: once of each file that takes a line no more, and of storage
  /// that does not answer.
  [[nodiscard]] std::vector<std::string> take_complaints() {
    std::vector<std::string> all = files_->take_complaints();
    std::move(complaints_.begin(), complaints_.end(), std::back_inserter(all));
    complaints_.clear();
    const bool is_held = thread_.held_for() >= limits_.notice;
    if (is_held && !was_held_) {
      all.push_back(compose("the storage of {} has not answered for {}, and what is to be written there waits",
                            path_.string(), Deadline::after(limits_.notice).budget_text()));
    }
    was_held_ = is_held;
    if (!thread_.problem().empty() && !std::exchange(has_told_of_thread_, true)) {
      all.push_back(compose("files in {} are written between other work, which waits where storage does not answer: {}",
                            path_.string(), thread_.problem()));
    }
    for (std::string& text : all) text += is_training_ ? "; training goes on" : "";
    return all;
  }

  /// Writes a file of one JSON object after all else: see write_object(). settle: waits until all is written or lost.
  /// Returns what went wrong, or an empty text.
  template <class Settle>
  [[nodiscard]] std::string write_last(std::string_view name, const JsonObject& object, bool lasts,
                                       const Settle& settle) {
    const auto loss = std::make_shared<std::string>();
    const auto path = path_ / name;
    const bool is_posted =
        thread_.post(0, most_bytes(RunFiles::events_at), [=, files = files_, posted_at = boot_time()] {
          const auto may_write = [&] { return files->may_write(posted_at); };
          if (may_write()) *loss = write_object(path, object, lasts, files->files(), may_write);
        });
    if (is_posted) settle();
    if (is_posted && !has_given_up()) return *loss;
    return compose("{} cannot be written: its storage does not answer", path.string());
  }

  /// Waits until all is written. What storage does not answer for is lost after a while: see StorageThread.
  void settle() {
    if (drains() || std::exchange(has_given_up_, true)) return;
    complaints_.push_back(compose("the storage of {} has not answered for {}, and what was still to be written is lost",
                                  path_.string(), Deadline::after(limits_.end).budget_text()));
  }
  /// The same, for so long at most, and nothing is lost by it.
  void settle(const Deadline& deadline) { static_cast<void>(thread_.drain(deadline)); }
  /// The same in parts, between which something else is done. Returns whether all is written or lost.
  [[nodiscard]] bool settles(const Deadline& deadline) {
    if (!thread_.settles(deadline)) return false;
    settle();
    return true;
  }
  /// Has storage asked for the directory when all else is written. Once that is settled, has_given_up() says whether it
  /// has answered.
  void ask_storage() {
    static_cast<void>(thread_.post(0, std::numeric_limits<std::size_t>::max(), [files = files_, path = path_] {
      const Descriptor directory{files->files()->open_directory(path)};
    }));
  }
  [[nodiscard]] bool has_given_up() const { return thread_.has_given_up(); }
  /// Waits, on any thread, until all that was to be written so far is written, or lost.
  void await() { thread_.await(); }
  /// Leaves no thread for a fork, and nothing is written until it is to go on, or there is more to be written.
  void rest() { thread_.rest(); }
  void go_on() { thread_.go_on(); }

  /// The log of a rank, if it has written anything.
  [[nodiscard]] std::optional<std::filesystem::path> log_of(int rank) const {
    const std::size_t at = at_of_log(rank);
    const RunFiles::Outcome outcome = files_->outcome(at);
    const bool is_there = outcome.exists || outcome.num_done < sent_[at].num_lines;
    return is_there ? std::optional{files_->file(at).path()} : std::nullopt;
  }

  /// How many lines are missing from which files, or too many in them, and why.
  [[nodiscard]] std::vector<std::string> warnings() const {
    std::vector<std::string> all;
    const auto warn = [&all](std::uint64_t count, const std::filesystem::path& path, std::string_view why) {
      if (count == 0) return;
      all.push_back(
          compose("{} line(s) are missing from {}: {}; training went on without them", count, path.string(), why));
    };
    for (std::size_t at = 0; at < sent_.size(); ++at) {
      const RunFiles::Outcome outcome = files_->outcome(at);
      warn(outcome.num_lost, files_->file(at).path(), outcome.reason);
      const std::uint64_t num_given_up = thread_.has_given_up() ? sent_[at].num_lines - outcome.num_done : 0;
      warn(sent_[at].num_dropped + num_given_up, files_->file(at).path(), "its storage did not answer");
    }
    const RunFiles::Outcome cut = files_->cut();
    const bool is_given_up = thread_.has_given_up() && cut.num_done < num_cuts_;
    if (is_given_up) all.push_back(files_->complaint_of_cut("its storage did not answer"));
    if (!is_given_up && !cut.reason.empty()) all.push_back(files_->complaint_of_cut(cut.reason));
    return all;
  }

 private:
  struct Sent {
    std::uint64_t num_lines = 0;    // on their way to the file
    std::uint64_t num_dropped = 0;  // for which there was no room
  };

  [[nodiscard]] static std::size_t at_of_log(int rank) noexcept {
    return RunFiles::first_log_at + static_cast<std::size_t>(rank);
  }
  // What workers print leaves room for what tells of the run.
  [[nodiscard]] std::size_t most_bytes(std::size_t at) const noexcept {
    return at < RunFiles::first_log_at ? 2 * limits_.bytes : limits_.bytes;
  }

  [[nodiscard]] bool drains() {
    if (thread_.drain()) return true;
    files_->is_given_up = true;
    return false;
  }

  void append(std::size_t at, std::string line) {
    const std::size_t size = line.size();
    write(at, size, [at, line = std::move(line)](RunFiles& files) { return files.line_file(at).append(line); });
  }

  void write(std::size_t at, std::size_t size_bytes, RunFiles::Write write) {
    if (is_fenced()) return;
    const bool is_posted = thread_.post(size_bytes, most_bytes(at),
                                        [at, write = std::move(write), files = files_, posted_at = boot_time()] {
                                          files->write(at, posted_at, write);
                                        });
    if (is_posted) {
      ++sent_[at].num_lines;
    } else if (++sent_[at].num_dropped == 1) {
      complaints_.push_back(
          compose("{} cannot be written: its storage does not answer", files_->file(at).path().string()));
    }
  }

  std::filesystem::path path_;
  StorageLimits limits_;
  std::shared_ptr<RunFiles> files_;
  std::vector<Sent> sent_;  // by file
  std::uint64_t num_cuts_ = 0;
  std::vector<std::string> complaints_{};
  bool was_held_ = false;
  bool has_told_of_thread_ = false;
  bool has_given_up_ = false;
  bool is_training_ = true;
  StorageThread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
