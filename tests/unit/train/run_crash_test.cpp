// SPDX-License-Identifier: MIT
// What power cuts leave of a run's files beside its checkpoints.
#include "railyard/train/detail/checkpoint_writer.hpp"
#include "railyard/train/detail/run_directory.hpp"
#include "railyard/train/detail/run_lease.hpp"
#include "railyard/train/detail/run_record.hpp"

#include "support/catch.hpp"
#include "support/crash_disk.hpp"
#include "unit/checkpoint/support.hpp"
#include "unit/train/poor_group.hpp"
#include "unit/train/scratch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
namespace rt = railyard_test;

namespace {

// Does what a supervisor does to the files of a run.
class Program {
 public:
  // is_new: it has made the run's directory.
  Program(const std::filesystem::path& run, const std::shared_ptr<rt::RecordingFiles>& files, bool is_new)
      : lease_(run, {}, files, is_new),
        directory_(run, 1, files),
        writer_(
            run, folder_of(run, files), {}, group_, [this] { directory_.await(); }, files) {}

  [[nodiscard]] ry::detail::RunDirectory& directory() { return directory_; }
  void report(std::int64_t number) {
    const auto line = ry::detail::JsonObject{}.add("report", number).add("seconds", 0.5).add("loss", number);
    directory_.append_metrics(number, line.text());
  }
  void save(std::int64_t report) { REQUIRE(error_of_save(report) == ""); }
  std::string error_of_save(std::int64_t report) {
    writer_.submit({.manifest = {.world_size = 1, .step = static_cast<std::uint64_t>(report + 1), .report = report},
                    .parts = {{.name = "state.json", .size = 8}}});
    REQUIRE(writer_.drain(ry::Deadline::after(std::chrono::seconds{30})));
    return writer_.take_outcomes().at(0).error;
  }

 private:
  [[nodiscard]] ry::CheckpointFolder folder_of(const std::filesystem::path& run,
                                               const std::shared_ptr<rt::RecordingFiles>& files) const {
    ry::CheckpointFolder folder{run / "checkpoints", lease_.generation(), files};
    folder.still_mine = [this] { return lease_.is_held(); };
    return folder;
  }

  ry::detail::RunLease lease_;
  ry::detail::RunDirectory directory_;
  PoorGroup group_{};
  ry::detail::CheckpointWriter writer_;
};

// Does not synchronise one file so many times.
class DoubtfulFiles final : public rt::RecordingFiles {
 public:
  DoubtfulFiles(const std::filesystem::path& root, std::string name) : RecordingFiles(root), name_(std::move(name)) {}

  int num_failures = 0;

  int open(const Path& path, int flags) override {
    const int fd = RecordingFiles::open(path, flags);
    const std::lock_guard lock{mutex_};
    path.filename() == name_ ? static_cast<void>(descriptors_.insert(fd)) : static_cast<void>(descriptors_.erase(fd));
    return fd;
  }
  int sync(int fd) override {
    const std::lock_guard lock{mutex_};
    if (num_failures == 0 || descriptors_.count(fd) == 0) return RecordingFiles::sync(fd);
    --num_failures;
    errno = EIO;
    return -1;
  }
  [[nodiscard]] std::size_t num_written() const {
    const auto is_of_it = [this](const rt::DiskChange& change) {
      return change.kind == rt::DiskChange::Kind::overwrite && change.path.ends_with(name_);
    };
    return static_cast<std::size_t>(std::count_if(changes().begin(), changes().end(), is_of_it));
  }

 private:
  std::string name_;
  std::mutex mutex_{};
  std::set<int> descriptors_{};
};

constexpr std::int64_t last_report = 3;
constexpr const char* crashed_run = "new/storage/run";  // in storage of which nothing is there yet
// A claim may outlive the lease, and is waited for then.
constexpr ry::detail::LeaseTimes of_no_wait{.beat = std::chrono::milliseconds{1},
                                            .patience = std::chrono::milliseconds{2}};

// Says what is wrong with what a power cut has left, or nothing.
std::string fault_of(const rt::Tree& state) {
  const rt::Scratch scratch;
  rt::write_tree(state, scratch.path());
  const auto run = scratch.path() / crashed_run;
  const auto newest = ry::newest_checkpoint(run);
  if (!newest) return {};  // the run begins anew, or is refused: nothing was promised yet
  newest->verify();
  const ry::detail::RunRecord record = ry::detail::read_run_record(run);
  if (record.is_recovered) return "run.json is lost";
  for (std::int64_t report = 0; report <= newest->manifest().report; ++report) {
    const auto at = static_cast<std::size_t>(report);
    if (at >= record.lines.size() || record.lines[at].report != report) return "a report is lost";
  }
  if (record.has_succeeded && newest->manifest().report != last_report) return "it has succeeded without its end";
  if (ry::detail::RunLease{run, of_no_wait}.generation() <= newest->manifest().generation)
    return "a generation is lost";
  return {};
}

// What two programs have done to the files of a run, one after the other.
struct Recorded {
  rt::Tree before{};
  std::vector<rt::DiskChange> changes{};
  std::size_t first_save = 0;  // so many of them had been made when the first checkpoint was committed
};

Recorded record_run(const Scratch& scratch, int forgotten_sync = -1) {
  const auto run = scratch.path() / crashed_run;
  Recorded recorded{.before = rt::tree_of(scratch.path())};
  const auto files = std::make_shared<rt::RecordingFiles>(scratch.path());
  files->forgotten_sync = forgotten_sync;
  CHECK(ry::detail::make_run_directory("run", run.parent_path(), files).is_new);
  {
    Program first{run, files, true};
    const auto record = ry::detail::JsonObject{}.add("backend", "b").add("scaling", "s").add("world_size", 1);
    const auto run_json = ry::detail::JsonObject{record}.add("seed", 1);
    REQUIRE(ry::detail::write_object(run / "run.json", run_json, false, files).empty());
    for (const std::int64_t report : {0, 1}) first.report(report);
    first.save(1);
    recorded.first_save = files->changes().size();
    for (const std::int64_t report : {2, 3}) first.report(report);
  }
  CHECK_FALSE(ry::detail::make_run_directory("run", run.parent_path(), files).is_new);
  Program second{run, files, false};  // takes the run over, and goes on from the checkpoint
  second.directory().begin_with(ry::detail::read_run_record(run, files).lines);
  second.directory().go_back(2);
  for (const std::int64_t report : {2, 3}) second.report(report);
  second.save(last_report);
  const auto result = ry::detail::JsonObject{}.add("succeeded", true).add("seconds", 1.5);
  const auto settle = [&second] { second.directory().settle(); };
  REQUIRE(second.directory().write_last("result.json", result, true, settle).empty());
  CHECK(second.directory().take_complaints().empty());
  recorded.changes = files->changes();
  return recorded;
}

}  // namespace

TEST_CASE(
    "TRAPS 34: Power cuts: a checkpoint never lasts without the reports, the run and the generation that it counts "
    "on") {
  const Scratch scratch;
  const Recorded recorded = record_run(scratch);
  rt::CutCount cuts;
  std::string fault;
  rt::visit_crash_states(recorded.before, recorded.changes, 0, cuts, [&](const rt::Tree& state) {
    fault = fault_of(state);
    return fault.empty();
  });
  CHECK(fault == "");
  CHECK(cuts.num_looked_at > 100);
  WARN(cuts.text());
  rt::CutCount at_end;
  rt::visit_crash_states(
      recorded.before, recorded.changes, recorded.changes.size(), at_end, [&](const rt::Tree& state) {
        CHECK_THAT(state.at(std::string{crashed_run} + "/result.json").value(), ContainsSubstring("succeeded"));
        return true;
      });
}

TEST_CASE("TRAPS 34: Power cuts: the folders that a run has made above its own last as its first checkpoint does") {
  const int forgotten_sync = GENERATE(-1, 0);  // none, or that of the first folder's name
  const Scratch scratch;
  const Recorded recorded = record_run(scratch, forgotten_sync);
  const std::string manifest = std::string{crashed_run} + "/checkpoints/checkpoint-000001/manifest.json";
  rt::CutCount cuts;
  bool is_lost = false;
  rt::visit_crash_states(recorded.before, recorded.changes, recorded.first_save, cuts, [&](const rt::Tree& state) {
    is_lost = state.count(manifest) == 0;
    return !is_lost;
  });
  CHECK(is_lost == (forgotten_sync == 0));
}

TEST_CASE("TRAPS 35: a record of a run that could not be synchronised is written anew before that is believed") {
  const std::string name = GENERATE("run.json", "lease.json");
  const Scratch scratch;
  const auto run = scratch.path() / "run";
  const auto files = std::make_shared<DoubtfulFiles>(scratch.path(), name);
  CHECK(ry::detail::make_run_directory("run", scratch.path(), files).is_new);
  Program program{run, files, true};
  REQUIRE(ry::detail::write_object(run / "run.json", ry::detail::JsonObject{}.add("seed", 1), false, files).empty());
  const std::string before = read_text(run / name);
  const std::size_t num_before = files->num_written();
  files->num_failures = 2;
  CHECK_THAT(program.error_of_save(0), ContainsSubstring(name) && ContainsSubstring("Input/output error"));
  CHECK(files->num_written() == num_before + 1);
  program.save(1);
  CHECK(files->num_written() == num_before + 2);
  CHECK(read_text(run / name) == before);
  CHECK(ry::newest_checkpoint(run)->manifest().report == 1);
}
