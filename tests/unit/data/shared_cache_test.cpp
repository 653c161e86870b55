// SPDX-License-Identifier: MIT
// A cache in memory that forked processes share.
#include "railyard/data/detail/sample_shelf.hpp"

#include "railyard/data/dataset.hpp"

#include "support/catch.hpp"
#include "unit/data/feed_host.hpp"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace ry = railyard;
using ry::detail::SampleShelf;
using test::counted_stream;
using test::FedSamples;
using test::read_alone;
using test::SharedCount;

namespace {

// Runs in so many processes at once, and counts those in which it returns true.
std::size_t count_holding(std::size_t processes, const std::function<bool(std::size_t)>& function) {
  std::vector<pid_t> all;
  for (std::size_t at = 0; at < processes; ++at) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool holds = false;
      try {
        holds = function(at);
      } catch (...) {  // which is not true
      }
      ::_exit(holds ? 0 : 1);
    }
    all.push_back(child);
  }
  std::size_t holding = 0;
  for (const pid_t child : all) {
    int status = -1;
    ::waitpid(child, &status, 0);
    holding += status == 0 ? 1 : 0;
  }
  return holding;
}

FedSamples cached_samples(const ry::Dataset& cached) { return read_alone(cached, {.global_batch_size = 16}); }

}  // namespace

TEST_CASE("cache in memory: forked processes read the samples once, and later ones find them") {
  for (const std::size_t count : {0U, 1U, 5000U}) {
    SharedCount made;
    const auto source = counted_stream(count, made).filter([](const ry::Sample& in) { return in.id() % 3 != 1; });
    const FedSamples expected = cached_samples(source.cache());
    const auto cached = source.cache();
    *made = 0;
    CAPTURE(count);
    CHECK(count_holding(4, [&](std::size_t) { return cached_samples(cached) == expected; }) == 4);
    CHECK((*made).load() == count);
    CHECK(count_holding(2, [&](std::size_t) { return cached_samples(cached) == expected; }) == 2);
    CHECK((*made).load() == count);
    CHECK(cached_samples(cached) == expected);  // by what the process reads itself that has made the cache
    CHECK((*made).load() == 2 * count);
    CHECK(count_holding(2, [&](std::size_t) { return cached_samples(cached) == expected; }) == 2);
    CHECK((*made).load() == 2 * count);
  }
}

TEST_CASE("cache in memory: the next process goes on where the one that reads is killed or fails") {
  for (const bool is_killed : {true, false}) {
    SharedCount made;
    SharedCount failures;
    const auto source = counted_stream(3000, made).filter([&](const ry::Sample& in) {
      if (in.id() == 2000 && (*failures)++ == 0) {
        if (is_killed) ::raise(SIGKILL);
        throw std::runtime_error{"no good"};
      }
      return true;
    });
    const auto cached = source.cache();
    CAPTURE(is_killed);
    CHECK(count_holding(4, [&](std::size_t) { return cached_samples(cached).size() == 3000; }) == 3);
    CHECK(((*made).load() > 5000 && (*made).load() <= 6000));  // once in vain, and once
  }
}

TEST_CASE("cache in memory: what a process writes to its samples, others do not see") {
  const auto cached = ry::Dataset::from_columns({{"n", std::vector<std::int64_t>(1000, 7)}}).cache();
  const auto sum = [&] {
    std::int64_t all = 0;
    for (const std::uint64_t place : {0U, 500U, 999U}) {
      const std::uint64_t places[1] = {place};
      all += cached.node()->read(places, {}).column("n").values<std::int64_t>()[0];
    }
    return all;
  };
  CHECK(count_holding(1, [&](std::size_t) {
          const std::uint64_t places[1] = {500};
          const ry::Block block = cached.node()->read(places, {});
          const_cast<std::int64_t&>(block.column("n").values<std::int64_t>()[0]) = 1000;
          return sum() == 7 + 1000 + 7;
        }) == 1);
  CHECK(count_holding(2, [&](std::size_t) { return sum() == 21; }) == 2);
}

TEST_CASE("SampleShelf: nobody waits for a process that makes nothing, or has died and is not buried yet") {
  const ry::Dataset numbers = ry::Dataset::from_columns({{"n", std::vector<std::int64_t>(10, 7)}});
  const std::uint64_t places[2] = {3, 4};
  const ry::Block parts[1] = {numbers.node()->read(places, {})};
  const auto schema = numbers.node()->schema();
  const SampleShelf shelf;
  CHECK(!shelf.has_use());  // for the process that has made it
  int taken[2];
  REQUIRE(::pipe(taken) == 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const SampleShelf::Turn turn{shelf};
    static_cast<void>(!::write(taken[1], "x", 1));
    while (true) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(taken[0], &byte, 1) == 1);
  CHECK(count_holding(1, [&](std::size_t) {
          const SampleShelf::Turn turn{shelf, std::chrono::milliseconds{50}};
          return shelf.has_use() && !turn.samples(schema) && !turn.leave(parts);
        }) == 1);
  ::kill(holder, SIGKILL);
  CHECK(count_holding(2, [&](std::size_t) {
          const SampleShelf::Turn turn{shelf};
          return turn.samples(schema) || turn.leave(parts);
        }) == 2);
  CHECK(count_holding(1, [&](std::size_t) {
          const SampleShelf::Turn turn{shelf};
          const auto samples = turn.samples(schema);
          return samples && samples->rows() == 2 && samples->ids()[1] == 4 &&
                 samples->column("n").values<std::int64_t>()[1] == 7;
        }) == 1);
  ::waitpid(holder, nullptr, 0);
  ::close(taken[0]);
  ::close(taken[1]);
}
