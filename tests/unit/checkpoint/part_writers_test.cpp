// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/part_writers.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/failing_files.hpp"
#include "support/other_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <functional>

using namespace railyard_test;

namespace {

std::uint64_t newest_step(const ry::CheckpointFolder& folder) {
  const auto newest = folder.newest();
  if (!newest) return 0;
  newest->verify();
  return newest->manifest().step;
}

// Does not come to an end of writing, and goes on when it has been given up.
class LateWriter final : public ry::PartWriters {
 public:
  std::set<std::string> begin(const fs::path& directory) override {
    directory_ = directory;
    return {"state.rank-1.json"};
  }
  std::vector<ry::ManifestFile> finish() override { throw ry::Error{"process 1 does not come to an end"}; }
  void go_on() const { std::ofstream{directory_ / "state.rank-1.json"} << "late"; }

 private:
  fs::path directory_{};
};

// Lets something happen between the first listing of a directory that is to be removed and its removal.
class InterruptedFiles final : public ry::detail::Files {
 public:
  std::function<void()> meanwhile{};
  int list(const Path& path, std::vector<std::string>& names) override {
    const int result = Files::list(path, names);
    if (meanwhile && path.filename().string().starts_with(".")) std::exchange(meanwhile, {})();
    return result;
  }
};

std::ptrdiff_t count_entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator{folder}, fs::directory_iterator{});
}

}  // namespace

TEST_CASE("PartWriters: a checkpoint is the same whoever writes its parts") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const Contribution all = small_contribution();
  const auto alone = ry::Checkpoint::open(folder.commit({}, all.parts()));
  OtherWriter other{all, std::make_shared<ry::detail::Files>()};
  const auto together = ry::Checkpoint::open(folder.commit({}, all.parts(), &other));
  together.verify();
  CHECK(other.names ==
        std::set<std::string>{"files/vocabulary/words.txt", "optimizer.rank-1.safetensors", "state.rank-1.json"});
  CHECK(together.manifest().files == alone.manifest().files);
}

TEST_CASE("PartWriters: what another could not write is written by the one who commits, whichever call has failed") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const Contribution all = small_contribution();
  const auto how = GENERATE(FailingFiles::How::fails, FailingFiles::How::fails_for_good);
  std::uint64_t step = 0;
  bool has_failed = true;
  for (int number = 0; has_failed; ++number) {
    const auto files = std::make_shared<FailingFiles>(number, ENOSPC, how);
    OtherWriter other{all, files};
    folder.commit({.step = ++step}, all.parts(), &other);
    CHECK(newest_step(folder) == step);
    has_failed = !files->failed().empty();
  }
  CHECK(step > 20);
  CHECK(count_entries(scratch.path() / "checkpoints") == static_cast<std::ptrdiff_t>(step));
}

TEST_CASE("PartWriters: a commit that fails waits for those who still write, and leaves the old checkpoint alone") {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  ry::CheckpointFolder folder{path};
  const Contribution all = small_contribution();
  folder.commit({.step = 1}, all.parts());
  OtherWriter other{all, std::make_shared<ry::detail::Files>()};
  other.writes_at_end = true;
  SECTION("its own parts cannot be written") {
    const auto files = std::make_shared<FailingFiles>(8, ENOSPC, FailingFiles::How::fails_for_good);
    ry::CheckpointFolder full{path, 0, files};
    CHECK_THROWS_AS(full.commit({.step = 2}, all.parts(), &other), ry::Error);
    CHECK(files->failed() == "write");
    folder.sweep();  // nothing can be removed on that disk
  }
  SECTION("the run has been taken over meanwhile") {
    folder.still_mine = [] { return false; };
    CHECK_THROWS_WITH(folder.commit({.step = 2}, all.parts(), &other), ContainsSubstring("has taken this run over"));
  }
  CHECK(other.has_finished);
  CHECK(newest_step(folder) == 1);
  CHECK(count_entries(path) == 1);
}

TEST_CASE("PartWriters: one that was given up, and writes on, leaves nothing in a directory that is being removed") {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  const auto files = std::make_shared<InterruptedFiles>();
  ry::CheckpointFolder folder{path, 0, files};
  const Contribution all = small_contribution();
  folder.commit({.step = 1}, all.parts());
  LateWriter late;
  bool has_gone_on = false;
  files->meanwhile = [&] {
    late.go_on();
    has_gone_on = true;
  };
  CHECK_THROWS_WITH(folder.commit({.step = 2}, all.parts(), &late), ContainsSubstring("does not come to an end"));
  CHECK(has_gone_on);
  CHECK(newest_step(folder) == 1);
  CHECK(count_entries(path) == 1);
}
