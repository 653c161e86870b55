// SPDX-License-Identifier: MIT
// What is saved, and runs that go on from it.
#include "railyard/train/train_state.hpp"

#include "railyard/train/detail/build_id.hpp"

#include "railyard/core/auc.hpp"
#include "railyard/core/mean.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

#include "railyard/checkpoint/detail/manifest_text.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

TEMPLATE_TEST_CASE("Run: goes on in another program where it failed, and gives back what it left when it has ended", "",
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const ry::Result whole = run<TestType>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 17) throw std::runtime_error{"a test"};
  };
  const ry::Result failed = run<TestType>(scratch, fail, {.name = "digits"});
  CHECK_FALSE(failed);
  CHECK(failed.history().size() == 3);
  std::ofstream{failed.path() / "metrics.jsonl", std::ios::app}
      << "{\"report\": 3, \"sec";  // a power cut can leave that
  const ry::Result result = run<TestType>(scratch, never, {.name = "digits", .resume = ry::Resume::required});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts().front().begin_step == 15);
  CHECK(result.history() == whole.history());
  CHECK(read_lines(result.path() / "metrics.jsonl").size() == num_epochs);
  CHECK_FALSE(result.is_recorded());
  const auto touch = [](auto&, std::uint64_t) { throw std::runtime_error{"nothing is to be run"}; };
  const ry::Result again = run<TestType>(scratch, touch, {.name = "digits"});
  REQUIRE(again);
  CHECK(again.is_recorded());
  CHECK(again.history() == whole.history());
  CHECK(again.checkpoint()->manifest().step == num_epochs * steps_per_epoch);
}

TEST_CASE("Run: names a record that cannot be read") {
  const Scratch scratch;
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 7) throw std::runtime_error{"a test"};
  };
  for (const std::string file : {"metrics.jsonl", "run.json"}) {
    const auto path = run<SharedThreads>(scratch, fail, {.name = "run of " + file.substr(0, 3)}).path();
    std::filesystem::remove(path / file);
    std::filesystem::create_directory(path / file);  // even root cannot read it
    CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = path.filename().string()}),
                      ContainsSubstring(file + " cannot be read: Is a directory"));
  }
}

TEST_CASE("Run: begins anew where a power cut has left a run nothing but the names of its files") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 3) throw std::runtime_error{"a test"};
  };
  const auto path = run<SharedThreads>(scratch, fail, {.name = "cut"}).path();
  REQUIRE_FALSE(ry::newest_checkpoint(path));
  for (const char* name : {"run.json", "metrics.jsonl", "events.jsonl"}) std::ofstream{path / name} << "";
  std::filesystem::remove(path / "result.json");
  std::ofstream{path / "result.json.12345"} << "{";
  std::filesystem::remove_all(path / "checkpoints");
  const ry::Result result = run<SharedThreads>(scratch, never, {.name = "cut"});
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  CHECK(read_lines(path / "metrics.jsonl").size() == num_epochs);
  CHECK_FALSE(std::filesystem::exists(path / "result.json.12345"));
}

TEST_CASE("Run: reports of several threads of a rank are counted one by one") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::Local, ry::Threads>(scratch, 1, [](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&worker] {
        for (int report = 0; report < 200; ++report) worker.report({{"loss", report}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    worker.samples(1);
    worker.report({{"loss", 0}}, state);
  });
  REQUIRE(result);
  CHECK(result.history().size() == 601);
  CHECK(result.checkpoint()->manifest().report == 600);
}

TEST_CASE("Run: goes on with another number of workers") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 11) throw std::runtime_error{"a test"};
  };
  CHECK_FALSE(run<SharedProcesses>(scratch, fail, {.name = "grows"}, 1));
  const ry::Result result = run<SharedProcesses>(scratch, never, {.name = "grows"}, 3);
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
}

TEST_CASE("Run: what each worker has counted for itself is lost with no number of workers") {
  struct Tally {  // of the user's own: what can be merged each rank has for itself, without a word
    std::int64_t steps = 0;
    void merge(const Tally& other) { steps += other.steps; }
    void reset() { steps = 0; }
    [[nodiscard]] ry::State state() const { return {{"steps", steps}}; }
    void load_state(const ry::State& state) { steps = state.at("steps").as<std::int64_t>(); }
  };
  const auto count = [](auto& worker, bool fails) {
    ry::Mean seen;
    ry::Auc scores{{.num_bins = 16}};
    Tally tally;
    Data data;
    ry::TrainState state{worker, {{"seen", seen}, {"scores", scores}, {"tally", tally}, {"data", data}}};
    for (const int epoch : state.epochs(num_epochs)) {
      if (data.epoch != epoch) data = {.epoch = epoch};
      while (data.position < steps_per_epoch) {
        worker.end_step();
        ++data.position;
        worker.samples(1);
        if (fails && worker.steps() == 11) throw std::runtime_error{"a test"};
        seen.add(static_cast<double>(worker.steps()), 1);
        scores.add(std::span<const double>{std::array{0.5}},
                   std::span<const std::int64_t>{std::array{std::int64_t{1}}});
        ++tally.steps;
      }
      const ry::Auc all = worker.reduce(scores);
      const double counted = std::accumulate(all.sums().begin(), all.sums().end(), 0.0);
      std::vector<double> sums{seen.sum(), seen.weight(), static_cast<double>(tally.steps)};
      worker.all_reduce(ry::buffer_of(sums), ry::ReduceOp::sum);
      worker.report({{"sum", sums[0]}, {"weight", sums[1]}, {"tallied", sums[2]}, {"counted", counted}}, state);
    }
  };
  for (const auto& [before, after] : {std::pair{5, 2}, {3, 1}, {2, 3}, {1, 4}, {2, 2}}) {
    INFO(before << " workers, then " << after);
    const Scratch scratch;
    const auto run_with = [&](int num_workers, bool fails) {
      return run_in<ry::SharedMemory, ry::Threads>(scratch, num_workers, [&](auto& worker) { count(worker, fails); },
                                                   {.name = "counts"});
    };
    CHECK_FALSE(run_with(before, true));
    const ry::Result result = run_with(after, false);
    INFO(result.error());
    REQUIRE(result);
    const double weight = before * 10 + after * 20;  // ten steps are in the checkpoint that is gone on from
    CHECK(result.metrics().at("sum").number() == before * 45 + after * (435 - 45));
    CHECK(result.metrics().at("weight").number() == weight);
    CHECK(result.metrics().at("counted").number() == weight);
    CHECK(result.metrics().at("tallied").number() == weight);
  }
}

TEST_CASE("Run: refuses another seed half way unless it is accepted, and an existing name where it must be new") {
  const Scratch scratch;
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 11) throw std::runtime_error{"a test"};
  };
  CHECK_FALSE(run<SharedThreads>(scratch, fail, {.name = "run"}));
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run", .seed = 5}),
                    ContainsSubstring("RunConfig::seed is 5") && ContainsSubstring("was started with 0"));
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "run", .resume = ry::Resume::never}),
                    ContainsSubstring("exists already"));
  CHECK_THROWS_WITH(run<SharedThreads>(scratch, never, {.name = "none", .resume = ry::Resume::required}),
                    ContainsSubstring("there is no run in"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "none"));
  CHECK_FALSE(run<SharedThreads>(scratch, fail, {.name = "run", .seed = 5, .accept_changes = {"seed"}}));
  CHECK(run<SharedThreads>(scratch, never, {.name = "run", .seed = 5}));
}

TEST_CASE("Run: is refused to a second program while the first one has it") {
  const Scratch scratch;
  // Of its own, because g++ 12 breaks down at it inside the function below.
  const std::function<ry::Result()> start_held = [&scratch] {
    return run<SharedThreads>(scratch, never, {.name = "held"});
  };
  const ry::Result result = run<SharedThreads>(
      scratch,
      [&start_held](auto& worker, std::uint64_t step) {
        if (step != 3 || worker.rank() != 0) return;
        CHECK_THROWS_WITH(start_held(), ContainsSubstring("is in use: process " + std::to_string(::getpid())));
      },
      {.name = "held"});
  INFO(result.error());
  CHECK(result);
}

TEST_CASE("Checkpoints: an error names the rank that reports without a state where another has one") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(scratch, 2, [](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    for (int at = 0; at < 10; ++at) {
      if (worker.rank() == 0) worker.report({{"at", at}}, state);
      if (worker.rank() == 1) worker.report({{"at", at}});
    }
  });
  CHECK_FALSE(result);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 2") && ContainsSubstring("has not saved where rank 0 has"));
}

TEMPLATE_TEST_CASE("Checkpoints: one that rank 0 alone asks for keeps nobody waiting, and is an error (FAULTS A9)", "",
                   ry::Threads, ry::Processes) {
  const Scratch scratch;
  const ry::Result result = run_in<ry::SharedMemory, TestType>(scratch, 2, [](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    worker.barrier();
    if (worker.rank() == 0) worker.report({{"done", true}}, state);  // and with that both are through
  });
  CHECK_FALSE(result);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 2") && ContainsSubstring("has not saved where rank 0 has"));
}

TEST_CASE("Checkpoints: hold files of the user's, and what a run began with is found by a Trainer that restores it") {
  const Scratch scratch;
  std::ofstream{scratch.path() / "vocabulary.txt"} << "a b c";
  const auto training = [&](auto& worker) {
    Weights weights;
    ry::TrainState state{worker, {{"weights", weights}}};
    if (worker.rank() == 0) state.add_file("vocabulary.txt", scratch.path() / "vocabulary.txt");
    for ([[maybe_unused]] const int epoch : state.epochs(3)) {
      worker.samples(1);
      weights.step(worker.steps());
      worker.report({{"resumed", state.is_resumed()}}, state);
      if (!state.is_resumed()) throw std::runtime_error{"a test"};
    }
  };
  const ry::Result failed = run_in<ry::SharedMemory, ry::Processes>(scratch, 2, training);
  REQUIRE(failed.checkpoint());
  REQUIRE(failed.checkpoint()->files().size() == 1);
  CHECK(read_text(failed.checkpoint()->files().front()) == "a b c");
  const ry::Result result = ry::Trainer<ry::SharedMemory, ry::Processes>::restore(
                                failed.path(), training, {.num_workers = 2}, {.progress = ry::Progress::quiet})
                                .fit();
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history().size() == 3);
  CHECK(result.metrics().at("resumed").as<bool>());
}

TEST_CASE("Checkpoints: hold directories of the user's as they are at each save, for whoever goes on") {
  const Scratch scratch;
  const auto source = scratch.path() / "source";
  std::filesystem::create_directories(source / "deep" / "er");
  std::filesystem::create_directory(scratch.path() / "empty");
  std::ofstream{source / "deep" / "er" / "file"} << "a b c";
  const auto files_of = [](const std::filesystem::path& checkpoint) {
    std::vector<std::string> names;
    for (const auto& file : ry::Checkpoint::open(checkpoint).files()) {
      names.push_back(file.lexically_relative(checkpoint / "files").string() + ": " + read_text(file));
    }
    return names;
  };
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
      scratch, 2,
      [&](auto& worker) {
        Weights weights;
        ry::TrainState state{worker, {{"weights", weights}}};
        state.add_directory(worker.rank() == 0 ? "all" : "none",
                            worker.rank() == 0 ? source : scratch.path() / "empty");
        for (const int epoch : state.epochs(2)) {
          worker.samples(1);
          if (worker.rank() == 0) std::ofstream{source / ("of epoch " + std::to_string(epoch))} << epoch;
          worker.report({{"epoch", epoch}}, state);
        }
      },
      {.checkpoint = {.keep = 2}});
  INFO(result.error());
  REQUIRE(result);
  REQUIRE(result.best_checkpoints().size() == 2);
  const std::vector<std::string> last{"all/deep/er/file: a b c", "all/of epoch 0: 0", "all/of epoch 1: 1"};
  CHECK(files_of(result.checkpoint()->path()) == last);
  std::size_t num_first = 0;
  for (const auto& one : result.best_checkpoints()) num_first += files_of(one.path()).size() == 2 ? 1 : 0;
  CHECK(num_first == 1);
}

TEST_CASE(
    "Checkpoints: one fails, and training goes on, when a file of the user's goes between the look and the copy") {
  struct Meddler {
    std::filesystem::path file{};
    [[nodiscard]] ry::State state() const {
      ry::State state;
      const auto meddle = [this](std::int64_t, std::int64_t, std::byte*) { std::filesystem::remove(file); };
      state.tensors.push_back({.name = "one", .dtype = ry::Dtype::f64, .shape = {1}, .read = meddle});
      return state;
    }
    void load_state(const ry::State&) {}
  };
  const Scratch scratch;
  const auto source = scratch.path() / "source";
  std::filesystem::create_directory(source);
  for (const char* name : {"a", "b"}) std::ofstream{source / name} << name;
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(scratch, 1, [&](auto& worker) {
    Meddler meddler{.file = source / "b"};
    ry::TrainState state{worker, {{"meddler", meddler}}};
    state.add_directory("d", source);
    for (int at = 0; at < 2; ++at) worker.report({{"at", at}}, state);
  });
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.failed_checkpoints() == 1);
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->files().size() == 1);
  CHECK(std::any_of(result.warnings().begin(), result.warnings().end(), [&](const std::string& warning) {
    return warning.find("could not be written") != std::string::npos &&
           warning.find((source / "b").string()) != std::string::npos;
  }));
}

TEST_CASE("TrainState: refuses a name that is taken, or can name no file, at once") {
  const Scratch scratch;
  const auto error_with = [&scratch](const std::string& second, const std::string& file) {
    return run_in<ry::SharedMemory, ry::Threads>(
               scratch, 2,
               [&](auto& worker) {
                 Weights weights;
                 ry::TrainState state{worker, {{"weights", weights}, {second, weights}}};
                 for (const std::string& name : {std::string{"a/b"}, file}) state.add_file(name, "nowhere");
               })
        .error();
  };
  CHECK(error_with("others", "c").empty());
  CHECK_THAT(error_with("weights", "c"),
             ContainsSubstring("\"weights\" cannot be in a checkpoint: there are two parts"));
  CHECK_THAT(error_with("a/b", "c"), ContainsSubstring("it contains '/'"));
  CHECK_THAT(error_with("others", "a/b"), ContainsSubstring("add_file on rank") && ContainsSubstring("\"a/b\"") &&
                                              ContainsSubstring("there is a file of this name already"));
  CHECK_THAT(error_with("others", "../c"), ContainsSubstring("it does not name a file of its own"));
}

TEST_CASE("Trainer::restore: says what it was given that is no run, and writes nothing there") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto restore = [](const std::filesystem::path& path) {
    return ry::Trainer<ry::SharedMemory, ry::Threads>::restore(path, [](auto& worker) { train(worker, never); },
                                                               {.num_workers = 2}, {.progress = ry::Progress::quiet})
        .fit();
  };
  const auto checkpoint = whole.checkpoint()->path();
  const auto files = names_in(checkpoint);
  CHECK_THROWS_WITH(restore(checkpoint), ContainsSubstring("is a checkpoint, not the directory of a run"));
  CHECK(names_in(checkpoint) == files);
  CHECK_THROWS_WITH(restore(scratch.path() / "none"), ContainsSubstring("there is no run in"));
  CHECK_THROWS_AS(restore(""), ry::ConfigError);
  CHECK_THROWS_AS(restore("/"), ry::ConfigError);
  CHECK(restore(whole.path() / "").is_recorded());
}

TEST_CASE("Run: goes on after kill -9 of the whole program (FAULTS F1)") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  for (const int at : {3, 8, 18, 26}) {
    const pid_t program = ::fork();
    if (program == 0) {
      const ry::Result ignored =
          run<SharedProcesses>(scratch,
                               [at, program_id = ::getpid()](auto& worker, std::uint64_t step) {
                                 if (worker.rank() == 1 && step == static_cast<std::uint64_t>(at))
                                   ::kill(program_id, SIGKILL);
                               },
                               {.name = "killed"});
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(program, &status, 0) == program);
    CHECK(WIFSIGNALED(status));
  }
  const ry::Result result = run<SharedProcesses>(scratch, never, {.name = "killed"});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.history() == whole.history());
  for (const std::string& name : names_in(result.path() / "checkpoints")) CHECK(name.rfind("checkpoint-", 0) == 0);
}

TEST_CASE("Run: takes an older checkpoint where the newest is damaged, and never begins anew where all are") {
  const Scratch scratch;
  const ry::Result whole = run<SharedProcesses>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 17) throw std::runtime_error{"a test"};
  };
  const auto flip = [](const std::filesystem::path& checkpoint) {
    std::fstream file{checkpoint / "weights.safetensors", std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(-1, std::ios::end);
    file.put('x');
  };
  const ry::Result failed = run<SharedProcesses>(scratch, fail, {.name = "run"});
  REQUIRE(failed.checkpoint());
  flip(failed.checkpoint()->path());
  // Fails before it has made a checkpoint of its own: the damaged one must not be taken then either.
  const auto once = [](auto& worker, std::uint64_t step) {
    if (worker.attempt() == 0 && step == 11) throw std::runtime_error{"a test"};
  };
  const ry::Result result = run<SharedProcesses>(scratch, once, {.name = "run", .failure = {.max_failures = 1}});
  INFO(result.error());
  REQUIRE(result);
  CHECK(result.attempts()[0].begin_step == 10);
  CHECK(result.attempts()[1].begin_step == 10);
  CHECK(result.history() == whole.history());
  std::string warnings;
  for (const std::string& text : result.warnings()) warnings += text + "\n";
  CHECK_THAT(warnings, ContainsSubstring("an older checkpoint is taken"));
  const ry::Result second = run<SharedProcesses>(scratch, fail, {.name = "lost"});
  for (const std::string& name : names_in(second.path() / "checkpoints")) flip(second.path() / "checkpoints" / name);
  CHECK_THROWS_WITH(run<SharedProcesses>(scratch, never, {.name = "lost"}),
                    ContainsSubstring("no checkpoint of the run in") && ContainsSubstring("is whole"));
  CHECK(names_in(second.path() / "checkpoints").size() == 3);
}

TEST_CASE("Run: a checkpoint says what equal bits depend on, and the log what of it has changed (TRAPS 44)") {
  const Scratch scratch;
  const auto run_on = [&scratch](int threads, std::uint64_t last, int num_workers) {
    return run_in<ry::SharedMemory, ry::Processes>(scratch, num_workers,
                                                   [threads, last](auto& worker) {
                                                     worker.environment().set("threads", threads);
                                                     train(worker, [last](auto&, std::uint64_t step) {
                                                       if (step == last) throw std::runtime_error{"a test"};
                                                     });
                                                   },
                                                   {.name = "run"});
  };
  const ry::Result first = run_on(2, 8, 2);
  REQUIRE(first.checkpoint());
  const ry::NamedValues& environment = first.checkpoint()->manifest().environment;
  CHECK(environment.at("backend").as<std::string>() == "SharedMemory");
  CHECK(environment.at("scaling").as<std::string>() == "Processes");
  CHECK(environment.at("railyard").as<std::string>() == ry::version);
  CHECK(environment.at("threads").as<std::int64_t>() == 2);
  CHECK_FALSE(environment.at("cpu").as<std::string>().empty());
  const auto differences = [](const ry::Result& result) {
    std::vector<std::string> found;
    for (const std::string& warning : result.warnings()) {
      if (warning.find("bits may differ") != std::string::npos) found.push_back(warning);
    }
    return found;
  };
  CHECK(differences(first).empty());
  CHECK(differences(run_on(2, 12, 2)).empty());
  const auto others = differences(run_on(4, 17, 2));
  REQUIRE(others.size() == 1);
  CHECK_THAT(others[0], ContainsSubstring("with threads 4 instead of 2: bits may differ"));
  const auto fewer = differences(run_on(2, 22, 1));
  REQUIRE(fewer.size() == 1);
  CHECK_THAT(fewer[0], ContainsSubstring("started with a world size of 2 and goes on with 1"));
}

TEST_CASE(
    "Run: tells of another build, and of what comes out only while it trains, where a checkpoint knows (TRAPS 44)") {
  const Scratch scratch;
  const auto run_to = [&scratch](std::uint64_t last, const std::string& plan) {
    const auto go = [last, plan](auto& worker, std::uint64_t step) {
      if (step == last) throw std::runtime_error{"a test"};
      if (step % steps_per_epoch == 2) worker.note_environment("plan", plan);
    };
    return run<SharedProcesses>(scratch, go, {.name = "run"});
  };
  const auto rewrite = [](const ry::Result& result, const auto& change) {
    const auto path = result.checkpoint()->path() / "manifest.json";
    ry::Manifest manifest = ry::detail::read_manifest(read_text(path));
    change(manifest.environment);
    std::ofstream{path} << ry::detail::manifest_text(manifest);
  };
  const ry::Result first = run_to(8, "a");
  CHECK(first.warnings().empty());
  REQUIRE(first.checkpoint());
  CHECK(first.checkpoint()->manifest().environment.at("build").as<std::string>() == ry::detail::program_build());
  CHECK(first.checkpoint()->manifest().environment.at("plan").as<std::string>() == "a");
  rewrite(first, [](ry::NamedValues& environment) { environment.set("build", "0123"); });
  const ry::Result second = run_to(13, "b");
  REQUIRE(second.warnings().size() == 2);
  CHECK_THAT(second.warnings()[0],
             ContainsSubstring("with build " + ry::detail::program_build() + " instead of 0123: bits may differ"));
  CHECK_THAT(second.warnings()[1], ContainsSubstring("with plan b instead of a: bits may differ"));
  rewrite(second, [](ry::NamedValues& environment) { environment = {{"railyard", std::string{ry::version}}}; });
  const ry::Result third = run_to(1000, "c");  // from a checkpoint that knows of neither
  REQUIRE(third);
  const auto is_about_bits = [](const std::string& text) { return text.find("bits may differ") != std::string::npos; };
  CHECK(std::none_of(third.warnings().begin(), third.warnings().end(), is_about_bits));
}

TEST_CASE(
    "TrainState: an optimizer made with other options than the run was started with is told of, a schedule is not") {
  struct Optimizer {
    double rate = 0;
    [[nodiscard]] int param_groups() const { return 1; }
    [[nodiscard]] ry::State state() const { return {{"groups.0.parameters", "2x3"}, {"groups.0.lr", rate}}; }
    void load_state(const ry::State& state) { rate = state.at("groups.0.lr").as<double>(); }
  };
  const Scratch scratch;
  const auto run_with = [&scratch](double rate) {
    return run_in<ry::SharedMemory, ry::Threads>(scratch, 2,
                                                 [rate](auto& worker) {
                                                   Optimizer optimizer{rate};
                                                   ry::TrainState state{worker, {{"sgd", optimizer}}};
                                                   optimizer.rate /= 2;  // as a schedule does
                                                   worker.samples(1);
                                                   worker.report({{"rate", optimizer.rate}}, state);
                                                   throw std::runtime_error{"a test"};
                                                 },
                                                 {.name = "run", .checkpoint = {.synchronous = true}});
  };
  CHECK(run_with(0.25).metrics().at("rate").as<double>() == 0.125);
  const ry::Result same = run_with(0.25);
  CHECK(same.metrics().at("rate").as<double>() == 0.0625);
  CHECK(same.warnings().empty());
  const ry::Result other = run_with(1e-9);
  CHECK(other.metrics().at("rate").as<double>() == 0.03125);
  REQUIRE(other.warnings().size() == 1);
  CHECK_THAT(other.warnings()[0], ContainsSubstring("(sgd.groups.0.lr 1e-09 instead of 0.25)"));
}

TEST_CASE("Run: keeps the lines of metrics that belong to a checkpoint by their number, not by their place") {
  const Scratch scratch;
  const ry::Result whole = run<SharedThreads>(scratch, never);
  const auto fail = [](auto&, std::uint64_t step) {
    if (step == 22) throw std::runtime_error{"a test"};
  };
  const ry::Result failed = run<SharedThreads>(scratch, fail, {.name = "run"});
  auto lines = read_lines(failed.path() / "metrics.jsonl");
  REQUIRE(lines.size() == 4);
  lines.erase(lines.begin() + 1);  // could not be written
  std::ofstream file{failed.path() / "metrics.jsonl"};
  for (const std::string& line : lines) file << line << '\n';
  file << R"({"report": 4, "seconds": 1, "epoch": 4})" << '\n';  // of after the checkpoint
  file.close();
  const ry::Result result = run<SharedThreads>(scratch, never, {.name = "run"});
  REQUIRE(result);
  CHECK(read_lines(result.path() / "metrics.jsonl").size() == num_epochs - 1);
  CHECK(result.metrics() == whole.metrics());
}
