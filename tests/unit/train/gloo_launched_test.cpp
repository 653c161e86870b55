// SPDX-License-Identifier: MIT
// Whole runs of several processes that something else has started, as a launcher does: with real processes, which are
// stopped, killed and told different things.
#include "railyard/workers/launched.hpp"

#include "support/catch.hpp"
#include "unit/train/launched_processes.hpp"
#include "unit/train/toy_training.hpp"
#include "unit/workers/support.hpp"

#include "railyard/collectives/gloo.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/data/text_lines_source.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

using launched_runs::comes;
using launched_runs::LaunchedProcesses;
using launched_runs::leave;
using launched_runs::text_of;

template <class F>
ry::Result fit(const Scratch& scratch, F&& function, ry::RunConfig run = {}, int num_workers = 1) {
  run.start_timeout = std::min<std::chrono::nanoseconds>(run.start_timeout, 30s);
  return run_in<ry::Gloo, ry::Launched>(scratch, num_workers, std::forward<F>(function), std::move(run));
}

// Meets the others for ever, from a moment on that a file tells of.
auto meet_for_ever(const Scratch& scratch) {
  return [&scratch](auto& worker) {
    worker.barrier();
    if (worker.rank() == 0) leave(scratch.path() / "running");
    for (;;) worker.barrier();
  };
}

void sum_ranks(ry::Worker& worker) {
  double sum = worker.rank() + 1;
  worker.all_reduce(ry::Buffer{.data = &sum, .count = 1, .dtype = ry::Dtype::f64}, ry::ReduceOp::sum);
  worker.report({{"sum", sum}});
}

}  // namespace

TEST_CASE("Launched: makes one group of all processes' workers, and fit() returns the same in each") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int process) {
                               const auto result = fit(scratch, sum_ranks, {}, 2);
                               return fmt::format("{}; leads {}; {}", text_of(result), result.is_leader(),
                                                  result.is_leader() == (process == 0));
                             }};
  const std::string first = launched.words(0);
  CHECK_THAT(first, ContainsSubstring("status 0, 6 workers, sum 21, ; leads true; true"));
  for (const int other : {1, 2}) CHECK_THAT(launched.words(other), ContainsSubstring("sum 21, ; leads false; true"));
}

TEST_CASE("Launched: the processes of a host count the samples of files, and fill a cache in memory, once") {
  const Scratch scratch;
  std::string lines;
  for (int line = 0; line < 200'000; ++line) lines += fmt::format("line {}\n", line);
  const auto path = scratch.write("lines.txt", lines);
  const auto read_so_far = [] {
    std::ifstream file{"/proc/self/io"};
    std::string word;
    double number = 0;
    file >> word >> number;  // "rchar:"
    return number;
  };
  const auto train = [&](ry::Worker& worker) {
    worker.barrier();
    const double before = read_so_far();
    const auto count = worker.dataset("lines").count();
    const auto cached = worker.dataset("cached").count();
    worker.barrier();
    double scans = (read_so_far() - before) / static_cast<double>(lines.size());
    worker.all_reduce(ry::buffer_of_value(scans), ry::ReduceOp::sum);
    worker.report({{"scans", scans}, {"counts", fmt::format("{} {}", count.value_or(0), cached.value_or(0))}});
  };
  LaunchedProcesses launched{
      scratch, 3, [&](int) {
        const ry::Dataset all{ry::TextLinesSource{path}};
        const auto cached = all.filter([](const ry::Sample& in) { return in.id() < 5; }).cache();
        ry::Trainer<ry::Gloo, ry::Launched> trainer{
            train,
            {.num_workers = 2},
            {.storage_path = scratch.path(), .progress = ry::Progress::quiet, .start_timeout = 30s},
            {{"lines", all}, {"cached", cached}}};
        const ry::Result result = trainer.fit();
        if (!result) return result.error();
        const double scans = result.metrics().at("scans").number();
        return fmt::format("{}, {}", result.metrics().at("counts").as<std::string>(),
                           scans > 1.9 && scans < 2.4 ? "read twice" : fmt::to_string(scans));
      }};
  for (const int process : {0, 1, 2}) CHECK(launched.words(process) == "200000 5, read twice");
}

TEST_CASE("Launched: fit() leaves nothing behind in any process, whose ports included") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               const workers_test::Holdings before;
                               std::size_t listeners = 0;
                               const auto look = [&](const ry::Report&) {
                                 listeners = workers_test::count_listeners();
                               };
                               const auto result = fit(scratch, sum_ranks, {.callbacks = {look}});
                               return fmt::format("{}; {} came back; {} listened on more meanwhile", text_of(result),
                                                  workers_test::come_back_to(before), listeners > before.listeners);
                             }};
  CHECK_THAT(launched.words(0), ContainsSubstring("sum 3, ; true came back; true listened"));
  CHECK_THAT(launched.words(1), ContainsSubstring("sum 3, ; true came back"));
}

TEST_CASE("Launched: ranks that end first, also rank 0, take nothing from those that go on (FAULTS B13)") {
  const Scratch scratch;
  const auto outlive_rank_0 = [&scratch](ry::Worker& worker) {
    if (worker.rank() == 0) std::ofstream{scratch.path() / "process"} << ::getpid();
    worker.barrier();
    worker.report({{"sum", worker.rank()}});
    if (worker.rank() == 0) return;
    pid_t first = 0;
    std::ifstream{scratch.path() / "process"} >> first;
    const ry::Deadline deadline = ry::Deadline::after(30s);
    while (::kill(first, 0) == 0 && !deadline.expired()) std::this_thread::sleep_for(2ms);
    if (deadline.expired()) throw std::runtime_error{"rank 0 has not ended"};
    worker.store().set(fmt::format("after/{}", worker.rank()), "here");
    if (!worker.store().get(fmt::format("after/{}", 3 - worker.rank()), deadline)) {
      throw std::runtime_error{"the other rank has left nothing"};
    }
  };
  LaunchedProcesses launched{scratch, 3, [&](int) { return text_of(fit(scratch, outlive_rank_0)); }};
  for (const int process : {0, 1, 2}) CHECK(launched.words(process) == "status 0, 3 workers, sum 0, ");
}

TEST_CASE("Launched: alone, makes workers as Processes does") {
  const Scratch scratch;
  const auto result = fit(scratch, sum_ranks, {}, 3);
  CHECK(text_of(result) == "status 0, 3 workers, sum 6, ");
}

TEST_CASE("Launched: a program may call fit() again, at once (FAULTS B19)") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               std::string text;
                               for (int run = 0; run < 4; ++run) text += text_of(fit(scratch, sum_ranks)) + "; ";
                               return text;
                             }};
  const std::string all = launched.words(0);
  CHECK(all ==
        "status 0, 3 workers, sum 6, ; status 0, 3 workers, sum 6, ; status 0, 3 workers, sum 6, ; "
        "status 0, 3 workers, sum 6, ; ");
  for (const int other : {1, 2}) CHECK(launched.words(other) == all);
}

TEST_CASE("Launched: what a rank of another process throws is the error of all") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               return text_of(fit(scratch, [](auto& worker) {
                                 if (worker.rank() == 1) throw std::runtime_error{"boo"};
                                 for (;;) worker.barrier();
                               }));
                             }};
  for (const int process : {0, 1}) {
    const std::string words = launched.words(process);
    CHECK_THAT(words, ContainsSubstring("status 1"));
    CHECK_THAT(words, ContainsSubstring("rank 1 of 2 on " + ry::detail::host_name() + " threw: boo"));
  }
}

TEST_CASE("Launched: starts a killed worker again and ends as if nothing had happened") {
  const Scratch scratch;
  const auto victim = GENERATE(0, 1, 3);
  const auto kill_once = [victim](auto& worker, std::uint64_t step) {
    if (worker.attempt() == 0 && worker.rank() == victim && step == 13) ::raise(SIGKILL);
  };
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               ry::RunConfig run{.name = "run", .checkpoint = {.keep = 2}};
                               run.failure.max_failures = 1;
                               const auto result = fit(
                                   scratch, [&](auto& worker) { toy::train(worker, kill_once); }, run, 2);
                               return fmt::format("{} {} attempts, checkpoint {}", text_of(result),
                                                  result.attempts().size(), result.checkpoint().has_value());
                             }};
  const Scratch unharmed;
  const auto expected = toy::run<toy::SharedProcesses>(unharmed, toy::never, {}, 4);
  REQUIRE(expected.error() == "");
  for (const int process : {0, 1}) {
    CHECK(launched.words(process) == text_of(expected) + " 2 attempts, checkpoint true");
  }
}

TEST_CASE("Launched: a killed process ends the run everywhere, and asks the engine to start it again") {
  const Scratch scratch;
  const int victim = GENERATE(0, 2);
  LaunchedProcesses launched{scratch, 3, [&](int) {
                               ry::RunConfig run{};
                               run.failure.max_failures = 3;
                               return text_of(fit(scratch, meet_for_ever(scratch), run));
                             }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(victim), SIGKILL);
  for (const int process : {0, 1, 2}) {
    if (process == victim) continue;
    const std::string words = launched.words(process);
    CHECK_THAT(words, ContainsSubstring("status 75"));
    CHECK_THAT(words, ContainsSubstring(victim == 0 ? "has lost the one that leads the run" : "process 2 ("));
  }
}

TEST_CASE("Launched: a process that is stopped counts as lost after the limit of silence") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 2,
                             [&](int) { return text_of(fit(scratch, meet_for_ever(scratch), {.silence_limit = 2s})); }};
  REQUIRE(comes(scratch.path() / "running"));
  ::kill(launched.pid(1), SIGSTOP);
  CHECK_THAT(launched.words(0), ContainsSubstring("has said nothing for"));
}

TEST_CASE("Launched: a run that has nothing to say goes on beyond the limit of silence") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               const auto quiet = [](auto& worker) {
                                 std::this_thread::sleep_for(4500ms);
                                 sum_ranks(worker);
                               };
                               return text_of(fit(scratch, quiet, {.silence_limit = 2s}));
                             }};
  for (const int process : {0, 1}) CHECK(launched.words(process) == "status 0, 2 workers, sum 3, ");
}

TEST_CASE("Launched: a signal to every process is one request to save and leave") {
  const Scratch scratch;
  const auto wait_for_signal = [&](auto& worker, std::uint64_t step) {
    if (step == 4 && worker.rank() == 0) leave(scratch.path() / "running");
    if (step >= 4) std::this_thread::sleep_for(5ms);
  };
  LaunchedProcesses launched{
      scratch, 2, [&](int) {
        return text_of(fit(
            scratch, [&](auto& worker) { toy::train(worker, wait_for_signal); }, {.name = "run"}, 2));
      }};
  REQUIRE(comes(scratch.path() / "running"));
  for (const int process : {1, 0}) ::kill(launched.pid(process), SIGTERM);
  for (const int process : {0, 1}) {
    const std::string words = launched.words(process);
    CHECK_THAT(words, ContainsSubstring("status 75"));
    CHECK_THAT(words, ContainsSubstring("its state was saved first"));
  }
}

TEST_CASE("Launched: what the leader refuses is refused in every process") {
  const Scratch scratch;
  std::filesystem::create_directories(scratch.path() / "taken");
  leave(scratch.path() / "taken" / "file");
  LaunchedProcesses launched{scratch, 2, [&](int) {
                               return text_of(fit(scratch, sum_ranks, {.name = "taken", .resume = ry::Resume::never}));
                             }};
  for (const int process : {0, 1}) CHECK_THAT(launched.words(process), ContainsSubstring("threw: RunConfig::name"));
}

TEST_CASE("Launched: processes that do not fit together all say why, and none asks to be started again") {
  const Scratch scratch;
  // What process 1 of 3 differs in.
  const std::string difference = GENERATE("settings", "TLS", "number");
  LaunchedProcesses launched{scratch, 3, [&](int process) {
                               const bool is_odd = process == 1;
                               if (is_odd && difference == "TLS") ::setenv("RAILYARD_TLS", "1", 1);
                               if (is_odd && difference == "number") ::setenv("RANK", "2", 1);
                               const std::uint64_t seed = is_odd && difference == "settings" ? 1 : 0;
                               try {
                                 return text_of(fit(scratch, sum_ranks, {.seed = seed}));
                               } catch (const ry::ConfigError& error) {
                                 return fmt::format("refused: {}", error.what());
                               }
                             }};
  CAPTURE(difference);
  const std::string first = launched.words(0);
  CHECK_THAT(first, ContainsSubstring("refused: ") &&
                        ContainsSubstring(difference == "settings" ? "process 1 on " + ry::detail::host_name()
                                          : difference == "TLS"    ? "ScalingConfig::launch.tls"
                                                                   : "say that they are number 2 of 3"));
  if (difference == "settings") CHECK_THAT(first, ContainsSubstring("seed 1") && ContainsSubstring("seed 0"));
  CHECK(launched.words(2) == first);
  CHECK(launched.words(1) == first);
}

TEST_CASE("Launched: names the processes that do not come") {
  const Scratch scratch;
  LaunchedProcesses launched{scratch, 2, [&](int) { return text_of(fit(scratch, sum_ranks, {.start_timeout = 4s})); },
                             4};
  const std::string first = launched.words(0);
  CHECK_THAT(first, ContainsSubstring("threw: ") && ContainsSubstring("processes 2, 3 did not come within 4 s") &&
                        ContainsSubstring("2 of 4 have come"));
  CHECK(launched.words(1) == first);
}

TEST_CASE("Launched: leaves neither processes nor files behind") {
  const Scratch scratch;
  {
    LaunchedProcesses launched{scratch, 2, [&](int) { return text_of(fit(scratch, sum_ranks, {}, 2)); }};
    for (const int process : {0, 1}) REQUIRE_THAT(launched.words(process), ContainsSubstring("status 0"));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator{scratch.path() / "runtime"}) {
    CHECK(entry.is_directory());
  }
}
