// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/checkpoint_folder.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/crash_disk.hpp"
#include "support/failing_files.hpp"
#include "support/file_size_limit.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <csignal>
#include <random>

#include <poll.h>
#include <sys/wait.h>

using namespace railyard_test;

namespace {

using How = FailingFiles::How;

void commit_to(ry::CheckpointFolder& folder, std::uint64_t step) {
  folder.commit({.step = step}, small_contribution(static_cast<float>(step)).parts());
}

// All checkpoints are whole, the old one is there, and the newest is it or the new one. Returns the newest one's step.
std::uint64_t check_whole(const fs::path& path) {
  const ry::CheckpointFolder folder{path};
  CHECK(folder.problems().empty());
  const auto all = folder.list();
  REQUIRE(!all.empty());
  CHECK(all.front().manifest().step == 1);
  for (const auto& checkpoint : all) {
    checkpoint.verify();
    CHECK(elements_of<float>(checkpoint.load("net", 0)->tensors.at(0)).at(0) ==
          static_cast<float>(checkpoint.manifest().step));
  }
  return all.back().manifest().step;
}

bool has_rubbish(const fs::path& path) {
  return std::any_of(fs::directory_iterator{path}, fs::directory_iterator{},
                     [](const fs::directory_entry& entry) { return entry.path().filename().string().front() == '.'; });
}

/// Is how a commit into a folder with one checkpoint went, on a disk that fails.
struct Outcome {
  int num_calls = 0;
  std::string failed{};   // the call that was made to fail
  std::string message{};  // what was thrown; empty if nothing was
  std::uint64_t newest = 0;
  bool has_rubbish = false;
};

Outcome commit_on(int number, int error, How how) {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  ry::CheckpointFolder old{path};
  commit_to(old, 1);
  const auto files = std::make_shared<FailingFiles>(number, error, how);
  ry::CheckpointFolder folder{path, 0, files};
  Outcome outcome;
  try {
    commit_to(folder, 2);
  } catch (const ry::Error& thrown) {
    outcome.message = thrown.what();
  }
  outcome.num_calls = files->num_calls();
  outcome.failed = files->failed();
  outcome.newest = check_whole(path);
  outcome.has_rubbish = has_rubbish(path);
  old.sweep();
  CHECK(!has_rubbish(path));
  commit_to(old, 3);
  CHECK(check_whole(path) == 3);
  return outcome;
}

// Neither sweeping nor retention writes to a file, so that no write can be short. A signal interrupts one call.
std::vector<std::pair<How, int>> ways_to_fail() {
  std::vector<std::pair<How, int>> ways{{How::fails, EINTR}};
  for (const int error : {ENOSPC, EIO, EDQUOT, EROFS}) {
    for (const How how : {How::fails, How::fails_for_good}) ways.emplace_back(how, error);
  }
  return ways;
}

int count_calls() {
  constexpr int never = -1;
  return commit_on(never, 0, How::fails).num_calls;
}

}  // namespace

TEST_CASE("FAULTS F6: a commit in which any one call fails is whole or absent, says so, and leaves nothing") {
  const int num_calls = count_calls();
  for (const int error : {ENOSPC, EIO, EDQUOT, EROFS}) {
    for (int number = 0; number < num_calls; ++number) {
      const Outcome outcome = commit_on(number, error, How::fails);
      INFO(outcome.failed << ", call " << number << ", " << std::generic_category().message(error) << ": "
                          << outcome.message);
      CHECK(!outcome.failed.empty());
      CHECK(!outcome.has_rubbish);
      if (outcome.message.empty()) {
        CHECK(outcome.newest == 2);  // it has found another way
        continue;
      }
      CHECK_THAT(outcome.message, ContainsSubstring(std::generic_category().message(error)));
      CHECK_THAT(outcome.message, ContainsSubstring("railyard-test"));  // where
      // After the rename only its durability is in doubt.
      if (outcome.newest == 2) CHECK((outcome.failed == "open" || outcome.failed == "sync"));
    }
  }
}

TEST_CASE("A commit on a disk that has failed for good says what and why, and leaves the old checkpoint") {
  const int num_calls = count_calls();
  for (const int error : {ENOSPC, EIO, EDQUOT, EROFS}) {
    for (int number = 0; number < num_calls; ++number) {
      const Outcome outcome = commit_on(number, error, How::fails_for_good);
      INFO(outcome.failed << ", call " << number << ": " << outcome.message);
      if (outcome.message.empty()) {
        CHECK(outcome.newest == 2);
        CHECK(outcome.failed == "close");  // the last one, of a directory that is durable already
      } else {
        CHECK_THAT(outcome.message, ContainsSubstring(std::generic_category().message(error)));
      }
    }
  }
}

TEST_CASE(
    "TRAPS 40, 42: a commit goes on after signals, short writes, and renames that report an error though they have "
    "happened") {
  const int num_calls = count_calls();
  for (int number = 0; number < num_calls; ++number) {
    const Outcome interrupted = commit_on(number, EINTR, How::fails);
    INFO(interrupted.failed << ", call " << number << ": " << interrupted.message);
    CHECK(interrupted.message.empty());
    CHECK(interrupted.newest == 2);
    const Outcome shortened = commit_on(number, 0, How::writes_less);
    CHECK(shortened.message.empty());
    CHECK(shortened.newest == 2);
    const Outcome unclear = commit_on(number, EIO, How::renames_all_the_same);
    if (unclear.failed != "rename") continue;
    CHECK(unclear.message.empty());
    CHECK(unclear.newest == 2);
  }
}

TEST_CASE("FAULTS F6: a full disk is called that, with the file, the room that is left, and what to do") {
  int number = 0;
  while (commit_on(number, ENOSPC, How::fails).failed != "write") ++number;
  CHECK_THAT(commit_on(number, ENOSPC, How::fails_for_good).message,
             ContainsSubstring("state.json: write failed: No space left on device; the file system has ") &&
                 ContainsSubstring("MB left: make room"));
}

TEST_CASE("TRAPS 35: after a failed fsync a file is written anew, and never synchronised again as it is") {
  class FailingSync final : public RecordingFiles {
   public:
    using RecordingFiles::RecordingFiles;
    int sync(int fd) override {
      if (num_failures > 0) {
        --num_failures;
        failed_after = changes().size();
        errno = EIO;
        return -1;
      }
      return RecordingFiles::sync(fd);
    }
    int num_failures = 0;
    std::size_t failed_after = 0;
  };
  const Scratch scratch;
  const auto files = std::make_shared<FailingSync>(scratch.path());
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", 0, files};
  commit_to(folder, 1);
  files->num_failures = 1;
  commit_to(folder, 2);
  const auto& changes = files->changes();
  REQUIRE(files->failed_after + 4 <= changes.size());
  const auto* change = &changes[files->failed_after];
  CHECK(change[-1].kind == DiskChange::Kind::write);
  CHECK(change[0].kind == DiskChange::Kind::remove);
  CHECK(change[1].kind == DiskChange::Kind::create);
  CHECK(change[2].kind == DiskChange::Kind::write);
  CHECK(change[2].second == change[-1].second);
  CHECK(change[3].kind == DiskChange::Kind::sync);
  for (int i = 0; i < 4; ++i) CHECK(change[i].path == change[-1].path);
  CHECK(check_whole(scratch.path() / "checkpoints") == 2);

  files->num_failures = 3;
  CHECK_THROWS_WITH(commit_to(folder, 3), ContainsSubstring("fsync failed: Input/output error"));
  CHECK(check_whole(scratch.path() / "checkpoints") == 2);
}

TEST_CASE("Retention and sweeping on a failing disk lose nothing that is kept, and say what is left") {
  for (const auto& [how, error] : ways_to_fail()) {
    bool has_failed = true;
    for (int number = 0; has_failed; number += is_sanitized ? 3 : 1) {
      const Scratch scratch;
      const auto path = scratch.path() / "checkpoints";
      ry::CheckpointFolder real{path};
      for (std::uint64_t step = 1; step <= 3; ++step) {
        real.commit({.step = step, .metrics = {{"score", step == 1 ? 1 : 0}}},
                    small_contribution(static_cast<float>(step)).parts());
      }
      fs::create_directory(path / ".staging-0-x");
      const auto files = std::make_shared<FailingFiles>(number, error, how);
      ry::CheckpointFolder folder{path, 0, files};
      std::string message;
      try {
        for (const std::string& left : folder.sweep()) message += left;
        folder.retain({.keep = 1, .score = "score"});
      } catch (const ry::Error& thrown) {
        message = thrown.what();
      }
      has_failed = !files->failed().empty();
      const std::string reason = std::generic_category().message(error);
      INFO(files->failed() << ", call " << number << ", " << reason << ": " << message);
      CHECK(check_whole(path) == 3);
      if (message.empty()) {  // it has done all there was to do
        CHECK(!has_rubbish(path));
        CHECK(real.list().size() == 2);
      } else {
        CHECK(error != EINTR);
        CHECK_THAT(message, ContainsSubstring(reason));
      }
      real.sweep();
      real.retain({.keep = 1, .score = "score"});
      CHECK(!has_rubbish(path));
      CHECK(real.list().size() == 2);
    }
  }
}

TEST_CASE("TRAPS 42: a file that may not become so large is an error and no signal") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  commit_to(folder, 1);
  Contribution contribution;
  contribution.add("large", std::string(10'000, 'x'));
  {
    const FileSizeLimit limit{4096};
    CHECK_THROWS_WITH(folder.commit({}, contribution.parts()),
                      ContainsSubstring("large: write failed: File too large") && ContainsSubstring("ulimit -f"));
  }
  CHECK(check_whole(scratch.path() / "checkpoints") == 1);
}

TEST_CASE(
    "FAULTS F1: kill -9 before and after every call of a commit, a sweep and a removal leaves whole checkpoints only") {
  int num_killed = 0;
  for (const How how : {How::dies_before, How::dies_after}) {
    bool is_killed = true;
    for (int number = 0; is_killed; number += is_sanitized ? 3 : 1) {
      const Scratch scratch;
      const auto path = scratch.path() / "checkpoints";
      ry::CheckpointFolder old{path};
      old.commit({.step = 1, .metrics = {{"score", 1}}}, small_contribution(1).parts());
      commit_to(old, 2);
      fs::copy(path / "checkpoint-000002", path / ".staging-1-x", fs::copy_options::recursive);
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        try {
          ry::CheckpointFolder folder{path, 1, std::make_shared<FailingFiles>(number, 0, how)};
          folder.sweep();
          commit_to(folder, 3);
          folder.retain({.keep = 1, .score = "score"});
          ::_exit(0);
        } catch (...) {
          ::_exit(1);
        }
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      is_killed = WIFSIGNALED(status);
      INFO("call " << number << ", status " << status);
      CHECK((is_killed || status == 0));
      CHECK(check_whole(path) >= 2);
      ry::CheckpointFolder next{path, 2};
      next.sweep();
      CHECK(!has_rubbish(path));
      num_killed += is_killed ? 1 : 0;
    }
  }
  CHECK(num_killed > railyard_test::fewer(150));
}

TEST_CASE("FAULTS F1: kill -9 at random moments of commits, retention and sweeps leaves whole checkpoints only") {
  std::mt19937 random{3};
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  std::uint64_t newest = 1;
  {
    ry::CheckpointFolder folder{path};
    folder.commit({.step = 1, .metrics = {{"score", 1}}}, small_contribution(1).parts());
  }
  for (int round = 1; round <= 40; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        ry::CheckpointFolder folder{path, static_cast<std::uint64_t>(round)};
        folder.sweep();
        for (std::uint64_t step = newest + 1;; ++step) {
          commit_to(folder, step);
          folder.retain({.keep = 1, .score = "score"});
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    const auto moment = static_cast<long>(random() % 30'000'000);
    const timespec time{.tv_sec = 0, .tv_nsec = moment};
    ::nanosleep(&time, nullptr);  // until the moment of its death, not for anything to happen
    REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    const auto step = check_whole(path);
    CHECK(step >= newest);
    newest = step;
  }
  CHECK(newest > 5);
  ry::CheckpointFolder folder{path, 41};
  folder.sweep();
  CHECK(!has_rubbish(path));
}
