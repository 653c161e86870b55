// SPDX-License-Identifier: MIT
#include "railyard/train/trainer.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/workers/threads.hpp"

#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

namespace ry = railyard;
using Catch::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

template <class F>
ry::Result run_threads(const Scratch& scratch, int num_workers, F&& function, ry::RunConfig config = {}) {
  return run_in<ry::Local, ry::Threads>(scratch, num_workers, std::forward<F>(function), std::move(config));
}

struct Heard {
  int starts = 0;
  std::vector<ry::Report> reports{};
  std::vector<ry::RunEnd> ends{};
};
struct Listener {
  Heard* heard;
  void on_start(const ry::RunInfo&) { ++heard->starts; }
  void on_report(const ry::Report& report) { heard->reports.push_back(report); }
  void on_end(const ry::RunEnd& end) { heard->ends.push_back(end); }
};

}  // namespace

TEST_CASE("fit: runs the function on every worker and hands back rank 0's metrics") {
  const Scratch scratch;
  std::atomic<int> calls = 0;
  const auto result = run_threads(scratch, 3, [&calls](auto& worker) {
    ++calls;
    for (int i = 0; i < 4; ++i)
      worker.report({{"i", i}, {"rank", worker.rank()}, {"mean", worker.mean(worker.rank())}});
  });
  REQUIRE(result.error() == "");
  CHECK(calls == 3);
  CHECK(result.world_size() == 3);
  CHECK(result.is_leader());
  CHECK(result.history().size() == 4);
  CHECK(result.metrics() == ry::Metrics{{"i", 3}, {"rank", 0}, {"mean", 1.0}});
  CHECK(result.warnings().empty());
  CHECK(result.timings().start > 0);
  CHECK(result.timings().first_line > 0);
  CHECK(result.seconds() >= result.timings().first_line + result.timings().training);
  const auto lines = read_lines(result.path() / "metrics.jsonl");
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[3], Catch::StartsWith("{\"report\": 3, \"seconds\": ") &&
                           Catch::EndsWith("\"i\": 3, \"rank\": 0, \"mean\": 1}"));
  CHECK_THAT(read_text(result.path() / "result.json"), ContainsSubstring("\"succeeded\": true"));
}

TEST_CASE("fit: run.json tells the settings that the run was started with") {
  const Scratch scratch;
  ry::Trainer<ry::Local, ry::Threads> trainer{[](ry::Worker&) {},
                                              {.num_workers = {1, 2}, .capacity = [] { return 2; }},
                                              {.storage_path = scratch.path(),
                                               .seed = 7,
                                               .checkpoint = {.keep = 2, .score = "loss", .interval = 90s},
                                               .failure = {.max_failures = 3, .memory_percent = 0.5},
                                               .progress = ry::Progress::quiet,
                                               .step_timeout = 1500ms}};
  const ry::Result result = trainer.fit();
  REQUIRE(result.error() == "");
  const std::string text = read_text(result.path() / "run.json");
  for (const char* setting :
       {"\"seed\": 7", "\"min_workers\": 1", "\"max_workers\": 2", "\"checkpoint_keep\": 2",
        "\"checkpoint_score\": \"loss\"", "\"checkpoint_interval_seconds\": 90", "\"max_failures\": 3",
        "\"memory_percent\": 0.5", "\"data_split\": \"all\"", "\"step_timeout_seconds\": 1.5"}) {
    CHECK_THAT(text, ContainsSubstring(setting));
  }
}

TEST_CASE("fit: takes functions of every fitting kind (TRAPS 32)") {
  const Scratch scratch;
  const auto by_base = [](ry::Worker& worker) { worker.report({{"a", 1}}); };
  const auto typed = [](ry::WorkerOf<ry::Local>& worker) {
    static_assert(std::is_same_v<decltype(worker.backend()), ry::Local&>);
    worker.report({{"a", 2}});
  };
  struct Functor {
    int value = 3;
    void operator()(ry::Worker& worker) { worker.report({{"a", value++}}); }
  };
  using Pointer = void (*)(ry::Worker&);
  const Pointer pointer = [](ry::Worker& worker) { worker.report({{"a", 4}}); };
  CHECK(run_threads(scratch, 1, by_base).metrics().at("a").number() == 1);
  CHECK(run_threads(scratch, 1, typed).metrics().at("a").number() == 2);
  CHECK(run_threads(scratch, 1, Functor{}).metrics().at("a").number() == 3);
  CHECK(run_threads(scratch, 1, pointer).metrics().at("a").number() == 4);
}

TEST_CASE("fit: refuses a training function that is empty before anything is started") {
  const Scratch scratch;
  const auto refuses = [&scratch](auto function) {
    CHECK_THROWS_AS(run_threads(scratch, 2, function, {.name = "empty"}), ry::ConfigError);
    CHECK_THROWS_WITH(run_threads(scratch, 2, function, {.name = "empty"}),
                      ContainsSubstring("training function") && ContainsSubstring("empty"));
    CHECK_FALSE(std::filesystem::exists(scratch.path() / "empty"));
  };
  struct Handle {  // as others than the standard library have them
    void (*function)(ry::Worker&) = nullptr;
    explicit operator bool() const { return function != nullptr; }
    void operator()(ry::Worker& worker) const { function(worker); }
  };
  using Function = std::function<void(ry::Worker&)>;
  refuses(Function{});
  refuses(static_cast<void (*)(ry::Worker&)>(nullptr));
  refuses(Handle{});
  const auto report = [](ry::Worker& worker) { worker.report({{"a", 1}}); };
  CHECK(run_threads(scratch, 1, Function{report}).metrics().at("a").number() == 1);
  CHECK(run_threads(scratch, 1, Handle{report}).metrics().at("a").number() == 1);
}

namespace {

struct ThrowsWhenCopied {
  std::shared_ptr<int> copies_left;
  bool fails = false;  // when it runs

  ThrowsWhenCopied(int copies, bool fails_too) : copies_left(std::make_shared<int>(copies)), fails(fails_too) {}
  ThrowsWhenCopied(const ThrowsWhenCopied& other) : copies_left(other.copies_left), fails(other.fails) {
    if (--*copies_left < 0) throw std::runtime_error{"no copy of this"};
  }
  ThrowsWhenCopied(ThrowsWhenCopied&&) = default;
  ThrowsWhenCopied& operator=(ThrowsWhenCopied) = delete;
  void operator()(ry::Worker&) const {
    if (fails) throw std::runtime_error{"first attempt"};
  }
};

}  // namespace

TEST_CASE("fit: says that copying the training function threw, and starts no worker") {
  const Scratch scratch;
  const auto run = [&] { return run_threads(scratch, 2, ThrowsWhenCopied{1, false}, {.name = "once"}); };
  CHECK_THROWS_AS(run(), ry::ConfigError);
  CHECK_THROWS_WITH(run(), ContainsSubstring("copying the training function") && ContainsSubstring("no copy of this"));
  CHECK_FALSE(std::filesystem::exists(scratch.path() / "once"));
}

TEST_CASE("fit: a training function whose copying throws when the workers are started again is the run's failure") {
  const Scratch scratch;
  const auto result =
      run_threads(scratch, 2, ThrowsWhenCopied{3, true}, {.failure = {.max_failures = 1, .backoff = 1ms}});
  CHECK_THAT(result.error(),
             ContainsSubstring("copying the training function") && ContainsSubstring("no copy of this"));
}

TEST_CASE("fit: each worker thread runs a copy of its own, and so does each run") {
  const Scratch scratch;
  ry::Trainer<ry::Local, ry::Threads> trainer{[count = 0](ry::Worker& worker) mutable {
                                                for (int i = 0; i < 100; ++i) ++count;
                                                std::int64_t sum = count;
                                                worker.all_reduce(ry::buffer_of_value(sum), ry::ReduceOp::max);
                                                worker.report({{"count", sum}});
                                              },
                                              {.num_workers = 3},
                                              {.storage_path = scratch.path(), .progress = ry::Progress::quiet}};
  const auto first = trainer.fit();
  const auto second = trainer.fit();
  CHECK(first.metrics().at("count").number() == 100);
  CHECK(second.metrics().at("count").number() == 100);
  CHECK(first.path() != second.path());
}

TEST_CASE("fit: a throw in one rank ends the others and is what the caller sees (FAULTS A7)") {
  const Scratch scratch;
  const auto result = run_threads(scratch, 3, [](ry::Worker& worker) {
    worker.report({{"a", 1}});
    worker.barrier();
    if (worker.rank() == 1) throw std::runtime_error("disk on fire");
    for (;;) worker.barrier();
  });
  CHECK_FALSE(result);
  CHECK(result.failed_rank() == 1);
  CHECK(result.exit_status() == 1);
  CHECK_THAT(result.error(), ContainsSubstring("rank 1 of 3 on ") && ContainsSubstring("threw: disk on fire") &&
                                 ContainsSubstring("its last report was number 0") &&
                                 ContainsSubstring(result.path().string()));
  CHECK_THROWS_AS(result.value_or_throw(), ry::WorkerError);
  CHECK(result.metrics().at("a").number() == 1);
  CHECK_THAT(read_text(result.path() / "result.json"), ContainsSubstring("\"failed_rank\": 1"));
}

TEST_CASE("fit: tells of very many ranks what some were doing, and how many more there were") {
  const Scratch scratch;
  std::atomic<bool> has_failed = false;
  const auto result = run_threads(scratch, 40,
                                  [&has_failed](ry::Worker& worker) {
                                    if (worker.rank() == 0) return has_failed.wait(false);
                                    try {
                                      worker.barrier();
                                    } catch (const ry::CollectiveError&) {
                                      has_failed = true;
                                      has_failed.notify_all();
                                      throw;
                                    }
                                  },
                                  {.collective_timeout = 500ms});
  CHECK_THAT(result.error(), ContainsSubstring("; then rank 0 was outside of collectives after 0 of them (step 0), ") &&
                                 ContainsSubstring(" and 24 more"));
}

TEST_CASE("fit: an exception of any type is a failure") {
  const Scratch scratch;
  const auto result = run_threads(scratch, 2, [](ry::Worker& worker) {
    if (worker.rank() == 0) throw 42;
    worker.barrier();
  });
  CHECK(result.failed_rank() == 0);
  CHECK_THAT(result.error(), ContainsSubstring("threw: 42"));
}

TEST_CASE("fit: a rank that returns early is named with the one that waited for it (FAULTS A1, A9)") {
  const Scratch scratch;
  const auto result = run_threads(scratch, 2, [](ry::Worker& worker) {
    worker.barrier();
    if (worker.rank() == 0) return;
    worker.barrier();
  });
  CHECK(result.failed_rank() == 0);
  CHECK_THAT(result.error(), ContainsSubstring("rank 0 of 2") &&
                                 ContainsSubstring("returned from the training function while rank 1 still waited"));
}

TEST_CASE("fit: a slow consumer of reports loses none of them") {
  const Scratch scratch;
  std::int64_t expected = 0;
  const auto result = run_threads(scratch, 2,
                                  [](ry::Worker& worker) {
                                    for (int i = 0; i < 5000; ++i) worker.report({{"i", i}, {"rank", worker.rank()}});
                                  },
                                  {.callbacks = {[&](const ry::Report& report) {
                                     if (report.index != expected++) throw std::runtime_error("out of order");
                                   }}});
  CHECK(result.error() == "");
  CHECK(expected == 5000);
  CHECK(result.history().size() == 5000);
  CHECK(read_lines(result.path() / "metrics.jsonl").size() == 5000);
}

TEST_CASE("callbacks: hear the start, all ranks' metrics in order, and the end") {
  const Scratch scratch;
  Heard heard;
  const auto result = run_threads(scratch, 3,
                                  [](ry::Worker& worker) {
                                    for (int i = 0; i < 3; ++i) worker.report({{"both", 10 * i + worker.rank()}});
                                    if (worker.rank() == 2) worker.report({{"extra", true}});
                                  },
                                  {.callbacks = {Listener{&heard}}});
  REQUIRE(result.error() == "");
  CHECK(heard.starts == 1);
  REQUIRE(heard.reports.size() == 4);
  for (int i = 0; i < 3; ++i) {
    const auto& report = heard.reports[static_cast<std::size_t>(i)];
    CHECK(report.index == i);
    for (int rank = 0; rank < 3; ++rank) {
      const auto& metrics = report.by_rank.at(static_cast<std::size_t>(rank));
      REQUIRE(metrics);
      CHECK(metrics->at("both").number() == 10 * i + rank);
    }
  }
  CHECK_FALSE(heard.reports[3].by_rank[0]);
  CHECK(heard.reports[3].by_rank[2]->at("extra").as<bool>());
  REQUIRE(heard.ends.size() == 1);
  CHECK(heard.ends[0].error.empty());
  CHECK(heard.ends[0].metrics.at("both").number() == 20);
}

TEST_CASE("callbacks: B12 one that asks for a stop stops all ranks at the same place") {
  const Scratch scratch;
  const auto result = run_threads(
      scratch, 3,
      [](ry::Worker& worker) {
        int steps = 0;
        while (!worker.should_stop()) worker.report({{"steps", ++steps}});
        const int own = steps;
        worker.broadcast(ry::buffer_of_value(steps), 0);
        if (own != steps) throw std::runtime_error("stopped alone");
        if (!worker.should_stop()) throw std::runtime_error("changed its mind");
      },
      {.callbacks = {[](const ry::Report& report) { return report.index == 2 ? ry::Next::stop : ry::Next::go_on; }}});
  CHECK(result.error() == "");
  CHECK(result.exit_status() == 0);
  CHECK(result.history().size() >= 3);
}

TEST_CASE("callbacks: an exception ends the run and names the hook") {
  const Scratch scratch;
  struct Thrower {
    std::string where;
    void on_start(const ry::RunInfo&) { throw_if("on_start"); }
    void on_report(const ry::Report&) { throw_if("on_report"); }
    void on_end(const ry::RunEnd&) { throw_if("on_end"); }
    void throw_if(const std::string& hook) const {
      if (where == hook) throw std::runtime_error("no idea");
    }
  };
  for (const std::string hook : {"on_start", "on_report", "on_end"}) {
    Heard heard;
    const auto result = run_threads(scratch, 2,
                                    [&](ry::Worker& worker) {
                                      worker.report({{"a", 1}});
                                      while (hook == "on_report") worker.barrier();
                                    },
                                    {.callbacks = {Thrower{hook}, Listener{&heard}}});
    CHECK_FALSE(result);
    CHECK(result.failed_rank() == -1);
    CHECK_THAT(result.error(), ContainsSubstring("a callback's " + hook + " threw: no idea"));
    CHECK(heard.starts == 1);
    CHECK(heard.ends.size() == 1);
    CHECK(heard.reports.size() == (hook == "on_start" ? 0U : 1U));
  }
}

TEST_CASE("callbacks: a failure of the run reaches on_end") {
  const Scratch scratch;
  Heard heard;
  const auto result =
      run_threads(scratch, 1, [](ry::Worker&) { throw std::runtime_error("boo"); }, {.callbacks = {Listener{&heard}}});
  REQUIRE(heard.ends.size() == 1);
  CHECK(heard.ends[0].error == result.error());
}

TEST_CASE("fit: request_stop on one rank stops all at the same step (FAULTS A5)") {
  const Scratch scratch;
  const auto result = run_threads(scratch, 3, [](ry::Worker& worker) {
    int steps = 0;
    while (!worker.should_stop()) {
      ++steps;
      if (worker.rank() == 2 && steps == 5) worker.request_stop();
    }
    worker.report({{"steps", worker.mean(steps)}});
  });
  CHECK(result.error() == "");
  CHECK(result.metrics().at("steps").number() == 5);
}

TEST_CASE("fit: a full disk costs metrics.jsonl, not the run") {
  const Scratch scratch;
  struct FullDisk {  // before the first report, the file becomes one that takes nothing
    void on_start(const ry::RunInfo& info) {
      std::filesystem::create_symlink("/dev/full", info.path / "metrics.jsonl");
    }
  };
  const auto result = run_threads(scratch, 2,
                                  [](ry::Worker& worker) {
                                    for (int i = 0; i < 3; ++i) worker.report({{"i", i}});
                                  },
                                  {.callbacks = {FullDisk{}}});
  CHECK(result.error() == "");
  CHECK(result.history().size() == 3);
  REQUIRE(result.warnings().size() == 1);
  CHECK_THAT(result.warnings()[0], ContainsSubstring("3 line(s) are missing") && ContainsSubstring("metrics.jsonl") &&
                                       ContainsSubstring("No space left"));
}

TEST_CASE("fit: works on two threads at once") {
  const Scratch scratch;
  std::vector<std::string> errors(2, "not run");
  std::vector<double> sums(2);
  const auto work = [&](std::size_t i) {
    const auto result = run_threads(scratch, 2, [i](ry::Worker& worker) {
      double sum = 0;
      for (int step = 0; step < 200; ++step) sum += worker.mean(static_cast<double>(i + 1));
      worker.report({{"sum", sum}});
    });
    errors[i] = result.error();
    sums[i] = result.metrics().at("sum").number();
  };
  std::thread first{work, 0};
  std::thread second{work, 1};
  first.join();
  second.join();
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK(sums == std::vector<double>{200, 400});
}
