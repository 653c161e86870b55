// SPDX-License-Identifier: MIT
// One program of random operations, sizes, delays and an end at a random moment, on all ranks of SharedMemory.
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "support/run_ranks.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace ry = railyard;
using namespace std::chrono_literals;
using railyard_test::require;

namespace {

// All that a run consists of, drawn from the seed alone: equal on all ranks.
class Program {
 public:
  explicit Program(unsigned seed) : random_(seed) {
    size = 2 + draw(5);
    victim = draw(size);
    last_turn = 1 + draw(200);
    num_side_turns = draw(200);
    kill_after_us = 1 + draw(3000);
  }

  // From 0 up to, but not including limit.
  [[nodiscard]] int draw(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  // Small and large ones alike, also none.
  [[nodiscard]] std::size_t draw_count() {
    const unsigned magnitude = static_cast<unsigned>(draw(18));
    return static_cast<std::size_t>(draw((1 << magnitude) + 1));
  }

  int size = 0;
  int victim = 0;
  int last_turn = 0;  // what the victim does not live to see, or not to the end
  int num_side_turns = 0;
  int kill_after_us = 0;

 private:
  std::mt19937 random_;
};

// Numbers of a rank, in memory that the others see or in any.
class Numbers {
 public:
  Numbers(ry::SharedMemory& backend, std::size_t count, bool is_shared) : heap_(backend.heap()), count_(count) {
    if (is_shared && count > 0) shared_ = static_cast<std::int64_t*>(heap_->allocate(count * sizeof(std::int64_t)));
    if (shared_ == nullptr) own_.resize(count);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  ~Numbers() { heap_->deallocate(shared_); }

  void fill(std::int64_t value) { std::fill_n(data(), count_, value); }
  [[nodiscard]] ry::Buffer buffer() { return {data(), count_, ry::Dtype::i64, {}}; }
  void require_all(std::size_t begin, std::size_t end, std::int64_t value) {
    for (std::size_t i = begin; i < end; ++i) {
      require(data()[i] == value,
              [&] { return fmt::format("element {} of {} is {}, not {}", i, count_, data()[i], value); });
    }
  }

 private:
  [[nodiscard]] std::int64_t* data() { return shared_ != nullptr ? shared_ : own_.data(); }

  std::shared_ptr<ry::detail::Heap> heap_;
  std::size_t count_;
  std::int64_t* shared_ = nullptr;
  std::vector<std::int64_t> own_{};
};

// One rank's run of a program: operations in the one thread, exchanges of memory on the side line in another.
class Run {
 public:
  Run(ry::WorkerLink& link, unsigned seed)
      : program_(seed),
        own_(seed + 1 + static_cast<unsigned>(link.world().rank)),
        link_(&link),
        rank_(link.world().rank),
        backend_(ry::SharedMemory::connect({}, link.world(), link.store(), ry::Deadline::after(60s))) {}

  // Returns when the victim is gone; the victim of threads returns as well, that of processes never.
  void run(bool is_process) {
    std::exception_ptr side_thrown;
    std::thread side{[&] {
      try {
        for (int turn = 0; turn < program_.num_side_turns; ++turn)
          exchange(*backend_->host_memory()->side(ry::Deadline::never()), side_cell_, turn);
      } catch (...) {
        side_thrown = std::current_exception();
      }
    }};
    std::exception_ptr thrown;
    try {
      for (turn_ = 0; turn_ < program_.last_turn || rank_ != program_.victim || is_process; ++turn_) {
        if (turn_ == program_.last_turn && rank_ == program_.victim) arm_kill();
        take_turn();
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    side.join();
    for (const auto& one : {thrown, side_thrown}) {
      if (one) expect_loss(one);
    }
  }

 private:
  // Lets this process be killed at a moment that nothing in it decides.
  void arm_kill() const {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    timer_t timer{};
    require(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "a timer");
    itimerspec when{};
    when.it_value.tv_nsec = program_.kill_after_us * 1000L;
    require(::timer_settime(timer, 0, &when, nullptr) == 0, "a time");
  }

  void expect_loss(const std::exception_ptr& thrown) const {
    try {
      std::rethrow_exception(thrown);
    } catch (const ry::CollectiveError& error) {
      // The two of a message may still be at it when the others, who know nothing of it, have met the loss behind it.
      require((turn_ >= program_.last_turn || in_message_) && error.blamed() == std::vector<int>{program_.victim},
              fmt::format("rank {} to blame from turn {} on, not in turn {}: {}", program_.victim, program_.last_turn,
                          turn_, error.what()));
    }
  }

  void take_turn() {
    in_message_ = false;
    const int kind = program_.draw(8);
    const std::size_t count = program_.draw_count();
    const int root = program_.draw(program_.size);
    const auto size = static_cast<std::size_t>(program_.size);
    if (own_() % 16 == 0) {
      static_cast<void>(link_->store().get("nothing", ry::Deadline::after(std::chrono::microseconds{own_() % 3000})));
    }
    Numbers few{*backend_, count, own_() % 2 == 0};
    Numbers many{*backend_, count * size, own_() % 2 == 0};
    few.fill(turn_ + rank_);
    many.fill(turn_ + rank_);
    const std::int64_t sum = program_.size * turn_ + program_.size * (program_.size - 1) / 2;
    if (kind == 0) {
      backend_->barrier(within_a_minute());
    } else if (kind == 1) {
      exchange(*backend_->host_memory(), cell_, turn_);
    } else if (kind == 2) {
      backend_->all_reduce(few.buffer(), ry::ReduceOp::sum, within_a_minute());
      few.require_all(0, count, sum);
    } else if (kind == 3) {
      backend_->reduce_scatter(many.buffer(), few.buffer(), ry::ReduceOp::sum, within_a_minute());
      few.require_all(0, count, sum);
    } else if (kind == 4) {
      backend_->broadcast(few.buffer(), root, within_a_minute());
      few.require_all(0, count, turn_ + root);
    } else if (kind == 5) {
      pass_on(few, count, root);
    } else {
      Numbers parts{*backend_, count * size, own_() % 2 == 0};
      if (kind == 6) backend_->all_gather(few.buffer(), parts.buffer(), within_a_minute());
      if (kind == 7) backend_->all_to_all(many.buffer(), parts.buffer(), within_a_minute());
      for (std::size_t part = 0; part < size; ++part) {
        parts.require_all(part * count, (part + 1) * count, turn_ + static_cast<int>(part));
      }
    }
  }

  // A message from the root to the rank after it, of which nobody else knows.
  void pass_on(Numbers& numbers, std::size_t count, int root) {
    const int to = (root + 1) % program_.size;
    in_message_ = true;
    if (rank_ == root) backend_->send(numbers.buffer(), to, within_a_minute());
    if (rank_ != to) return;
    backend_->receive(numbers.buffer(), root, within_a_minute());
    numbers.require_all(0, count, turn_ + root);
  }

  // Each rank shows a cell, and adds up those of all.
  void exchange(ry::HostMemory& memory, const std::shared_ptr<std::int64_t>& cell, int turn) const {
    *cell = turn + rank_;
    const std::uint64_t place = memory.place_of(cell.get());
    memory.begin(ry::Purpose::gradients, std::as_bytes(std::span{&place, 1}), 2, ry::Deadline::after(60s));
    std::int64_t sum = 0;
    for (int rank = 0; rank < program_.size; ++rank) {
      std::uint64_t theirs = 0;
      std::memcpy(&theirs, memory.record_of(rank).data(), sizeof theirs);
      sum += *reinterpret_cast<const std::int64_t*>(memory.at(rank, theirs));
    }
    memory.step({});
    require(sum == program_.size * turn + program_.size * (program_.size - 1) / 2, "the sum of all cells");
  }

  [[nodiscard]] std::shared_ptr<std::int64_t> make_cell() const {
    const auto heap = backend_->heap();
    auto* memory = static_cast<std::int64_t*>(heap->allocate(sizeof(std::int64_t)));
    require(memory != nullptr, "memory for a cell");
    return {memory, [heap](std::int64_t* freed) { heap->deallocate(freed); }};
  }

  [[nodiscard]] static ry::Call within_a_minute() { return {.deadline = ry::Deadline::after(60s)}; }

  Program program_;
  std::mt19937 own_;  // draws what is no business of the other ranks
  ry::WorkerLink* link_;
  int rank_;
  std::unique_ptr<ry::SharedMemory> backend_;
  std::shared_ptr<std::int64_t> cell_ = make_cell();  // not freed while another rank may look at it
  std::shared_ptr<std::int64_t> side_cell_ = make_cell();
  int turn_ = 0;
  bool in_message_ = false;
};

// Known ones and new ones, or the one that has failed elsewhere.
std::vector<unsigned> seeds() {
  if (const char* seed = std::getenv("RAILYARD_STRESS_SEED")) return {static_cast<unsigned>(std::stoul(seed))};
  std::random_device device;
  return {1, 2, 3, device(), device()};
}

template <class Scaling>
std::vector<ry::WorkerExit> run_program(unsigned seed) {
  constexpr bool is_process = Scaling::reach != ry::Reach::process;
  return railyard_test::run_group_to_end<Scaling>(Program{seed}.size, [seed](ry::WorkerLink& link) {
    Run{link, seed}.run(is_process);
  });
}

}  // namespace

TEST_CASE("SharedMemory: random operations, sizes, delays and a kill leave nobody waiting", "[stress]") {
  for (const unsigned seed : seeds()) {
    const auto exits = run_program<ry::Processes>(seed);
    for (std::size_t rank = 0; rank < exits.size(); ++rank) {
      INFO("RAILYARD_STRESS_SEED=" << seed << ", rank " << rank << ": " << exits[rank].message);
      const bool is_victim = static_cast<int>(rank) == Program{seed}.victim;
      CHECK(exits[rank].kind == (is_victim ? ry::WorkerExit::Kind::signalled : ry::WorkerExit::Kind::returned));
    }
  }
}

TEST_CASE("SharedMemory: random operations of threads, of which one leaves, leave nobody waiting", "[stress]") {
  for (const unsigned seed : seeds()) {
    const auto exits = run_program<ry::Threads>(seed);
    for (std::size_t rank = 0; rank < exits.size(); ++rank) {
      INFO("RAILYARD_STRESS_SEED=" << seed << ", rank " << rank << ": " << exits[rank].message);
      CHECK(exits[rank].kind == ry::WorkerExit::Kind::returned);
    }
  }
}
