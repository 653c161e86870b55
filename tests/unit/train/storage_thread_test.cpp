// SPDX-License-Identifier: MIT
#include "railyard/train/detail/storage_thread.hpp"

#include "support/catch.hpp"
#include "unit/train/hanging_files.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include <sys/resource.h>

namespace ry = railyard;
using namespace std::chrono_literals;
using ry::detail::StorageThread;

namespace {

constexpr std::size_t any_size = std::numeric_limits<std::size_t>::max();

// Holds whoever passes until it is opened.
struct Gate {
  std::atomic<bool> is_open{false};
  std::atomic<int> num_waiting{0};
  void pass() {
    ++num_waiting;
    while (!is_open) std::this_thread::sleep_for(1ms);
    --num_waiting;
  }
};

std::ptrdiff_t num_threads() {
  return std::distance(std::filesystem::directory_iterator{"/proc/self/task"}, std::filesystem::directory_iterator{});
}

// How often this thread has waited for anything.
long num_waits() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

TEST_CASE("StorageThread: does everything in order, before it is destroyed at the latest") {
  std::vector<int> done;
  {
    StorageThread thread;
    for (int at = 0; at < 1000; ++at) REQUIRE(thread.post(0, any_size, [&done, at] { done.push_back(at); }));
  }
  REQUIRE(done.size() == 1000);
  for (int at = 0; at < 1000; ++at) CHECK(done[static_cast<std::size_t>(at)] == at);
}

TEST_CASE("StorageThread: waits for room once in vain, and again when half of it is free") {
  const auto gate = std::make_shared<Gate>();
  StorageThread thread{{.room = 1ms}};
  CHECK(thread.post(5000, 8000, [gate] { gate->pass(); }));  // whatever its size
  CHECK(thread.post(2000, 8000, [] {}));
  CHECK_FALSE(thread.post(2000, 8000, [] {}));
  CHECK_FALSE(thread.post(2000, 8000, [] {}));
  CHECK(thread.post(2000, 16000, [] {}));
  gate->is_open = true;
  CHECK(thread.drain());
  CHECK(thread.post(2000, 8000, [] {}));
}

TEST_CASE("StorageThread: leaves no thread for a fork, unless storage holds it, and goes on afterwards") {
  const auto before = num_threads();
  StorageThread thread{{.rest = 30s}};
  std::atomic<int> num_done{0};
  for (const int number : {1, 2}) {
    CHECK(thread.post(0, any_size, [&num_done] { ++num_done; }));
    thread.rest();
    CHECK(awaits([&] { return num_threads() <= before; }));  // the system lists one for a moment after its end
    CHECK(thread.drain());
    CHECK(num_done == number);
  }
  thread.rest();
  const auto gate = std::make_shared<Gate>();
  StorageThread held{{.rest = 50ms}};
  CHECK(held.post(0, any_size, [gate] { gate->pass(); }));
  CHECK(held.post(0, any_size, [&num_done] { ++num_done; }));
  CHECK(awaits([&] { return gate->num_waiting == 1; }));
  held.rest();
  CHECK(gate->num_waiting == 1);
  gate->is_open = true;
  CHECK(awaits([&] { return num_threads() <= before; }));  // it does nothing else until it is to go on
  CHECK(num_done == 2);
  SECTION("until then") { held.go_on(); }
  SECTION("or until there is more to be done") {
    CHECK(held.post(0, any_size, [] {}));
  }
  held.await();
  CHECK(num_done == 3);
}

TEST_CASE("StorageThread: a fork does not wait for what was given up") {
  const auto gate = std::make_shared<Gate>();
  StorageThread thread{{.rest = 30s, .end = 50ms}};
  CHECK(thread.post(0, any_size, [gate] { gate->pass(); }));
  CHECK(awaits([&] { return gate->num_waiting == 1; }));
  CHECK_FALSE(thread.drain());
  thread.rest();
  CHECK(gate->num_waiting == 1);
  thread.go_on();
  gate->is_open = true;
}

TEST_CASE("StorageThread: what has more room does not make what has less wait for it again") {
  const auto gate = std::make_shared<Gate>();
  StorageThread thread{{.room = 1ms}};
  CHECK(thread.post(5000, 8000, [gate] { gate->pass(); }));
  CHECK(thread.post(2000, 8000, [] {}));
  CHECK(awaits([&] { return gate->num_waiting == 1; }));
  const auto before = num_waits();
  for (int at = 0; at < 100; ++at) {
    CHECK_FALSE(thread.post(2000, 8000, [] {}));
    CHECK(thread.post(0, 100'000, [] {}));
  }
  CHECK(num_waits() - before < 50);
  gate->is_open = true;
}

TEST_CASE("StorageThread: one who waits for what was asked for so far is let go when that is given up") {
  const auto gate = std::make_shared<Gate>();
  StorageThread thread{{.end = 50ms}};
  CHECK(thread.post(0, any_size, [gate] { gate->pass(); }));
  CHECK(awaits([&] { return thread.held_for() > 0ns; }));
  std::thread other{[&] { thread.await(); }};
  CHECK_FALSE(thread.drain());
  other.join();
  CHECK_FALSE(thread.post(0, any_size, [] {}));
  gate->is_open = true;
}

TEST_CASE("StorageThread: is waited for in parts, and given up when nothing has come to be done for so long") {
  const auto gate = std::make_shared<Gate>();
  StorageThread long_waiter{{.end = 1h}};
  CHECK(long_waiter.post(0, any_size, [gate] { gate->pass(); }));
  for (int part = 0; part < 3; ++part) CHECK_FALSE(long_waiter.settles(ry::Deadline::after(1ms)));
  StorageThread short_waiter{{.end = 50ms}};
  CHECK(short_waiter.post(0, any_size, [gate] { gate->pass(); }));
  CHECK(awaits([&] { return short_waiter.settles(ry::Deadline::after(1ms)); }));
  CHECK(short_waiter.has_given_up());
  gate->is_open = true;
  CHECK(awaits([&] { return long_waiter.settles(ry::Deadline::after(1ms)); }));
  CHECK_FALSE(long_waiter.has_given_up());
}
