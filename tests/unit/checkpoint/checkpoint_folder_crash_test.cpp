// SPDX-License-Identifier: MIT
#include "railyard/checkpoint/checkpoint_folder.hpp"

#include "unit/checkpoint/support.hpp"

#include "support/catch.hpp"
#include "support/crash_disk.hpp"
#include "support/other_writer.hpp"

using namespace railyard_test;

namespace {

constexpr std::uint64_t generation = 5;

void commit_step(ry::CheckpointFolder& folder, std::uint64_t step, double score = 0) {
  folder.commit({.step = step, .metrics = {{"score", score}}}, small_contribution(static_cast<float>(step)).parts());
}

// What the checkpoint of a step holds is a function of the step.
bool is_whole(const ry::Checkpoint& checkpoint) {
  checkpoint.verify();
  const auto value = static_cast<float>(checkpoint.manifest().step);
  const auto net = checkpoint.load("net", 0);
  const auto optimizer = checkpoint.load("optimizer", 0);
  return elements_of<float>(net->tensors.at(0)).at(0) == value &&
         elements_of<double>(optimizer->tensors.at(0)) == std::vector<double>{value, 1, 2, 3, 4};
}

struct Expected {
  std::set<std::uint64_t> newest{};  // 0 for none
  std::set<std::uint64_t> kept{};    // must be there whatever happens
};

bool is_given_up(const std::string& name) { return name.front() == '.'; }

// Takes note where somebody opens what an earlier program has given up, and does not only remove it.
class WatchedFiles final : public ry::detail::Files {
 public:
  bool opens_what_is_given_up = false;

  int open(const Path& path, int flags) override {
    note(path);
    return Files::open(path, flags);
  }
  int open_directory(const Path& path) override {
    note(path);
    return Files::open_directory(path);
  }

 private:
  void note(const Path& path) {
    const std::string own = ".staging-" + std::to_string(generation + 1) + "-";
    for (const auto& part : path) {
      if (is_given_up(part.string()) && !part.string().starts_with(own)) opens_what_is_given_up = true;
    }
  }
};

// Says what is wrong with what a power cut has left, or nothing.
std::string fault_of(const Tree& state, const Expected& expected) {
  const Scratch scratch;
  write_tree(state, scratch.path());
  const auto path = scratch.path() / "checkpoints";
  const auto files = std::make_shared<WatchedFiles>();
  const ry::CheckpointFolder after{path, generation + 1, files};
  if (const auto problems = after.problems(); !problems.empty()) return problems.front();
  const auto newest = ry::newest_checkpoint(scratch.path(), files);
  const std::uint64_t step = newest ? newest->manifest().step : 0;
  if (!expected.newest.contains(step)) return "the newest is of step " + std::to_string(step);
  std::set<std::uint64_t> there;
  try {
    for (const auto& checkpoint : after.list()) {
      there.insert(checkpoint.manifest().step);
      if (!is_whole(checkpoint)) return checkpoint.path().string() + " has another content";
    }
  } catch (const ry::Error& error) {
    return error.what();
  }
  if (!std::includes(there.begin(), there.end(), expected.kept.begin(), expected.kept.end())) return "one is lost";

  // Whatever was left, the next start cleans it up and goes on.
  ry::CheckpointFolder next{path, generation + 1, files};
  next.sweep();
  commit_step(next, 99);
  if (files->opens_what_is_given_up) return "what was given up has been opened";
  if (next.newest()->manifest().step != 99) return "the next commit is not the newest";
  for (const auto& entry : fs::directory_iterator{path}) {
    if (entry.path().filename().string().front() == '.') return entry.path().string() + " is left";
  }
  return {};
}

// What is given up is removed whatever is in it, and each checkpoint is opened by itself.
const CrashUnits& units_of_folder() {
  static const CrashUnits units{
      .folder = "checkpoints", .is_unread = is_given_up, .kind = [](const std::string& name, const Tree& unit) {
        if (is_given_up(name)) return std::string{"given up"};
        static std::map<Tree, std::string> known;
        const auto [found, is_new] = known.emplace(unit, "");
        if (!is_new) return found->second;
        const Scratch scratch;
        fs::create_directory(scratch.path() / "checkpoints");
        write_tree(unit, scratch.path());
        try {
          const auto checkpoint = ry::Checkpoint::open(scratch.path() / "checkpoints" / name);
          found->second = std::to_string(checkpoint.manifest().step) + (is_whole(checkpoint) ? " whole" : " other");
        } catch (const ry::Error& error) {
          found->second = error.what();
        }
        return found->second;
      }};
  return units;
}

// Does something in a folder and returns the changes; without one sync if told so.
template <class Act>
std::vector<DiskChange> changes_of(const fs::path& root, const Act& act, int forgotten_sync = -1) {
  const auto files = std::make_shared<RecordingFiles>(root);
  files->forgotten_sync = forgotten_sync;
  ry::CheckpointFolder folder{root / "checkpoints", generation, files};
  act(folder);
  return files->changes();
}

int count_syncs(const std::vector<DiskChange>& changes) {
  return static_cast<int>(std::count_if(
      changes.begin(), changes.end(), [](const DiskChange& change) { return change.kind == DiskChange::Kind::sync; }));
}

// What is wrong with a state that power cuts leave of some changes, or nothing.
std::string first_fault_of(const Tree& before, const std::vector<DiskChange>& changes, std::size_t begin,
                           const Expected& expected, CutCount& cuts) {
  std::string fault;
  const auto look = [&](const Tree& state) {
    fault = fault_of(state, expected);
    return fault.empty();
  };
  visit_crash_states(before, changes, begin, cuts, look, &units_of_folder());
  return fault;
}

// Checks all states during `act` against `during`, and those after it against `after`. Returns the first fault.
template <class Prepare, class Act>
std::string first_fault(const Prepare& prepare, const Act& act, const Expected& during, const Expected& after,
                        CutCount* looked = nullptr, int forgotten_sync = -1) {
  const Scratch scratch;
  prepare(scratch.path());
  const Tree before = tree_of(scratch.path());
  const auto changes = changes_of(scratch.path(), act, forgotten_sync);
  for (const bool is_after : {true, false}) {
    CutCount cuts;
    const std::string fault =
        first_fault_of(before, changes, is_after ? changes.size() : 0, is_after ? after : during, cuts);
    if (looked != nullptr) *looked = cuts;  // at last that of all moments
    if (!fault.empty()) return fault;
  }
  return {};
}

// All states are as they should be; and they would not be if any one sync, from the given one on, were forgotten.
template <class Prepare, class Act>
void check_all_states(const Prepare& prepare, const Act& act, const Expected& during, const Expected& after,
                      int first_needed_sync = 0) {
  CutCount looked;
  CHECK(first_fault(prepare, act, during, after, &looked) == "");
  CHECK(looked.num_looked_at >= 50);
  CHECK((is_sanitized || looked.num_exhaustive + looked.num_by_units == looked.num_moments));
  WARN(looked.text());
  const Scratch scratch;
  prepare(scratch.path());
  const int num_syncs = count_syncs(changes_of(scratch.path(), act));
  for (int i = first_needed_sync; i < num_syncs; ++i) {
    INFO("without sync " << i << " of " << num_syncs);
    CHECK(first_fault(prepare, act, during, after, nullptr, i) != "");
  }
}

}  // namespace

TEST_CASE("FAULTS F1, F3, TRAPS 34: a power cut during the first commit leaves nothing or all of it") {
  check_all_states([](const fs::path&) {}, [](ry::CheckpointFolder& folder) { commit_step(folder, 1); },
                   {.newest = {0, 1}}, {.newest = {1}});
}

TEST_CASE("FAULTS F1, F3, TRAPS 34: a power cut during a commit leaves the old checkpoint or the new one") {
  check_all_states(
      [](const fs::path& root) {
        ry::CheckpointFolder folder{root / "checkpoints"};
        commit_step(folder, 1);
      },
      [](ry::CheckpointFolder& folder) { commit_step(folder, 2); }, {.newest = {1, 2}, .kept = {1}},
      {.newest = {2}, .kept = {1}},
      1);  // the first makes the folder durable for whoever finds one that is not
}

TEST_CASE(
    "TRAPS 34: a power cut during a commit of few files: each state that it can leave holds the old one or the new") {
  const auto commit = [](ry::CheckpointFolder& folder, std::uint64_t step) {
    const auto value = static_cast<float>(step);
    ry::State net;
    net.tensors.push_back(tensor_of<float>("weight", {1}, {value}));
    ry::State optimizer;
    optimizer.tensors.push_back(tensor_of<double>("momentum", {5}, {value, 1, 2, 3, 4}));
    Contribution all;
    all.add(std::vector<ry::NamedState>{{"net", net}, {"optimizer", optimizer}}, 0);
    folder.commit({.step = step, .metrics = {{"score", 0.0}}}, all.parts());
  };
  const bool is_first = GENERATE(true, false);
  const Scratch scratch;
  ry::CheckpointFolder old{scratch.path() / "checkpoints"};
  if (!is_first) commit(old, 1);
  const Tree before = tree_of(scratch.path());
  const auto changes = changes_of(scratch.path(), [&](ry::CheckpointFolder& folder) { commit(folder, 2); });
  const Expected during{.newest = {is_first ? 0U : 1U, 2},
                        .kept = is_first ? std::set<std::uint64_t>{} : std::set<std::uint64_t>{1}};
  CutCount cuts;
  CHECK(first_fault_of(before, changes, 0, during, cuts) == "");
  CHECK(cuts.num_exhaustive == cuts.num_moments);
  WARN(cuts.text());
}

TEST_CASE("TRAPS 34: PartWriters: a power cut of all hosts during a commit leaves the old checkpoint or the new one") {
  const Expected during{.newest = {1, 2}, .kept = {1}};
  const Expected after{.newest = {2}, .kept = {1}};
  for (const bool writes_at_end : {false, true}) {
    CutCount looked;
    const Scratch scratch;
    ry::CheckpointFolder{scratch.path() / "checkpoints"}.commit({.step = 1}, small_contribution(1).parts());
    const Tree before = tree_of(scratch.path());
    const auto files = std::make_shared<RecordingFiles>(scratch.path());
    ry::CheckpointFolder folder{scratch.path() / "checkpoints", generation, files};
    const Contribution all = small_contribution(2);
    OtherWriter other{all, files};
    other.writes_at_end = writes_at_end;
    folder.commit({.step = 2}, all.parts(), &other);
    for (const bool is_after : {true, false}) {
      looked = {};  // at last that of all moments
      const std::size_t begin = is_after ? files->changes().size() : 0;
      CHECK(first_fault_of(before, files->changes(), begin, is_after ? after : during, looked) == "");
    }
    WARN(looked.text());
  }
}

TEST_CASE("TRAPS 34: Retention: a power cut leaves each checkpoint whole or absent, the best and the newest whole") {
  check_all_states(
      [](const fs::path& root) {
        ry::CheckpointFolder folder{root / "checkpoints"};
        for (const auto step : {1, 2, 3, 4}) commit_step(folder, static_cast<std::uint64_t>(step), step == 2 ? 1 : 0);
      },
      [](ry::CheckpointFolder& folder) { folder.retain({.keep = 1, .score = "score"}); },
      {.newest = {4}, .kept = {2, 4}}, {.newest = {4}, .kept = {2, 4}});
}

TEST_CASE("TRAPS 34: Sweeping: a power cut leaves all checkpoints whole") {
  const auto prepare = [](const fs::path& root) {
    ry::CheckpointFolder folder{root / "checkpoints"};
    commit_step(folder, 1);
    commit_step(folder, 2);
    fs::copy(root / "checkpoints" / "checkpoint-000001", root / "checkpoints" / ".staging-3-x",
             fs::copy_options::recursive);
    fs::copy(root / "checkpoints" / "checkpoint-000001", root / "checkpoints" / ".trash-4-checkpoint-000001",
             fs::copy_options::recursive);
  };
  const Expected expected{.newest = {2}, .kept = {1, 2}};
  CutCount looked;
  CHECK(first_fault(
            prepare, [](ry::CheckpointFolder& folder) { folder.sweep(); }, expected, expected, &looked) == "");
  CHECK((is_sanitized || looked.num_exhaustive + looked.num_by_units == looked.num_moments));
  WARN(looked.text());
}
