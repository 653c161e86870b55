// SPDX-License-Identifier: MIT
#include "railyard/train/worker.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/core/accuracy.hpp"
#include "railyard/workers/threads.hpp"

#include <chrono>
#include <cmath>
#include <future>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

// Runs the function on two threads; what it checks itself, it checks by throwing: Catch2 knows only one thread.
template <class F>
ry::Result run(F&& function, ry::RunConfig config = {}) {
  const Scratch scratch;
  return run_in<ry::Local, ry::Threads>(scratch, 2, std::forward<F>(function), std::move(config));
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

struct Counted {
  static constexpr std::string_view extension_name = "counted";
  int value = 0;
};

}  // namespace

TEST_CASE("Worker: says who it is and what the run is") {
  const auto result = run(
      [](ry::Worker& worker) {
        expect(worker.world_size() == 2 && worker.local_world_size() == 2, "sizes");
        expect(worker.rank() == worker.local_rank() && worker.rank() < 2, "ranks");
        expect(!worker.host().empty(), "host");
        expect(worker.seed() == 9 && worker.run_name() == "who", "run");
        expect(worker.run_path().filename() == "who", "path");
      },
      {.name = "who", .seed = 9});
  CHECK(result.error() == "");
}

TEST_CASE("Worker: what it warns of is in the Result, and does not end the run") {
  const auto result = run([](ry::Worker& worker) {
    if (worker.rank() == 1) worker.warn("rank 1 saw \"nothing\"");
    worker.barrier();
  });
  CHECK(result.error() == "");
  CHECK(result.warnings() == std::vector<std::string>{"rank 1 saw \"nothing\""});
}

TEST_CASE("Worker: who waits in vain is told which setting bounds the wait") {
  for (const bool has_setup_timeout : {false, true}) {
    std::promise<void> given_up;
    ry::RunConfig config{.collective_timeout = std::chrono::milliseconds{50}};
    if (has_setup_timeout) config.setup_timeout = std::chrono::milliseconds{60};
    const auto result = run(
        [&given_up](ry::Worker& worker) {
          if (worker.rank() == 1) return given_up.get_future().wait();
          try {
            worker.barrier();
          } catch (const ry::CollectiveError&) {
            given_up.set_value();
            throw;
          }
        },
        config);
    CHECK_THAT(result.error(),
               ContainsSubstring(has_setup_timeout ? "did not answer in 60 ms (RunConfig::setup_timeout)"
                                                   : "did not answer in 50 ms (RunConfig::collective_timeout)"));
  }
}

TEST_CASE("Worker: steps in which nothing goes from worker to worker are warned of, once") {
  struct Case {
    int num_steps;
    bool sums_gradients;
    bool is_warned_of;
  };
  for (const Case given :
       {Case{0, false, false}, Case{1, false, true}, Case{2500, false, true}, Case{2500, true, false}}) {
    const auto result = run([given](ry::Worker& worker) {
      double value = 1;
      worker.broadcast(ry::buffer_of_value(value), 0);  // what is done before the first step is none of it
      for (int step = 0; step < given.num_steps; ++step) {
        worker.samples(1);
        if (given.sums_gradients) worker.all_reduce(ry::buffer_of_value(value), ry::ReduceOp::average);
        static_cast<void>(worker.should_stop());
        worker.end_step();
      }
      static_cast<void>(worker.mean(value));
    });
    REQUIRE(result.error() == "");
    REQUIRE(result.warnings().size() == (given.is_warned_of ? 1U : 0U));
    if (!given.is_warned_of) continue;
    CHECK_THAT(result.warnings().front(), ContainsSubstring("each of them trains a model of its own") &&
                                              ContainsSubstring("prepare_model(worker, model)"));
  }
}

TEST_CASE("Worker: who sums by the backend itself is not warned") {
  const auto result = run([](auto& worker) {
    auto& backend = worker.backend();
    double value = 1;
    for (int step = 0; step < 3; ++step) {
      worker.samples(1);
      backend.all_reduce(ry::buffer_of_value(value), ry::ReduceOp::sum, {}).wait(worker.collective_deadline());
      worker.end_step();
    }
  });
  CHECK(result.error() == "");
  CHECK(result.warnings().empty());
}

TEST_CASE("Worker: report takes initialiser lists of any arithmetic type and literal (TRAPS 33)") {
  const auto result = run([](ry::Worker& worker) {
    const float loss = 0.5F;
    const unsigned long long big = 1ULL << 63U;
    worker.report({{"name", "abc"}, {"n", 3}, {"loss", loss}, {"big", big}, {"on", true}, {"c", std::string{"d"}}});
  });
  const auto& metrics = result.metrics();
  CHECK(metrics.at("name").as<std::string>() == "abc");
  CHECK(metrics.at("n").as<std::int64_t>() == 3);
  CHECK(metrics.at("loss").as<double>() == 0.5);
  CHECK(metrics.at("big").as<double>() == 9223372036854775808.0);
  CHECK(metrics.at("on").as<bool>());
  CHECK(metrics.at("c").as<std::string>() == "d");
}

TEST_CASE("Worker: report refuses the names of columns that are there already") {
  const auto result = run([](ry::Worker& worker) { worker.report({{"seconds", 1}}); });
  CHECK_THAT(result.error(), ContainsSubstring("a metric is named \"seconds\"") && ContainsSubstring("another name"));
}

TEST_CASE("Worker: report refuses more than a message can hold") {
  const auto result = run([](ry::Worker& worker) {
    if (worker.rank() == 0) worker.report({{"text", std::string(2U << 20U, 'x')}});
  });
  CHECK(result.failed_rank() == 0);
  CHECK_THAT(result.error(), ContainsSubstring("report() of 1 metrics on rank 0/2: the message has ") &&
                                 ContainsSubstring("the most is 1048576: report less, or write it to a file"));
}

TEST_CASE("Worker: mean weighs every sample alike") {
  const auto result = run([](ry::Worker& worker) {
    ry::Mean loss;
    if (worker.rank() == 0) loss.add(1.0, 1);
    if (worker.rank() == 1) loss.add(4.0, 3);
    expect(worker.mean(loss) == 3.25, "weighted mean");
    expect(worker.mean(worker.rank() == 0 ? 1.0 : 4.0) == 2.5, "plain mean");
    expect(std::isnan(worker.mean(ry::Mean{})), "mean of nothing");
  });
  CHECK(result.error() == "");
}

TEST_CASE("Worker: reduce gives every rank the metric of all samples") {
  const auto result = run([](ry::Worker& worker) {
    ry::Accuracy mine;
    mine.add_counts(worker.rank() == 0 ? 3 : 0, worker.rank() == 0 ? 4 : 6);
    const ry::Accuracy all = worker.reduce(mine);
    expect(all.correct() == 3 && all.samples() == 10, "sums of both ranks");
    expect(mine.samples() == (worker.rank() == 0 ? 4U : 6U), "the own metric is as it was");
  });
  CHECK(result.error() == "");
}

TEST_CASE("Worker: samples are counted on the page and remembered for the step") {
  const auto result = run([](ry::Worker& worker) {
    expect(!worker.step_samples(), "nothing said");
    worker.samples(3);
    worker.samples(4);
    expect(worker.step_samples() == 4, "last said");
    expect(worker.page().samples == 7, "all together");
  });
  CHECK(result.error() == "");
}

TEST_CASE("Worker: collectives are counted on its page, which shows no wait between them") {
  const auto result = run([](ry::Worker& worker) {
    worker.barrier();
    static_cast<void>(worker.mean(1.0));
    expect(worker.page().collectives == 2, "count");
    expect(worker.page().waiting_since_ns == 0, "not waiting");
  });
  CHECK(result.error() == "");
}

TEST_CASE("Worker: an extension is made once per worker") {
  const auto result = run([](ry::Worker& worker) {
    ++worker.extension<Counted>().value;
    ++worker.extension<Counted>().value;
    expect(worker.extension<Counted>().value == 2, "one object");
  });
  CHECK(result.error() == "");
}

TEST_CASE("Worker: every collective is at hand without a template") {
  const auto result = run([](ry::Worker& worker) {
    const int rank = worker.rank();
    std::vector<std::int32_t> pair(2);
    std::vector<std::int32_t> one{rank + 1};
    worker.all_gather(ry::buffer_of(one), ry::buffer_of(pair));
    expect(pair == std::vector<std::int32_t>{1, 2}, "all_gather");
    worker.gather(ry::buffer_of(one), ry::buffer_of(pair), 1);
    worker.scatter(ry::buffer_of(pair), ry::buffer_of(one), 1);
    expect(one[0] == rank + 1, "scatter of gather");
    worker.reduce_scatter(ry::buffer_of(pair), ry::buffer_of(one), ry::ReduceOp::sum);
    expect(one[0] == 2 * (rank + 1), "reduce_scatter");
    std::vector<std::int32_t> swapped(2);
    const std::vector<std::int32_t> row{10 * rank, 10 * rank + 1};
    worker.all_to_all(ry::buffer_of(row), ry::buffer_of(swapped));
    expect(swapped == std::vector<std::int32_t>{rank, 10 + rank}, "all_to_all");
    const std::vector<std::size_t> counts{1, 0};
    std::vector<std::int32_t> all(1);
    worker.all_gather_uneven(
        rank == 0 ? ry::ConstBuffer{ry::buffer_of(one)} : ry::ConstBuffer{nullptr, 0, ry::Dtype::i32},
        ry::buffer_of(all), counts);
    expect(all[0] == 2, "all_gather_uneven");
    if (rank == 0) worker.send(ry::buffer_of(row), 1);
    if (rank == 1) worker.receive(ry::buffer_of(swapped), 0);
    worker.broadcast(ry::buffer_of(swapped), 1);
    expect(swapped == std::vector<std::int32_t>{0, 1}, "send, receive, broadcast");
    worker.barrier();
  });
  CHECK(result.error() == "");
}
