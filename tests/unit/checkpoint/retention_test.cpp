// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/retention.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <csignal>
#include <limits>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace railyard_test;

namespace {

// A folder with one checkpoint for each of the given metrics, of steps 1, 2 and so on.
class Scored {
 public:
  explicit Scored(const std::vector<ry::Metrics>& metrics) {
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      folder.commit({.step = i + 1, .metrics = metrics[i]}, small_contribution().parts());
    }
  }

  [[nodiscard]] std::vector<std::uint64_t> kept() const { return steps_of(folder.list()); }
  [[nodiscard]] std::vector<std::uint64_t> best(const ry::Retention& retention) const {
    std::vector<std::string> problems;
    const auto found = steps_of(folder.best(retention, problems));
    CHECK(problems.empty());
    return found;
  }
  [[nodiscard]] std::size_t num_entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator{path}, fs::directory_iterator{}));
  }

  Scratch scratch;
  fs::path path = scratch.path() / "checkpoints";
  ry::CheckpointFolder folder{path};

  static std::vector<std::uint64_t> steps_of(const std::vector<ry::Checkpoint>& checkpoints) {
    std::vector<std::uint64_t> steps;
    for (const auto& checkpoint : checkpoints) steps.push_back(checkpoint.manifest().step);
    return steps;
  }
};

using Steps = std::vector<std::uint64_t>;

// Turns a bit in the weights, which leaves the size as it is.
void damage(const fs::path& checkpoint) {
  std::string content = read_file(checkpoint / "net.safetensors");
  content.back() = static_cast<char>(content.back() ^ 1);
  write_file(checkpoint / "net.safetensors", content);
}

}  // namespace

TEST_CASE("Retention: without a score the latest are kept") {
  Scored scored{{{}, {}, {}, {}}};
  CHECK(scored.best({.keep = 2}) == Steps{4, 3});
  scored.folder.retain({.keep = 2});
  CHECK(scored.kept() == Steps{3, 4});
  CHECK(scored.num_entries() == 2);
}

TEST_CASE("Retention: all are kept by default") {
  Scored scored{{{{"s", 1}}, {{"s", 3}}, {{"s", 2}}}};
  scored.folder.retain({});
  CHECK(scored.kept() == Steps{1, 2, 3});
  CHECK(scored.best({.score = "s"}) == Steps{2, 3, 1});
}

TEST_CASE("Retention: keeps the best, and the newest besides") {
  Scored scored{{{{"s", 0.9}}, {{"s", 0.5}}, {{"s", 0.8}}, {{"s", 0.1}}}};
  CHECK(scored.best({.keep = 2, .score = "s"}) == Steps{1, 3});
  scored.folder.retain({.keep = 2, .score = "s"});
  CHECK(scored.kept() == Steps{1, 3, 4});
  scored.folder.retain({.keep = 1, .score = "s"});
  CHECK(scored.kept() == Steps{1, 4});
}

TEST_CASE("Retention: the smallest score is the best if asked for") {
  Scored scored{{{{"loss", 0.9}}, {{"loss", -2}}, {{"loss", 0.8}}, {{"loss", 7}}}};
  const ry::Retention retention{.keep = 1, .score = "loss", .order = ry::ScoreOrder::min};
  CHECK(scored.best(retention) == Steps{2});
  scored.folder.retain(retention);
  CHECK(scored.kept() == Steps{2, 4});
}

TEST_CASE("Retention: NaN, text and a missing score are worse than any number, in both orders") {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  Scored scored{{{{"s", nan}}, {{"s", -infinity}}, {{"s", "good"}}, {}, {{"s", infinity}}, {{"s", -nan}}}};
  CHECK(scored.best({.score = "s"}) == Steps{5, 2, 6, 4, 3, 1});
  CHECK(scored.best({.score = "s", .order = ry::ScoreOrder::min}) == Steps{2, 5, 6, 4, 3, 1});
  scored.folder.retain({.keep = 2, .score = "s"});
  CHECK(scored.kept() == Steps{2, 5, 6});
}

TEST_CASE("Retention: of equals the later is better, and truth is better than untruth") {
  Scored scored{{{{"s", 1}}, {{"s", 1.0}}, {{"s", true}}, {{"s", false}}, {{"s", -0.0}}}};
  CHECK(scored.best({.score = "s"}) == Steps{3, 2, 1, 5, 4});
}

TEST_CASE("Retention: a checkpoint that is being read stays until nobody reads it (TRAPS 42)") {
  Scored scored{{{}, {}, {}}};
  {
    const auto reader = scored.folder.list().at(0);
    const auto copy = std::make_unique<ry::Checkpoint>(reader);
    scored.folder.retain({.keep = 1});
    CHECK(scored.kept() == Steps{1, 3});
    copy->verify();
  }
  scored.folder.retain({.keep = 1});
  CHECK(scored.kept() == Steps{3});
  CHECK(scored.num_entries() == 1);
}

TEST_CASE("Retention: many checkpoints cost few descriptors, to rank them and to remove them") {
  const Scored scored{std::vector<ry::Metrics>(45)};
  rlimit former{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &former) == 0);
  rlimit few = former;
  const int next = ::dup(0);
  REQUIRE(next >= 0);
  ::close(next);
  few.rlim_cur = static_cast<rlim_t>(next) + 28;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto all = scored.best({});
  ry::CheckpointFolder folder{scored.path};
  folder.retain({.keep = 3});
  ::setrlimit(RLIMIT_NOFILE, &former);
  CHECK(all.size() == 45);
  CHECK(scored.kept() == Steps{43, 44, 45});
}

TEST_CASE("Retention: a checkpoint that another process reads stays until that has ended, however it ends") {
  Scored scored{{{}, {}}};
  int is_open[2] = {-1, -1};
  int is_over[2] = {-1, -1};
  REQUIRE(::pipe(is_open) == 0);
  REQUIRE(::pipe(is_over) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  char byte = 0;
  if (child == 0) {
    const auto checkpoint = scored.folder.list().front();
    if (::write(is_open[1], &byte, 1) == 1 && ::read(is_over[0], &byte, 1) == 1) ::raise(SIGKILL);
    ::_exit(1);
  }
  REQUIRE(::read(is_open[0], &byte, 1) == 1);
  scored.folder.retain({.keep = 1});
  CHECK(scored.kept() == Steps{1, 2});
  REQUIRE(::write(is_over[1], &byte, 1) == 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  scored.folder.retain({.keep = 1});
  CHECK(scored.kept() == Steps{2});
  for (const int fd : {is_open[0], is_open[1], is_over[0], is_over[1]}) ::close(fd);
}

TEST_CASE("Retention: damaged checkpoints count for nothing and are left to people, who are told once") {
  Scored scored{{{}, {}, {}}};
  fs::remove(scored.path / "checkpoint-000003" / "state.json");
  CHECK_THROWS_WITH(scored.folder.retain({.keep = 1}),
                    ContainsSubstring("checkpoint-000003/state.json") && ContainsSubstring("is missing"));
  scored.folder.retain({.keep = 1});
  CHECK(scored.kept() == Steps{2});
  CHECK(fs::exists(scored.path / "checkpoint-000003" / "manifest.json"));
}

TEST_CASE("Retention: a checkpoint of an earlier program in which a bit has turned takes no place among the best") {
  Scored scored{{{{"s", 0.9}}, {{"s", 0.5}}, {{"s", 0.8}}, {{"s", 0.1}}, {{"s", 0.2}}}};
  damage(scored.path / "checkpoint-000001");
  const std::string file = (scored.path / "checkpoint-000001" / "net.safetensors").string();
  ry::CheckpointFolder later{scored.path, 1};
  std::vector<std::string> problems;
  CHECK(Scored::steps_of(later.best({.keep = 2, .score = "s"}, problems)) == Steps{3, 2});
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], ContainsSubstring(file) && ContainsSubstring("its content has changed"));

  ry::CheckpointFolder another{scored.path, 2};
  CHECK_THROWS_WITH(another.retain({.keep = 2, .score = "s"}),
                    ContainsSubstring(file) && ContainsSubstring("counts no more as one of the best"));
  CHECK(scored.kept() == Steps{1, 2, 3, 5});  // the damaged one is left to people
  another.retain({.keep = 2, .score = "s"});  // which was told already
}

TEST_CASE("Retention: of a folder that keeps all, only the best is read") {
  Scored scored{{{{"s", 0.9}}, {{"s", 0.5}}, {{"s", 0.8}}, {{"s", 0.95}}}};
  damage(scored.path / "checkpoint-000002");
  damage(scored.path / "checkpoint-000004");
  const ry::CheckpointFolder later{scored.path, 1};
  std::vector<std::string> problems;
  CHECK(Scored::steps_of(later.best({.score = "s"}, problems)) == Steps{1, 3, 2});
  CHECK(problems.size() == 1);
}
