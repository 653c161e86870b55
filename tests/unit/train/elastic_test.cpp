// SPDX-License-Identifier: MIT
// Runs whose number of workers follows what there is.
#include "railyard/train/detail/elastic_size.hpp"
#include "railyard/train/scaling_config.hpp"

#include "railyard/core/accuracy.hpp"
#include "railyard/core/mean.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace ry = railyard;
using namespace toy;  // its names stand in nearly every line

namespace {

constexpr int num_samples = 1000;
constexpr int batch_size = 10;  // of all workers together

// How many workers there is room for: set by workers, looked at by the one who starts them.
class Room {
 public:
  explicit Room(int first) {
    void* memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    room_ = new (memory) std::atomic<int>{first};
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { ::munmap(room_, sizeof *room_); }

  void set(int room) const { room_->store(room); }
  [[nodiscard]] std::function<int()> capacity() const {
    return [room = room_] { return room->load(); };
  }

 private:
  std::atomic<int>* room_;
};

// Adds the numbers of all samples, each rank those of its part of every batch; each counts for itself what it has seen.
struct Sums {
  std::int64_t sum = 0;
  std::int64_t position = 0;

  [[nodiscard]] ry::State state() const { return {{"sum", sum}, {"position", position}}; }
  void load_state(const ry::State& state) {
    sum = state.at("sum").as<std::int64_t>();
    position = state.at("position").as<std::int64_t>();
  }
};

void wait_for_resize(ry::Worker& worker) {
  const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
  while (!worker.page().resize_requested.load() && !deadline.expired()) std::this_thread::yield();
}

// change: called by every rank at the begin of each step.
template <class W, class Change>
void add_all(W& worker, const Change& change) {
  Sums sums;
  ry::Mean seen;
  ry::Accuracy even;
  ry::TrainState state{worker, {{"sums", sums}, {"seen", seen}, {"even", even}}};
  while (sums.position < num_samples) {
    worker.samples(1);
    change(worker, sums.position / batch_size);
    const auto [begin, end] = std::pair{batch_size * worker.rank() / worker.world_size(),
                                        batch_size * (worker.rank() + 1) / worker.world_size()};
    std::int64_t part = 0;
    for (int sample = begin; sample < end; ++sample) {
      part += sums.position + sample;
      even.add_counts(sample % 2 == 0 ? 1 : 0, 1);
    }
    seen.add_sum(static_cast<double>(part), end - begin);
    worker.all_reduce(ry::buffer_of_value(part), ry::ReduceOp::sum);
    sums.sum += part;
    sums.position += batch_size;
    worker.end_step();
  }
  std::vector<double> all_seen{seen.sum(), seen.weight()};
  worker.all_reduce(ry::buffer_of(all_seen), ry::ReduceOp::sum);
  const ry::Accuracy all_even = worker.reduce(even);
  worker.report({{"sum", sums.sum},
                 {"world_size", worker.world_size()},
                 {"seen_sum", all_seen[0]},
                 {"seen", all_seen[1]},
                 {"even", static_cast<double>(all_even.correct())},
                 {"counted", static_cast<double>(all_even.samples())}});
}

constexpr std::int64_t whole_sum = std::int64_t{num_samples} * (num_samples - 1) / 2;

// Whether every sample was added once, by those who add all and by those who add their own.
void check_sums(const ry::Metrics& metrics) {
  CHECK(metrics.at("sum").as<std::int64_t>() == whole_sum);
  CHECK(metrics.at("seen_sum").number() == static_cast<double>(whole_sum));
  CHECK(metrics.at("seen").number() == num_samples);
  CHECK(metrics.at("even").number() == num_samples / 2);
  CHECK(metrics.at("counted").number() == num_samples);
}

struct ResizeListener {
  std::vector<ry::Resize>* resizes;
  void on_resize(const ry::Resize& resize) { resizes->push_back(resize); }
};

struct ThrowingListener {
  static void on_resize(const ry::Resize& /*resize*/) { throw std::runtime_error{"no other size"}; }
};

// Starts no more than so many workers again, whatever room there is said to be.
class NarrowGroup final : public ry::WorkerGroup {
 public:
  static constexpr int most = 2;

  explicit NarrowGroup(std::unique_ptr<ry::WorkerGroup> threads) : threads_(std::move(threads)) {}

  [[nodiscard]] std::optional<ry::GroupEvent> next(const ry::Deadline& deadline) override {
    return threads_->next(deadline);
  }
  void request_stop() override { threads_->request_stop(); }
  void request_leave() override { threads_->request_leave(); }
  void request_resize() override { threads_->request_resize(); }
  void abort(std::string_view reason) override { threads_->abort(reason); }
  void kill() override { threads_->kill(); }
  [[nodiscard]] bool can_kill() const noexcept override { return threads_->can_kill(); }
  [[nodiscard]] const ry::WorkerPage& page(int rank) const override { return threads_->page(rank); }
  [[nodiscard]] std::vector<std::string> stacks(const ry::Deadline& deadline) override {
    return threads_->stacks(deadline);
  }
  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override {
    return threads_->snapshot(rank, slot, begin, size_bytes);
  }
  void hold_snapshot(int rank, int slot) noexcept override { threads_->hold_snapshot(rank, slot); }
  void release_snapshot(int rank, int slot) noexcept override { threads_->release_snapshot(rank, slot); }
  [[nodiscard]] bool shares_snapshots() const noexcept override { return threads_->shares_snapshots(); }
  void restart(int num_workers, std::string_view briefing) override {
    if (num_workers > most) throw ry::Error{"there is nothing for a third one"};
    threads_->restart(num_workers, briefing);
  }
  [[nodiscard]] bool forks_to_restart() const override { return threads_->forks_to_restart(); }

 private:
  std::unique_ptr<ry::WorkerGroup> threads_;
};

struct NarrowThreads {
  static constexpr std::string_view name = "NarrowThreads";
  static constexpr ry::Reach reach = ry::Threads::reach;
  static constexpr bool copies_function = ry::Threads::copies_function;

  static std::unique_ptr<ry::WorkerGroup> start(const ry::GroupPlan& plan, const ry::WorkerBody& body) {
    return std::make_unique<NarrowGroup>(ry::Threads{}.start(plan, body));
  }
};

template <class P, class Change>
ry::Result run_elastic(const Scratch& scratch, const Room& room, ry::WorkerCount count, const Change& change,
                       ry::RunConfig config = {}) {
  config.storage_path = scratch.path();
  config.progress = ry::Progress::quiet;
  ry::Trainer<typename P::B, typename P::S> trainer{
      [change](auto& worker) { add_all(worker, change); },
      {.num_workers = count, .capacity = room.capacity(), .capacity_interval = std::chrono::milliseconds{1}},
      std::move(config)};
  return trainer.fit();
}

}  // namespace

TEMPLATE_TEST_CASE("Elastic: a run grows and shrinks with its room, and uses each sample once", "", LocalThreads,
                   SharedThreads, SharedProcesses) {
  const Scratch scratch;
  const Room room{2};
  const auto change = [&room](ry::Worker& worker, std::int64_t step) {
    const int wanted = step < 20 ? 2 : step < 40 ? 4 : step < 60 ? 1 : 3;
    if (worker.world_size() == wanted) return;
    room.set(wanted);
    wait_for_resize(worker);
  };
  std::vector<ry::Resize> resizes;
  const ry::Result result =
      run_elastic<TestType>(scratch, room, {1, 4}, change, {.callbacks = {ResizeListener{&resizes}}});
  INFO(result.error());
  REQUIRE(result);
  check_sums(result.metrics());
  CHECK(result.metrics().at("world_size").as<std::int64_t>() == 3);
  REQUIRE(resizes.size() == 3);
  const int expected[] = {2, 4, 1, 3};
  for (std::size_t at = 0; at < 3; ++at) {
    CHECK(resizes[at].from == expected[at]);
    CHECK(resizes[at].to == expected[at + 1]);
    CHECK(resizes[at].step >= 20 * (at + 1));
    CHECK(resizes[at].step <= 20 * (at + 1) + 2);  // the step in which it is known, and one more
  }
  REQUIRE(result.attempts().size() == 4);
  for (std::size_t at = 0; at < 4; ++at) {
    CHECK(result.attempts()[at].world_size == expected[at]);
    CHECK(result.attempts()[at].lost_steps == 0);
    CHECK(result.attempts()[at].error.empty());
  }
}

TEST_CASE("Elastic: a run goes on with fewer workers where those that failed cannot come back") {
  const Scratch scratch;
  const Room room{3};
  const auto change = [&room](ry::Worker& worker, std::int64_t step) {
    if (worker.attempt() != 0 || step != 30) return;
    room.set(2);
    worker.barrier();
    if (worker.rank() == 2) ::kill(::getpid(), SIGKILL);
    worker.barrier();
  };
  ry::RunConfig config{.failure = {.max_failures = 1, .memory_percent = 1e12}};
  const ry::Result result = run_elastic<SharedProcesses>(scratch, room, {2, 3}, change, config);
  INFO(result.error());
  REQUIRE(result);
  check_sums(result.metrics());
  CHECK(result.metrics().at("world_size").as<std::int64_t>() == 2);
  CHECK(result.attempts().size() == 2);
}

TEST_CASE("Elastic: a run goes on with fewer workers where as many as before cannot be started again") {
  const Scratch scratch;
  const auto fail = [](ry::Worker& worker, std::int64_t step) {
    if (worker.attempt() == 0 && step == 30 && worker.rank() == 2) throw std::runtime_error{"a test"};
  };
  ry::Trainer<ry::SharedMemory, NarrowThreads> trainer{
      [fail](auto& worker) { add_all(worker, fail); },
      {.num_workers = {1, 3}, .capacity = [] { return 3; }, .capacity_interval = std::chrono::hours{1}},
      {.storage_path = scratch.path(),
       .failure = {.max_failures = 1, .memory_percent = 1e12},
       .progress = ry::Progress::quiet}};
  const ry::Result result = trainer.fit();
  INFO(result.error());
  REQUIRE(result);
  check_sums(result.metrics());
  CHECK(result.metrics().at("world_size").as<std::int64_t>() == NarrowGroup::most);
  REQUIRE(result.attempts().size() == 2);
  CHECK(result.attempts()[0].world_size == 3);
  CHECK(result.attempts()[1].world_size == NarrowGroup::most);
  CHECK(result.attempts()[1].begin_step >= 29);
}

TEST_CASE("Elastic: says so where there is no room for the least number of workers") {
  const Scratch scratch;
  const Room room{2};
  ry::RunConfig config{.failure = {.max_failures = 1}};
  config.start_timeout = std::chrono::milliseconds{300};
  CHECK_THROWS_WITH(run_elastic<SharedThreads>(
                        scratch, room, {3, 4}, [](ry::Worker&, std::int64_t) {}, config),
                    ContainsSubstring("no room for the 3 workers") && ContainsSubstring("capacity"));
  config.start_timeout = std::chrono::seconds{1};
  const auto change = [&room](ry::Worker& worker, std::int64_t step) {
    if (step != 30 || worker.rank() != 0) return;
    room.set(1);
    throw std::runtime_error{"a test"};
  };
  const ry::Result result = run_elastic<SharedThreads>(scratch, room, {2, 4}, change, config);
  CHECK_FALSE(result);
  CHECK_THAT(result.error(), ContainsSubstring("a test") && ContainsSubstring("no room for the 2 workers"));
}

TEST_CASE("Elastic: a run that has stopped for another size, and then finds no room, has failed and saved its state") {
  const Scratch scratch;
  std::atomic<int> num_answers{0};
  std::atomic<bool> is_changing{false};
  const auto capacity = [&] { return !is_changing ? 2 : num_answers++ == 0 ? 3 : 1; };
  const auto change = [&is_changing](ry::Worker& worker, std::int64_t step) {
    if (step != 30) return;
    is_changing = true;
    wait_for_resize(worker);
  };
  ry::Trainer<ry::SharedMemory, ry::Threads> trainer{
      [change](auto& worker) { add_all(worker, change); },
      {.num_workers = {2, 4}, .capacity = capacity, .capacity_interval = std::chrono::milliseconds{1}},
      {.storage_path = scratch.path(),
       .progress = ry::Progress::quiet,
       .start_timeout = std::chrono::milliseconds{500}}};
  const ry::Result result = trainer.fit();
  CHECK_FALSE(result);
  CHECK_THAT(result.error(), ContainsSubstring("no room for the 2 workers"));
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().step >= 30);
}

TEST_CASE("Elastic: a callback that throws when the size changes ends the run, and its state is saved") {
  const Scratch scratch;
  const Room room{3};
  const bool is_by_failure = GENERATE(false, true);
  const auto change = [&room, is_by_failure](ry::Worker& worker, std::int64_t step) {
    if (worker.attempt() != 0 || step != 30) return;
    worker.barrier();
    room.set(2);
    if (is_by_failure && worker.rank() == 2) throw std::runtime_error{"a test"};
    wait_for_resize(worker);
  };
  ry::RunConfig config{.failure = {.max_failures = 1, .memory_percent = 1e12}, .callbacks = {ThrowingListener{}}};
  const ry::Result result = run_elastic<SharedProcesses>(scratch, room, {2, 3}, change, config);
  CHECK_FALSE(result);
  CHECK_THAT(result.error(), ContainsSubstring("on_resize threw: no other size"));
  REQUIRE(result.checkpoint());
  CHECK(result.checkpoint()->manifest().step >= 29);
}

TEST_CASE("Elastic: a range that is none, and an interval of nothing, are refused by name") {
  const Scratch scratch;
  const Room room{2};
  const auto nothing = [](ry::Worker&, std::int64_t) {};
  CHECK_THROWS_WITH(run_elastic<SharedThreads>(scratch, room, {3, 2}, nothing), ContainsSubstring("{3, 2}"));
  CHECK_THROWS_WITH(run_elastic<SharedThreads>(scratch, room, {0, 2}, nothing), ContainsSubstring("at least one"));
  ry::Trainer<ry::Local, ry::Threads> trainer{[](ry::Worker&) {},
                                              {.num_workers = {1, 2}, .capacity_interval = std::chrono::seconds{0}},
                                              {.storage_path = scratch.path()}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("capacity_interval"));
}

TEST_CASE("Elastic: a source of capacity that throws is told of where workers cannot be started without its answer") {
  const Scratch scratch;
  std::atomic<int> num_asked{0};
  const auto capacity = [&num_asked]() -> int {
    if (num_asked++ > 0) throw std::runtime_error{"no answer"};
    return 2;
  };
  const auto run = [&](const auto& change, int max_failures) {
    ry::Trainer<ry::SharedMemory, ry::Threads> trainer{
        [change](auto& worker) { add_all(worker, change); },
        {.num_workers = {2, 4}, .capacity = capacity, .capacity_interval = std::chrono::milliseconds{1}},
        {.storage_path = scratch.path(),
         .failure = {.max_failures = max_failures},
         .progress = ry::Progress::quiet,
         .start_timeout = std::chrono::milliseconds{300}}};
    return trainer.fit();
  };
  const auto wait = [&num_asked](ry::Worker& /*worker*/, std::int64_t step) {
    const auto deadline = ry::Deadline::after(std::chrono::seconds{30});
    while (step == 30 && num_asked < 3 && !deadline.expired()) std::this_thread::yield();
  };
  CHECK(run(wait, 0).metrics().at("sum").as<std::int64_t>() == whole_sum);  // it trains on
  num_asked = 0;
  const ry::Result failed = run(
      [](ry::Worker& worker, std::int64_t step) {
        if (step == 30 && worker.rank() == 1) throw std::runtime_error{"a test"};
      },
      1);
  CHECK_THAT(failed.error(), ContainsSubstring("ScalingConfig::capacity threw: no answer"));
  num_asked = 1;
  CHECK_THROWS_WITH(run(wait, 0), ContainsSubstring("ScalingConfig::capacity threw: no answer"));
}

TEST_CASE("ElasticSize: by default there is room for as many workers as this process has cores") {
  const int num_cores = ry::detail::usable_cores();
  CHECK(ry::detail::ElasticSize{{.num_workers = {1, num_cores + 3}}}.ask() == num_cores);
  CHECK_FALSE(ry::detail::ElasticSize{{.num_workers = {num_cores + 1, num_cores + 3}}}.ask());
}

TEST_CASE("ElasticSize: keeps within its bounds, and tries again later what could not be started") {
  int room = 5;
  ry::detail::ElasticSize size{
      {.num_workers = {2, 4}, .capacity = [&room] { return room; }, .capacity_interval = std::chrono::hours{1}}};
  CHECK(size.ask() == 4);
  room = 3;
  CHECK(size.ask() == 3);
  room = 1;
  CHECK_FALSE(size.ask());
  room = 4;
  CHECK(size.shrink(4));
  CHECK(size.ask() == 3);
  CHECK_FALSE(size.look(ry::Deadline::Clock::now(), 3));  // too early
  CHECK(size.look(ry::Deadline::Clock::now() + std::chrono::hours{2}, 3) == 4);
  CHECK(size.shrink(3));
  CHECK_FALSE(size.shrink(2));
  ry::detail::ElasticSize fixed{{.num_workers = 3, .capacity = [] { return 1; }}};
  CHECK(fixed.ask() == 3);
  CHECK_FALSE(fixed.look(ry::Deadline::Clock::now() + std::chrono::hours{2}, 3));
  CHECK_FALSE(fixed.shrink(3));
}
