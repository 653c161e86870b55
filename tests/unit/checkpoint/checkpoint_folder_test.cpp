// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/checkpoint_folder.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/crash_disk.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

using namespace railyard_test;

namespace {

std::vector<std::string> names_in(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{path}) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

fs::path commit_small(ry::CheckpointFolder& folder, std::uint64_t step) {
  return folder.commit({.step = step}, small_contribution().parts());
}

// Leaves holes where zeros are written.
class SparseFiles final : public ry::detail::Files {
  ssize_t write(int fd, const std::byte* from, std::size_t size) override {
    if (*from != std::byte{0} || std::memcmp(from, from + 1, size - 1) != 0) return Files::write(fd, from, size);
    return ::lseek(fd, static_cast<off_t>(size), SEEK_CUR) < 0 ? -1 : static_cast<ssize_t>(size);
  }
};

}  // namespace

TEST_CASE("FAULTS F11: CheckpointFolder: is empty until the first commit makes it") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  CHECK(folder.list().empty());
  CHECK(!folder.newest());
  CHECK(folder.problems().empty());
  folder.sweep();
  folder.retain({.keep = 1});
  CHECK(names_in(scratch.path()).empty());
  CHECK(!ry::newest_checkpoint(scratch.path()));
}

TEST_CASE("FAULTS F12: CheckpointFolder: a folder that is there already is used") {
  const Scratch scratch;
  fs::create_directory(scratch.path() / "checkpoints");
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  commit_small(folder, 1);
  CHECK(folder.list().size() == 1);
}

TEST_CASE("FAULTS F2: CheckpointFolder: all is written where it will be, so that one rename is enough") {
  const Scratch scratch;
  const auto files = std::make_shared<RecordingFiles>(scratch.path());
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", 0, files};
  commit_small(folder, 1);
  int num_renames = 0;
  for (const auto& change : files->changes()) {
    CHECK((change.path.empty() || change.path.starts_with("checkpoints")));
    if (change.kind != DiskChange::Kind::rename) continue;
    ++num_renames;
    CHECK(fs::path{change.path}.parent_path() == "checkpoints");
    CHECK(change.second == "checkpoints/checkpoint-000001");
  }
  CHECK(num_renames == 1);
}

TEST_CASE("CheckpointFolder: says that what is kept in memory does not last (TRAPS 42)") {
  if (!fs::is_directory("/dev/shm")) return;
  CHECK_THAT(std::string{ry::CheckpointFolder{"/dev/shm/checkpoints"}.doubt()}, ContainsSubstring("kept in memory"));
  CHECK(ry::CheckpointFolder{"/nowhere/at/all"}.doubt().empty());
}

TEST_CASE("CheckpointFolder: numbers go on behind the highest, whatever it is") {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  ry::CheckpointFolder folder{path};
  CHECK(commit_small(folder, 1).filename() == "checkpoint-000001");
  CHECK(commit_small(folder, 2).filename() == "checkpoint-000002");
  fs::remove_all(path / "checkpoint-000001");
  fs::create_directory(path / "checkpoint-000007");  // damaged
  fs::create_directory(path / "checkpoint-9");       // not ours
  fs::create_directory(path / "checkpoint-best");
  CHECK(commit_small(folder, 3).filename() == "checkpoint-000008");
  fs::rename(path / "checkpoint-000008", path / "checkpoint-1000000");
  CHECK(commit_small(folder, 4).filename() == "checkpoint-1000001");

  std::vector<std::uint64_t> steps;
  for (const auto& checkpoint : folder.list()) steps.push_back(checkpoint.manifest().step);
  CHECK(steps == std::vector<std::uint64_t>{2, 3, 4});
  CHECK(ry::newest_checkpoint(scratch.path())->manifest().step == 4);
}

TEST_CASE("FAULTS F15: CheckpointFolder: the newest complete one wins over a newer damaged one, which is told of") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  commit_small(folder, 1);
  const auto damaged = commit_small(folder, 2);
  fs::resize_file(damaged / "net.safetensors", 10);
  CHECK(folder.newest()->manifest().step == 1);
  CHECK(folder.list().size() == 1);
  REQUIRE(folder.problems().size() == 1);
  CHECK_THAT(folder.problems()[0], ContainsSubstring((damaged / "net.safetensors").string()));
}

TEST_CASE("CheckpointFolder: names that cannot be are refused before anything is written") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  const auto refused = [&](const std::string& first, const std::string& second, const std::string& why) {
    Contribution contribution;
    contribution.add(first, "1");
    contribution.add(second, "2");
    CHECK_THROWS_AS(folder.commit({}, contribution.parts()), ry::ConfigError);
    CHECK_THROWS_WITH(folder.commit({}, contribution.parts()), ContainsSubstring(why));
  };
  refused("a", "a", "\"a\": the name is taken");
  refused("a", "manifest.json", "taken");
  refused("../a", "b", "'/'");
  refused("files/../../a", "b", "of its own");
  refused("a", std::string{"files/\0", 7}, "control characters");
  CHECK_THROWS_AS(folder.commit({.id = "../../x"}, {}), ry::ConfigError);
  CHECK(names_in(scratch.path()).empty());
}

TEST_CASE("CheckpointFolder: what is not this program's any more is not committed (TRAPS 41)") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", 4};
  commit_small(folder, 1);
  bool is_mine = true;
  folder.still_mine = [&] {
    CHECK(names_in(scratch.path() / "checkpoints").size() == 1 + folder.list().size());  // asked before the rename
    return is_mine;
  };
  commit_small(folder, 2);
  is_mine = false;
  CHECK_THROWS_WITH(commit_small(folder, 3), ContainsSubstring("another program has taken this run over"));
  CHECK(names_in(scratch.path() / "checkpoints") == std::vector<std::string>{"checkpoint-000001", "checkpoint-000002"});
}

TEST_CASE("CheckpointFolder: who has lost the run cannot finish a commit after the next one's sweep (TRAPS 41)") {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  ry::CheckpointFolder former{path, 1};
  ry::CheckpointFolder present{path, 2};
  commit_small(former, 1);
  former.still_mine = [&] {  // it was until now
    present.sweep();
    return true;
  };
  CHECK_THROWS_WITH(commit_small(former, 2), ContainsSubstring("rename failed: No such file"));
  CHECK(present.list().size() == 1);

  class SweptMeanwhile final : public ry::detail::Files {
   public:
    explicit SweptMeanwhile(ry::CheckpointFolder& folder) : folder_(folder) {}
    int sync(int fd) override {
      folder_.sweep();
      return Files::sync(fd);
    }

   private:
    ry::CheckpointFolder& folder_;
  };
  ry::CheckpointFolder swept{path, 1, std::make_shared<SweptMeanwhile>(present)};
  swept.still_mine = [] { return false; };
  CHECK_THROWS_WITH(commit_small(swept, 3), ContainsSubstring("another program has taken this run over"));
  CHECK(names_in(path) == std::vector<std::string>{"checkpoint-000001"});
}

TEST_CASE("FAULTS F14: CheckpointFolder: two programs in one folder disturb each other in no way") {
  const Scratch scratch;
  ry::CheckpointFolder first{scratch.path() / "checkpoints"};
  ry::CheckpointFolder second{scratch.path() / "checkpoints"};
  first.still_mine = [&] {  // while the first one's files are all there
    commit_small(second, 2);
    return true;
  };
  commit_small(first, 1);
  const auto all = first.list();
  REQUIRE(all.size() == 2);
  for (const auto& checkpoint : all) checkpoint.verify();
  CHECK(all[0].manifest().step == 2);
  CHECK(all[1].manifest().step == 1);
}

TEST_CASE("CheckpointFolder: who reads while a program keeps two always finds one, and nothing that is wrong") {
  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints"};
  commit_small(folder, 1);
  std::atomic<bool> is_over{false};
  std::thread writer{[&] {
    for (std::uint64_t step = 2; step < 150; ++step) {
      commit_small(folder, step);
      folder.retain({.keep = 2});
    }
    is_over.store(true);
  }};
  const ry::CheckpointFolder readers{scratch.path() / "checkpoints"};
  std::size_t num_missing = 0;
  std::vector<std::string> problems;
  while (!is_over.load()) {
    if (!readers.newest()) ++num_missing;
    const auto found = readers.problems();
    problems.insert(problems.end(), found.begin(), found.end());
  }
  writer.join();
  CHECK(num_missing == 0);
  CHECK(problems == std::vector<std::string>{});
}

TEST_CASE("CheckpointFolder: sweeping removes what its own and earlier generations have left, and nothing else") {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  ry::CheckpointFolder folder{path, 3};
  commit_small(folder, 1);
  for (const auto* name :
       {".staging-3-a", ".staging-2-b", ".trash-0-checkpoint-000001", ".staging-4-c", ".trash-10-checkpoint-000001",
        ".staging-", ".staging-x-y", ".staging-3", "notes", ".hidden"}) {
    fs::create_directories(path / name / "files" / "deep");
    write_file(path / name / "files" / "deep" / "file", "content");
  }
  write_file(path / ".staging-1-file", "no directory");
  folder.sweep();
  CHECK(names_in(path) == std::vector<std::string>{".hidden", ".staging-", ".staging-3", ".staging-4-c", ".staging-x-y",
                                                   ".trash-10-checkpoint-000001", "checkpoint-000001", "notes"});
}

TEST_CASE("CheckpointFolder: an ended process leaves a staging folder that the next start removes") {
  const Scratch scratch;
  const auto path = scratch.path() / "checkpoints";
  ry::CheckpointFolder folder{path, 1};
  commit_small(folder, 1);
  fs::create_symlink(scratch.path(), path / ".staging-1-link");  // its target stays
  write_file(scratch.path() / "mine", "content");
  folder.sweep();
  CHECK(names_in(path) == std::vector<std::string>{"checkpoint-000001"});
  CHECK(read_file(scratch.path() / "mine") == "content");
}

#if !defined(__SANITIZE_THREAD__)  // one thread, and a minute for its sanitizer
TEST_CASE("CheckpointFolder: more than two gigabytes in one tensor work (TRAPS 42)") {
  constexpr std::int64_t count = (std::int64_t{1} << 31U) + 7;
  constexpr std::size_t size = static_cast<std::size_t>(count) + 4096;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  const std::shared_ptr<void> unmap{memory, [](void* mapped) { ::munmap(mapped, size); }};

  // All zeros but for the last: no memory and no disk is needed for them.
  ry::State state;
  state.tensors.push_back({.name = "large", .dtype = ry::Dtype::u8, .shape = {count}});
  state.tensors[0].read = [](std::int64_t, std::int64_t end, std::byte* to) { to[end - 1] = std::byte{42}; };
  const std::vector<ry::NamedState> parts{{"net", state}};
  std::vector<ry::CheckpointFolder::Part> written;
  std::vector<std::string> small;
  for (const auto& image : ry::file_images(parts, 0)) {
    if (image.name == "net.safetensors") {
      REQUIRE(image.size <= size);
      image.fill(static_cast<std::byte*>(memory));
      written.push_back({image.name, std::span{static_cast<const std::byte*>(memory), image.size}});
    } else {
      small.push_back(content_of(image));
      written.push_back({image.name, std::as_bytes(std::span{small.back()})});
    }
  }

  const Scratch scratch;
  ry::CheckpointFolder folder{scratch.path() / "checkpoints", 0, std::make_shared<SparseFiles>()};
  const auto checkpoint = ry::Checkpoint::open(folder.commit({}, written));
  checkpoint.verify();
  const auto tensor = checkpoint.load("net", 0)->tensors.at(0);
  CHECK(tensor.count() == count);
  std::byte last[2] = {};
  tensor.read(count - 2, count, last);
  CHECK(last[0] == std::byte{0});
  CHECK(last[1] == std::byte{42});
}
#endif
