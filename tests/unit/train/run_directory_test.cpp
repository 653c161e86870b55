// SPDX-License-Identifier: MIT
#include "railyard/train/detail/run_directory.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"
#include "unit/train/scratch.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;
using namespace std::chrono_literals;
using ry::detail::RunDirectory;
using ry::detail::StorageLimits;

namespace {

using Texts = std::vector<std::string>;

std::filesystem::path run_in_folder(const Scratch& scratch) {
  std::filesystem::create_directories(scratch.path() / "logs");
  return scratch.path();
}

std::string write_last(RunDirectory& directory) {
  return directory.write_last("result.json", {}, true, [&directory] { directory.settle(); });
}

struct FullForFolders : ry::detail::Files {
  int make_directory(const Path& /*path*/) override {
    errno = ENOSPC;
    return -1;
  }
};

// Cannot shorten files, for so many times.
struct UncutFiles : ry::detail::Files {
  explicit UncutFiles(int num) : num_failures(num) {}
  int truncate(int fd, off_t size) override {
    if (num_failures-- <= 0) return Files::truncate(fd, size);
    errno = EIO;
    return -1;
  }
  std::atomic<int> num_failures;
};

}  // namespace

TEST_CASE("RunDirectory: makes logs/ with the first line that a worker prints") {
  const Scratch scratch;
  RunDirectory directory{scratch.path(), 2};
  directory.append_metrics(0, "{}");
  directory.settle();
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "logs"));
  directory.append_log(0, "a line");
  directory.append_log(1, "another");
  directory.settle();
  CHECK(read_lines(scratch.path() / "logs" / "rank-0.log") == Texts{"a line"});
  CHECK(read_lines(scratch.path() / "logs" / "rank-1.log") == Texts{"another"});
  CHECK(directory.take_complaints().empty());
}

TEST_CASE("RunDirectory: where logs/ cannot be made, that is told with the system's reason") {
  const Scratch scratch;
  RunDirectory directory{scratch.path(), 1, std::make_shared<FullForFolders>()};
  directory.append_log(0, "a line");
  directory.settle();
  const auto complaints = directory.take_complaints();
  REQUIRE(complaints.size() == 1);
  CHECK_THAT(complaints.front(),
             ContainsSubstring("rank-0.log cannot be written") && ContainsSubstring("No space left on device"));
  REQUIRE(directory.warnings().size() == 1);
  CHECK_THAT(directory.warnings().front(), ContainsSubstring("1 line(s) are missing from"));
}

TEST_CASE("RunDirectory: what storage holds up is written in order once it answers, and nobody waits for it") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  RunDirectory directory{run_in_folder(scratch), 2, files};
  files->stall();
  for (int report = 0; report < 3; ++report) {
    directory.append_metrics(report, fmt::format("{{\"report\": {}}}", report));
    directory.append_log(1, fmt::format("line {}", report));
  }
  directory.go_back(1);
  directory.append_metrics(1, "anew");
  CHECK(awaits([&] { return files->num_waiting() == 1; }));
  CHECK(directory.log_of(1));
  CHECK_FALSE(directory.log_of(0));
  files->let_go();
  directory.settle();
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"{\"report\": 0}", "anew"});
  CHECK(read_lines(scratch.path() / "logs" / "rank-1.log") == Texts{"line 0", "line 1", "line 2"});
  CHECK(directory.warnings().empty());
  CHECK(directory.take_complaints().empty());
}

TEST_CASE("RunDirectory: logs for which there is no room are lost and counted, and leave room for reports") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  RunDirectory directory{run_in_folder(scratch), 1, files, {.bytes = 4096, .room = 1ms}};
  files->stall();
  const std::string line(1000, 'x');
  for (int at = 0; at < 100; ++at) directory.append_log(0, line);
  directory.append_metrics(0, "a report");
  directory.append_event(ry::detail::JsonObject{}.add("event", "it"));
  const auto complaints = directory.take_complaints();
  REQUIRE(complaints.size() == 1);
  CHECK_THAT(complaints[0],
             ContainsSubstring("rank-0.log cannot be written: its storage does not answer; training goes"));
  files->let_go();
  directory.settle();
  const auto num_lines = read_lines(scratch.path() / "logs" / "rank-0.log").size();
  CHECK(num_lines >= 3);
  CHECK(num_lines <= 4);
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"a report"});
  CHECK(read_lines(scratch.path() / "events.jsonl").size() == 1);
  REQUIRE(directory.warnings().size() == 1);
  CHECK_THAT(directory.warnings()[0],
             ContainsSubstring(fmt::format("{} line(s) are missing from", 100 - num_lines)) &&
                 ContainsSubstring("rank-0.log: its storage did not answer; training went on without them"));
}

TEST_CASE("RunDirectory: a full disk is told of once for each file, and what is missing is counted") {
  const Scratch scratch;
  std::filesystem::create_symlink("/dev/full", scratch.path() / "metrics.jsonl");
  RunDirectory directory{run_in_folder(scratch), 1};
  for (int report = 0; report < 2; ++report) directory.append_metrics(report, "x");
  directory.settle();
  const auto complaints = directory.take_complaints();
  REQUIRE(complaints.size() == 1);
  CHECK_THAT(complaints[0],
             ContainsSubstring("metrics.jsonl cannot be written: No space left on device; training goes on"));
  REQUIRE(directory.warnings().size() == 1);
  CHECK_THAT(directory.warnings()[0],
             ContainsSubstring("2 line(s) are missing from") &&
                 ContainsSubstring("metrics.jsonl: No space left on device; training went on"));
}

TEST_CASE("RunDirectory: storage that never answers is given up at the end, loudly, and nothing is waited for after") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  {
    RunDirectory directory{run_in_folder(scratch), 1, files, {.notice = 1ms, .end = 50ms}};
    files->stall();
    for (int at = 0; at < 3; ++at) directory.append_metrics(at, "x");
    Texts early;  // while workers train
    CHECK(awaits([&] {
      if (early.empty()) early = directory.take_complaints();
      return !early.empty();
    }));
    CHECK_THAT(early.at(0), ContainsSubstring("has not answered for 1 ms") && ContainsSubstring("; training goes on"));
    directory.note_end();
    directory.settle();
    const auto complaints = directory.take_complaints();
    REQUIRE(complaints.size() == 1);
    CHECK_THAT(complaints[0],
               ContainsSubstring("has not answered for 50 ms, and what was still to be written is lost"));
    REQUIRE(directory.warnings().size() == 1);
    CHECK_THAT(directory.warnings()[0], ContainsSubstring("3 line(s) are missing"));
    CHECK_THAT(write_last(directory), ContainsSubstring("its storage does not answer"));
  }
  CHECK(files->num_waiting() == 1);
  files->let_go();
  CHECK(awaits([&] { return files.use_count() == 1; }));  // the thread that was left behind has ended
  CHECK(read_lines(scratch.path() / "metrics.jsonl").size() <= 1);
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "result.json"));
}

TEST_CASE("RunDirectory: a run that was taken over while storage stood still gets nothing of what has waited") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  RunDirectory directory{run_in_folder(scratch), 1, files};
  const auto is_mine = std::make_shared<std::atomic<bool>>(true);
  directory.ask_before_late_writes(1ns, [is_mine] { return is_mine->load(); });
  directory.append_metrics(0, "before");
  directory.settle();
  files->stall();
  directory.append_event(ry::detail::JsonObject{}.add("event", "held"));
  CHECK(awaits([&] { return files->num_waiting() == 1; }));
  directory.append_metrics(1, "too late");
  *is_mine = false;
  files->let_go();
  directory.settle();
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"before"});
  *is_mine = true;
  directory.append_metrics(1, "after it was lost");
  CHECK(write_last(directory).empty());
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"before"});
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "result.json"));
  CHECK(directory.warnings().empty());
}

TEST_CASE("RunDirectory: whose the run is, is asked again before the next late line, and not after it is lost") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  RunDirectory directory{run_in_folder(scratch), 1, files};
  const auto num_asked = std::make_shared<std::atomic<int>>(0);
  directory.ask_before_late_writes(0ns, [num_asked] { return ++*num_asked != 3; });
  files->stall();
  for (const char* line : {"held", "mine", "another's", "after it was lost"}) directory.append_log(0, line);
  CHECK(awaits([&] { return files->num_waiting() == 1; }));
  files->let_go();
  directory.settle();
  CHECK(read_lines(scratch.path() / "logs" / "rank-0.log") == Texts{"held", "mine"});
  CHECK(*num_asked == 3);
}

TEST_CASE("RunDirectory: nothing is written into a run that is fenced off") {
  const Scratch scratch;
  RunDirectory directory{run_in_folder(scratch), 1};
  directory.append_metrics(0, "before");
  directory.settle();
  directory.fence();
  directory.append_metrics(1, "fenced");
  CHECK(write_last(directory).empty());
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"before"});
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "result.json"));
  CHECK(directory.warnings().empty());
}

TEST_CASE("RunDirectory: what was to be written last, and was given up, does not appear later") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  {
    RunDirectory directory{run_in_folder(scratch), 1, files, {.end = 50ms}};
    files->stall();
    CHECK_THAT(write_last(directory), ContainsSubstring("its storage does not answer"));
  }
  files->let_go();
  CHECK(awaits([&] { return files.use_count() == 1; }));  // the thread that was left behind has ended
  for (const auto& entry : std::filesystem::directory_iterator{scratch.path()})
    CHECK(entry.path().filename() == "logs");
}

TEST_CASE("RunDirectory: reports that cannot be taken back are told of, and taken back before the next one") {
  const Scratch scratch;
  const auto files = std::make_shared<UncutFiles>(2);
  RunDirectory directory{run_in_folder(scratch), 1, files};
  for (int report = 0; report < 2; ++report) directory.append_metrics(report, "old");
  directory.go_back(1);
  directory.settle();
  const auto complaints = directory.take_complaints();
  REQUIRE(complaints.size() == 1);
  CHECK_THAT(complaints[0], ContainsSubstring("reports cannot be taken back from") &&
                                ContainsSubstring("metrics.jsonl: Input/output error; training goes on"));
  CHECK(directory.warnings().size() == 1);
  directory.append_metrics(1, "lost");
  directory.append_metrics(2, "new");
  directory.settle();
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"old", "new"});
  REQUIRE(directory.warnings().size() == 1);
  CHECK(directory.warnings()[0].starts_with("1 line(s) are missing from"));
}

TEST_CASE("RunDirectory: there is always room to take reports back, and that is no line") {
  const Scratch scratch;
  const auto files = std::make_shared<StalledFiles>();
  RunDirectory directory{run_in_folder(scratch), 1, files, {.bytes = 500, .room = 1ms}};
  files->stall();
  directory.append_metrics(0, "kept");
  CHECK(awaits([&] { return files->num_waiting() == 1; }));
  for (int report = 1; report < 20; ++report) directory.append_metrics(report, "old");
  directory.go_back(1);
  files->let_go();
  directory.settle();
  CHECK(read_lines(scratch.path() / "metrics.jsonl") == Texts{"kept"});
  REQUIRE(directory.warnings().size() == 1);
  CHECK_THAT(directory.warnings()[0], ContainsSubstring("line(s) are missing from"));
}
