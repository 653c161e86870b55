// SPDX-License-Identifier: MIT
// Workers that wait for another program when their run ends.
#include "railyard/train/detail/worker_waits.hpp"

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/draft_file.hpp"

#include "railyard/core/deadline.hpp"

#include "support/catch.hpp"
#include "unit/train/toy_training.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace ry = railyard;
using namespace toy;

namespace {

// Rank 0 waits for a cache that this process, as another one would, does not finish; then rank 1 does something.
// Returns what rank 0 was told, and the result.
template <class Then>
std::pair<std::string, ry::Result> wait_for_cache(const Scratch& scratch, const Then& then) {
  const std::string file = (scratch.path() / "samples").string();
  const ry::detail::DraftFile unfinished{file};
  const auto cached = ry::Dataset::from_columns({{"x", std::vector<std::int64_t>{1, 2}}}).cache(file);
  std::atomic<bool> has_begun{false};
  std::string told;
  ry::Result result = run_in<ry::SharedMemory, ry::Threads>(scratch, 2, [&](ry::Worker& worker) {
    if (worker.rank() == 1) {
      const auto deadline = ry::Deadline::after(std::chrono::seconds{60});
      while (!has_begun.load() && !deadline.expired()) std::this_thread::yield();
      then();
      return worker.barrier();
    }
    has_begun.store(true);
    try {
      static_cast<void>(cached.count());
    } catch (const std::exception& error) {
      told = error.what();
      throw;
    }
  });
  return {told, std::move(result)};
}

}  // namespace

TEST_CASE("Waits of a worker for a cache end with its group, and name who makes it") {
  const Scratch scratch;
  const auto [told, result] = wait_for_cache(scratch, [] { throw std::runtime_error{"as planned"}; });
  CHECK_THAT(result.error(), ContainsSubstring("as planned"));
  CHECK_THAT(told, ContainsSubstring("process " + std::to_string(::getpid()) + " writes the cache " +
                                     (scratch.path() / "samples").string()) &&
                       ContainsSubstring("nobody wants it any more: the group of workers has ended: rank 1") &&
                       ContainsSubstring("as planned"));
}

TEST_CASE("Waits of a worker for a cache end when the run is asked to end") {
  const Scratch scratch;
  const auto [told, result] = wait_for_cache(scratch, [] { ::kill(::getpid(), SIGTERM); });
  CHECK_THAT(result.error(), ContainsSubstring("interrupted by SIGTERM"));
  CHECK(result.exit_status() == 128 + SIGTERM);
  CHECK_THAT(told, ContainsSubstring("nobody wants it any more: the run was asked to end"));
}
