// SPDX-License-Identifier: MIT
#include "railyard/train/detail/files.hpp"

#include "support/catch.hpp"
#include "unit/train/scratch.hpp"

#include <algorithm>
#include <iterator>

namespace ry = railyard;
using ry::detail::LineFile;

TEST_CASE("LineFile: appends whole lines") {
  const Scratch scratch;
  LineFile file{scratch.path() / "f"};
  CHECK_FALSE(file.exists());
  CHECK(file.append("a"));
  CHECK(file.append(""));
  CHECK(file.append("b"));
  CHECK(read_text(file.path()) == "a\n\nb\n");
  CHECK(file.num_lost() == 0);
}

TEST_CASE("LineFile: a full disk costs lines, is counted and named") {
  LineFile file{"/dev/full"};
  CHECK_FALSE(file.append("a"));
  CHECK_FALSE(file.append("b"));
  CHECK(file.num_lost() == 2);
  CHECK_THAT(file.complaint(), Catch::ContainsSubstring("/dev/full cannot be written: No space left on device"));
}

TEST_CASE("LineFile: half a line is taken back when the disk is full") {
  const Scratch scratch;
  const FileSizeLimit limit{20};
  // a write past it is cut short, the next one fails: what a full disk does
  LineFile file{scratch.path() / "f"};
  CHECK(file.append("0123456789"));
  CHECK_FALSE(file.append("0123456789"));
  CHECK(file.append("01234567"));
  CHECK(read_text(file.path()) == "0123456789\n01234567\n");
  CHECK(file.num_lost() == 1);
}

TEST_CASE("make_run_directory: makes folders as needed and unique names") {
  const Scratch scratch;
  const auto first = ry::detail::make_run_directory("", scratch.path() / "x" / "y");
  const auto second = ry::detail::make_run_directory("", scratch.path() / "x" / "y");
  CHECK(first.name != second.name);
  CHECK(first.is_new);
  CHECK(std::filesystem::is_directory(first.path));
  CHECK(second.path == scratch.path() / "x" / "y" / second.name);
}

TEST_CASE("make_run_directory: finds a directory that exists, and refuses a file of that name") {
  const Scratch scratch;
  CHECK(ry::detail::make_run_directory("digits", scratch.path()).is_new);
  CHECK_FALSE(ry::detail::make_run_directory("digits", scratch.path()).is_new);
  LineFile{scratch.path() / "file"}.append("x");
  CHECK_THROWS_WITH(ry::detail::make_run_directory("file", scratch.path()),
                    Catch::ContainsSubstring("RunConfig::name is \"file\"") &&
                        Catch::ContainsSubstring("is no directory") && Catch::ContainsSubstring("another name"));
}

TEST_CASE("LineFile: takes lines back, also those of an earlier program") {
  const Scratch scratch;
  LineFile{scratch.path() / "lines"}.append("first");
  LineFile file{scratch.path() / "lines"};
  file.append("second");
  CHECK(file.size() == 13);
  CHECK(file.cut(6));
  file.append("other");
  CHECK(read_text(file.path()) == "first\nother\n");
}

TEST_CASE("make_run_directory: writes nothing into a directory that is no run's") {
  const Scratch scratch;
  const auto holds_only = [](const std::filesystem::path& folder, const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator{folder}) {
      if (entry.path().filename() != name) return false;
    }
    return true;
  };
  std::filesystem::create_directories(scratch.path() / "photographs");
  LineFile{scratch.path() / "photographs" / "list.txt"}.append("x");
  CHECK_THROWS_WITH(ry::detail::make_run_directory("photographs", scratch.path()),
                    Catch::ContainsSubstring("no run.json") && Catch::ContainsSubstring("another name"));
  CHECK(holds_only(scratch.path() / "photographs", "list.txt"));
  std::filesystem::create_directories(scratch.path() / "checkpoint-000001");
  LineFile{scratch.path() / "checkpoint-000001" / "manifest.json"}.append("{}");
  CHECK_THROWS_WITH(ry::detail::make_run_directory("checkpoint-000001", scratch.path()),
                    Catch::ContainsSubstring("is a checkpoint") && Catch::ContainsSubstring("checkpoints/ lies in"));
  CHECK(holds_only(scratch.path() / "checkpoint-000001", "manifest.json"));
}

TEST_CASE("make_run_directory: takes a directory whose record a power cut has kept from the disk") {
  const Scratch scratch;
  for (const std::string& content : {std::string{}, std::string(300, '\0')}) {
    const auto path = ry::detail::make_run_directory("cut", scratch.path()).path;
    std::ofstream{path / "run.json"} << content;
    std::ofstream{path / "run.json.77"} << "half";
    std::ofstream{path / "metrics.jsonl"} << content;
    std::ofstream{path / "events.jsonl"} << "{}\n";
    std::ofstream{path / "result.json"} << "{\"succeeded\": true}";
    CHECK(ry::detail::is_barely_begun(path));
    CHECK_FALSE(ry::detail::make_run_directory("cut", scratch.path()).is_new);
    ry::detail::sweep_run_directory(path, true);
    CHECK(std::filesystem::is_empty(path));
  }
  const auto path = scratch.path() / "cut";
  std::ofstream{path / "run.json"} << "{}";
  CHECK_FALSE(ry::detail::is_barely_begun(path));
  std::ofstream{path / "run.json"} << "";
  std::filesystem::create_directory(path / "checkpoints");  // before the first one the record is made durable
  CHECK_FALSE(ry::detail::is_barely_begun(path));
}

TEST_CASE("sweep_run_directory: removes files that were half written, and nothing else") {
  const Scratch scratch;
  for (const char* name : {"run.json", "run.json.12", "result.json", "result.json.345", "result.json.bak", "notes.1"}) {
    std::ofstream{scratch.path() / name} << "{}";
  }
  ry::detail::sweep_run_directory(scratch.path(), false);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator{scratch.path()}) {
    left.push_back(entry.path().filename().string());
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"notes.1", "result.json", "result.json.bak", "run.json"});
}

TEST_CASE("make_run_directory: refuses storage where nothing can be made, with the system's reason") {
  const auto refused = [](const std::filesystem::path& storage, const std::string& why) {
    CHECK_THROWS_WITH(ry::detail::make_run_directory("", storage),
                      Catch::ContainsSubstring("RunConfig::storage_path") && Catch::ContainsSubstring(why));
  };
  const Scratch scratch;
  LineFile{scratch.path() / "file"}.append("x");
  refused(scratch.path() / "file", "Not a directory");
  refused("/proc/nothing", "No such file");
  refused("", "Invalid argument");
}

TEST_CASE("make_run_directory: tries no more than so many names of its own where each is taken") {
  using namespace std::string_literals;
  const Scratch scratch;  // of a path with a NUL byte, mkdir() sees what is before it: always the same
  CHECK_THROWS_AS(ry::detail::make_run_directory("", scratch.path().native() + "/taken\0x"s), ry::ConfigError);
}

TEST_CASE("check_name: refuses what cannot name a folder") {
  const auto refused = [](const std::string& name, const std::string& why) {
    CHECK_THROWS_WITH(ry::detail::check_name(name),
                      Catch::ContainsSubstring("RunConfig::name") && Catch::ContainsSubstring(why));
  };
  refused("a/b", "'/'");
  refused("..", "folder of its own");
  refused(".", "folder of its own");
  refused("a\nb", "control characters");
  refused(std::string(201, 'a'), "200 bytes");
  CHECK_NOTHROW(ry::detail::check_name("digits 2.5 -x"));
  CHECK_NOTHROW(ry::detail::check_name(""));
}

TEST_CASE("make_run_directory: gives an absolute path for storage relative to the working directory") {
  const Scratch scratch;
  const auto former = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  const auto made = ry::detail::make_run_directory("a", "runs");
  std::filesystem::current_path(former);
  CHECK(made.path.is_absolute());
  CHECK(std::filesystem::is_directory(scratch.path() / "runs" / "a"));
}
