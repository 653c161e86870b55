// SPDX-License-Identifier: MIT
#include "railyard/train/lockstep.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/local.hpp"
#include "railyard/workers/threads.hpp"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

using Numbers = std::vector<int>;

// Gives each value once, as a stream does, and nothing that a range-for loop does not ask for.
struct Stream {
  struct End {};
  struct Iterator {
    Stream* stream = nullptr;
    std::unique_ptr<int> operator*() const { return std::make_unique<int>(stream->next); }
    Iterator& operator++() {
      ++stream->next;
      return *this;
    }
    bool operator!=(const End& /*end*/) const { return stream->next < stream->end_at; }
  };
  Iterator begin() { return {this}; }
  static End end() { return {}; }
  int next = 0;
  int end_at = 0;
};

std::uint64_t one_sample(int /*batch*/) { return 1; }

template <class F>
std::string error_of(int num_workers, F function) {
  const Scratch scratch;
  return run_in<ry::Local, ry::Threads>(scratch, num_workers, std::move(function)).error();
}

void expect_that(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

}  // namespace

TEST_CASE("lockstep: without any exchange of gradients all loops end together, in every epoch") {
  for (const int num_workers : {1, 2, 3, 5}) {
    CHECK(error_of(num_workers, [](ry::Worker& worker) {
            Numbers batches;
            for (int i = 0; i <= worker.rank(); ++i) batches.push_back(10 * i);
            for (int epoch = 0; epoch < 2; ++epoch) {
              Numbers seen;
              for (auto& [batch, size] : ry::lockstep(worker, batches, one_sample)) {
                const bool is_repeat = seen.size() >= batches.size();
                expect_that(size == (is_repeat ? 0U : 1U) && worker.step_samples() == size, "weight");
                expect_that(batch == (is_repeat ? batches.back() : batches[seen.size()]), "batch");
                seen.push_back(batch);
              }
              expect_that(seen.size() == static_cast<std::size_t>(worker.world_size()), "steps");
            }
            expect_that(worker.steps() == 2 * static_cast<std::uint64_t>(worker.world_size()), "steps that have ended");
          }) == "");
  }
}

TEST_CASE("lockstep: reads a stream of batches that can only be moved, each once and one ahead") {
  CHECK(error_of(2, [](ry::Worker& worker) {
          Stream stream{0, 1 + 2 * worker.rank()};
          Numbers seen;
          const auto size_of = [](const std::unique_ptr<int>& batch) { return static_cast<std::uint64_t>(*batch + 1); };
          for (auto& [batch, size] : ry::lockstep(worker, stream, size_of)) {
            seen.push_back(*batch);
            expect_that(stream.next == std::min(static_cast<int>(seen.size()) + 1, stream.end_at), "one ahead");
          }
          expect_that(seen == (worker.rank() == 0 ? Numbers{0, 0, 0} : Numbers{0, 1, 2}), "batches");
        }) == "");
}

TEST_CASE("lockstep: a loop that all ranks leave early can be followed by another") {
  CHECK(error_of(2, [](ry::Worker& worker) {
          for (int epoch = 0; epoch < 2; ++epoch) {
            int steps = 0;
            for (auto& [batch, size] : ry::lockstep(worker, Numbers{1, 2, 3, 4}, one_sample)) {
              expect_that(batch == ++steps && size == 1, "batch");
              if (steps == 2) worker.request_stop();
              if (worker.should_stop()) break;
            }
            expect_that(steps == (epoch == 0 ? 2 : 1), "steps");
          }
        }) == "");
}

TEST_CASE("lockstep: a rank without any batch is named, and nobody waits for it") {
  const auto error = error_of(3, [](ry::Worker& worker) {
    for (auto& [batch, size] : ry::lockstep(worker, Numbers(worker.rank() == 1 ? 0 : 2), one_sample)) {
      static_cast<void>(batch + static_cast<int>(size));
    }
  });
  CHECK_THAT(error, ContainsSubstring("rank 1 of 3") && ContainsSubstring("lockstep() on rank 1/3") &&
                        ContainsSubstring("no batch at all") && ContainsSubstring("at least one batch"));
}
