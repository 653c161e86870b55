// SPDX-License-Identifier: MIT
// What a restart finds of the memory that ranks share: also where a backend is given it by way of other stores.
#include "railyard/train/failure_config.hpp"

#include "support/catch.hpp"
#include "unit/train/quick_trainer.hpp"

#include "railyard/collectives/shared_memory.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/workers/processes.hpp"

#include <csignal>
#include <cstring>
#include <stdexcept>

#include <sys/resource.h>

namespace ry = railyard;

#if !defined(__SANITIZE_THREAD__)  // which has eight pages of its own for each that is written to
namespace {

constexpr std::size_t block_bytes = std::size_t{8} << 20U;
constexpr int num_pages = block_bytes / 4096;

// Writes to memory that all ranks see, and returns how many of its pages the system had to bring.
long faults_of_writing(ry::Worker& worker) {
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const auto& heap = worker.host_memory()->heap();
  void* block = heap->allocate(block_bytes);
  if (block == nullptr) throw std::runtime_error{"there is no memory"};
  const long before = faults();
  std::memset(block, 1, block_bytes);
  heap->deallocate(block);
  return faults() - before;
}

}  // namespace

TEST_CASE("Restart: a worker finds the memory that its rank has shared before, without page faults") {
  const Scratch scratch;
  const ry::Result result = run_in<ry::SharedMemory, ry::Processes>(
      scratch, 2,
      [](ry::Worker& worker) {
        worker.report({{"faults", faults_of_writing(worker)}, {"attempt", worker.attempt()}});
        worker.barrier();
        if (worker.attempt() == 0 && worker.rank() == 1) ::raise(SIGKILL);
        worker.barrier();
      },
      {.failure = {.max_failures = 1, .memory_percent = 0}});
  INFO(result.error());
  REQUIRE(result);
  REQUIRE(result.metrics().at("attempt").as<std::int64_t>() == 1);
  CHECK(result.metrics().at("faults").as<std::int64_t>() < num_pages / 4);
}
#endif
