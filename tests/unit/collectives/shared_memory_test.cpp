// SPDX-License-Identifier: MIT
// What the laws of Backend do not say about SharedMemory; those are in tests/conformance.
#include "railyard/collectives/shared_memory.hpp"
#include "railyard/collectives/detail/vector_reduce.hpp"
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support/catch.hpp"
#include "support/memory_flags.hpp"
#include "support/memory_group.hpp"
#include "support/repeated_memory.hpp"
#include "support/run_ranks.hpp"
#include "support/sanitizers.hpp"
#include "support/two_cores.hpp"
#include "support/values.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

namespace ry = railyard;
using namespace std::chrono_literals;
using railyard_test::require;
using railyard_test::run_group;

namespace {

std::unique_ptr<ry::SharedMemory> join(ry::WorkerLink& link) {
  return ry::SharedMemory::connect({}, link.world(), link.store(), ry::Deadline::after(60s));
}

std::ptrdiff_t count_entries(const char* directory) {
  return std::distance(std::filesystem::directory_iterator{directory}, std::filesystem::directory_iterator{});
}

// Of the size of an arena, which nothing else has.
std::size_t count_large_mappings() {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t dash = line.find('-');
    const auto begin = std::stoull(line.substr(0, dash), nullptr, 16);
    const auto end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (((end - begin) >> 30U) == ry::detail::choose_arena_size(0, 3) >> 30U) ++found;
  }
  return found;
}

// Buffers of every dtype, from the arena or not, and of sizes around the borders between the ways through the backend.
template <class S>
void reduce_everywhere() {
  run_group<S>(3, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    const int rank = link.world().rank;
    for (const std::size_t size_bytes : {16384U, 16388U, 131072U, 131076U, 600000U}) {
      // On every rank, on none, or on some: then the others look at those ranks' stages.
      for (int in_arena = 0; in_arena < 8; ++in_arena) {
        const std::size_t count = size_bytes / sizeof(float);
        std::vector<float> own(count);
        const bool is_in_arena = (in_arena >> rank & 1) != 0;
        auto* data = is_in_arena ? static_cast<float*>(backend->heap()->allocate(size_bytes)) : own.data();
        require(data != nullptr, "memory of the arena");
        for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(rank));
        backend->all_reduce({data, count, ry::Dtype::f32, {}}, ry::ReduceOp::sum, {});
        for (std::size_t i = 0; i < count; ++i) {
          require(data[i] == static_cast<float>(3 * (i % 1000) + 3),
                  [&] { return fmt::format("element {} of {}", i, count); });
        }
        if (is_in_arena) backend->heap()->deallocate(data);
      }
    }
  });
}

// What a rank gives, of which no half type can keep all of the sums in between, and no type adds in any order alike.
template <class T>
T given(int rank, std::size_t i) {
  if constexpr (std::is_same_v<T, float>) return 1.0F / static_cast<float>(i * 3 + static_cast<std::size_t>(rank) + 1);
  const float whole = std::is_same_v<T, ry::Float16> ? 2048.0F : 256.0F;
  return T{rank == 0 ? whole + 2.0F * static_cast<float>(i % 100) : 1.0F};
}

// Sums private values and such in the arena, and compares their bits with those of a loop over the ranks.
template <class T>
void sum_by_rank(ry::SharedMemory& backend, int rank) {
  for (const std::size_t count : {37U, 5000U, 100'003U}) {
    std::vector<T> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const float first = static_cast<float>(given<T>(0, i));
      expected.push_back(T{first + static_cast<float>(given<T>(1, i)) + static_cast<float>(given<T>(2, i))});
    }
    std::vector<T> own(count);
    auto* shared = static_cast<T*>(backend.heap()->allocate(count * sizeof(T)));
    for (T* data : {own.data(), shared}) {
      for (std::size_t i = 0; i < count; ++i) data[i] = given<T>(rank, i);
      backend.all_reduce({data, count, ry::dtype_of<T>, {}}, ry::ReduceOp::sum, {});
      require(std::memcmp(data, expected.data(), count * sizeof(T)) == 0,
              [&] { return fmt::format("the bits of {} x {}", count, ry::name_of(ry::dtype_of<T>)); });
    }
    backend.heap()->deallocate(shared);
  }
}

}  // namespace

TEST_CASE("SharedMemory: sums are right wherever the buffers of the ranks lie") {
  reduce_everywhere<ry::Threads>();
  reduce_everywhere<ry::Processes>();
}

TEST_CASE("SharedMemory: the place of a buffer does not change the bits of a sum") {
  run_group<ry::Processes>(3, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    const std::size_t count = 100'003;
    std::vector<float> own(count);
    auto* shared = static_cast<float*>(backend->heap()->allocate(count * sizeof(float)));
    for (std::size_t i = 0; i < count; ++i) {
      own[i] = shared[i] = 1.0F / static_cast<float>(i * 3 + static_cast<std::size_t>(link.world().rank) + 1);
    }
    backend->all_reduce(ry::buffer_of(own), ry::ReduceOp::average, {});
    backend->all_reduce({shared, count, ry::Dtype::f32, {}}, ry::ReduceOp::average, {});
    require(std::memcmp(own.data(), shared, count * sizeof(float)) == 0, "equal bits");
    backend->heap()->deallocate(shared);
    // In pieces of another size: one element at a time.
    for (std::size_t i = 0; i < count; i += 9973) {
      float one = 1.0F / static_cast<float>(i * 3 + static_cast<std::size_t>(link.world().rank) + 1);
      backend->all_reduce(ry::buffer_of_value(one), ry::ReduceOp::average, {});
      require(one == own[i], "equal bits of one element");
    }
  });
}

TEMPLATE_TEST_CASE("SharedMemory: whoever comes first, values are added in the order of ranks, half types in f32", "",
                   ry::Threads, ry::Processes) {
  run_group<TestType>(3, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    const int rank = link.world().rank;
    std::array<int, 3> order{0, 1, 2};
    do {
      const auto key = [&order](int of) { return fmt::format("{} comes in {}", of, fmt::join(order, ", ")); };
      const auto place = std::find(order.begin(), order.end(), rank);
      if (place != order.begin()) {
        require(link.store().get(key(*(place - 1)), ry::Deadline::after(60s)).has_value(), "the one before comes");
      }
      link.store().set(key(rank), "");
      sum_by_rank<float>(*backend, rank);
      sum_by_rank<ry::Float16>(*backend, rank);
      sum_by_rank<ry::BFloat16>(*backend, rank);
    } while (std::next_permutation(order.begin(), order.end()));
  });
}

TEMPLATE_TEST_CASE("SharedMemory: eight ranks on two cores move", "", ry::Threads, ry::Processes) {
  const railyard_test::TwoCores two_cores;
  run_group<TestType>(8, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    // A rank that kept its core while it waits would take a slice of the scheduler's time for each of them.
    const ry::Call in_time{.deadline = ry::Deadline::after(60s)};
    for (int turn = 0; turn < railyard_test::fewer(20'000); ++turn) backend->barrier(in_time);
  });
}

TEMPLATE_TEST_CASE("SharedMemory: its arenas are given huge pages where the kernel has some", "", ry::Threads,
                   ry::Processes) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled")) {
    WARN("not tested: this kernel has no huge pages to give");
    return;
  }
  run_group<TestType>(2, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    constexpr std::size_t size_bytes = std::size_t{8} << 20U;
    auto* memory = static_cast<std::byte*>(backend->heap()->allocate(size_bytes));
    require(asks_for_huge_pages(memory + size_bytes / 2), "the kernel was asked for them");
    backend->heap()->deallocate(memory);
  });
}

TEST_CASE("SharedMemory: ranks read and write each other's memory in an exchange") {
  const auto body = [](ry::WorkerLink& link) {
    const auto backend = join(link);
    ry::HostMemory& memory = *backend->host_memory();
    const int rank = link.world().rank;
    auto* values = static_cast<std::int64_t*>(memory.heap()->allocate(2 * sizeof(std::int64_t)));
    for (std::int64_t turn = 0; turn < 100; ++turn) {
      values[0] = turn + rank;
      const std::uint64_t place = memory.place_of(values);
      require(place != 0, "the others see the arena");
      memory.begin(ry::Purpose::gradients, std::as_bytes(std::span{&place, 1}), 2, ry::Deadline::after(60s));
      std::int64_t sum = 0;
      for (int other = 0; other < 3; ++other) {
        std::uint64_t theirs = 0;
        require(memory.record_of(other).size() == sizeof theirs, "the size of a record");
        std::memcpy(&theirs, memory.record_of(other).data(), sizeof theirs);
        auto* at = reinterpret_cast<std::int64_t*>(memory.at(other, theirs));
        sum += at[0];
        if (other == (rank + 1) % 3) at[1] = turn * 10 + rank;
      }
      memory.step({});
      require(sum == 3 * turn + 3, "the sum of what all have written");
      require(values[1] == turn * 10 + (rank + 2) % 3, "what the rank before has written");
    }
    memory.heap()->deallocate(values);
    backend->barrier({});
  };
  run_group<ry::Threads>(3, body);
  run_group<ry::Processes>(3, body);
}

TEST_CASE("SharedMemory: exchanges beside the operations need not come in the same order among them") {
  const auto body = [](ry::WorkerLink& link) {
    const auto backend = join(link);
    std::exception_ptr error;
    std::thread beside{[&] {
      try {
        ry::HostMemory& side = *backend->host_memory()->side(ry::Deadline::never());
        for (int turn = 0; turn < 300; ++turn) {
          const int shown = turn * 10 + link.world().rank;
          side.begin(ry::Purpose::gradients, std::as_bytes(std::span{&shown, 1}), 2, ry::Deadline::after(60s));
          int other = 0;
          std::memcpy(&other, side.record_of(1 - link.world().rank).data(), sizeof other);
          require(other == turn * 10 + 1 - link.world().rank, "the other's record");
          side.rest();
          side.step({});
        }
      } catch (...) {
        error = std::current_exception();
      }
    }};
    for (int turn = 0; turn < 300 + 100 * link.world().rank; ++turn) {
      int one = 1;
      if (turn < 300) backend->all_reduce(ry::buffer_of_value(one), ry::ReduceOp::sum, {});
      require(turn >= 300 || one == 2, "the sum");
    }
    beside.join();
    if (error) std::rethrow_exception(error);
  };
  run_group<ry::Threads>(2, body);
  run_group<ry::Processes>(2, body);
}

TEST_CASE("SharedMemory: a rank that gives up between two steps of an exchange waits for whoever is at its memory") {
  std::atomic<bool> is_inside{false};  // rank 1 has seen the step's end: only then may rank 0 give up
  run_group<ry::Threads>(2, [&is_inside](ry::WorkerLink& link) {
    const auto backend = join(link);
    ry::HostMemory& side = *backend->host_memory()->side(ry::Deadline::never());
    auto values = std::make_unique<std::vector<int>>(1000);
    const std::uint64_t place = side.place_of(values->data());
    side.begin(ry::Purpose::gradients, std::as_bytes(std::span{&place, 1}), 2, ry::Deadline::after(60s));
    if (link.world().rank == 0) {
      const auto deadline = ry::Deadline::after(60s);
      while (!is_inside.load() && !deadline.expired()) std::this_thread::yield();
      side.rest();
      side.abort("enough");
      side.withdraw();  // returns only when the other one rests
      values.reset();
      return;
    }
    is_inside.store(true);
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, side.record_of(0).data(), sizeof theirs);
    auto* at = reinterpret_cast<int*>(side.at(0, theirs));
    for (int i = 0; i < 1000; ++i) at[i] = i;
    side.rest();
    std::string text;
    try {
      side.step({});
    } catch (const ry::CollectiveError& error) {
      text = error.what();
    }
    require(text.find("rank 0 gave up: enough") != std::string::npos, text);
    try {
      backend->barrier({});
      text.clear();
    } catch (const ry::CollectiveError& error) {
      text = error.what();
    }
    require(text.find("enough") != std::string::npos, "the operations are lost as well: " + text);
  });
}

TEST_CASE("SharedMemory: memory that others cannot see has no place among processes, and one among threads") {
  const auto place_of_a_local = [](ry::WorkerLink& link) {
    int local = 0;
    return join(link)->host_memory()->place_of(&local);
  };
  run_group<ry::Processes>(2, [&](ry::WorkerLink& link) { require(place_of_a_local(link) == 0, "no place"); });
  run_group<ry::Threads>(2, [&](ry::WorkerLink& link) { require(place_of_a_local(link) != 0, "a place"); });
}

TEST_CASE(
    "SharedMemory: a rank in an exchange and one in a collective both get an error that names both (FAULTS A11)") {
  run_group<ry::Processes>(2, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    std::string text;
    try {
      if (link.world().rank == 0) {
        backend->host_memory()->begin(ry::Purpose::gradients, {}, 1, ry::Deadline::after(60s));
      } else {
        backend->barrier({.deadline = ry::Deadline::after(60s)});
      }
    } catch (const ry::CollectiveError& error) {
      text = error.what();
    }
    require(text.find("exchange of gradients") != std::string::npos && text.find("barrier()") != std::string::npos,
            "both in: " + text);
  });
}

TEST_CASE("SharedMemory: more addresses than there are are refused on all ranks") {
  for (const std::size_t arena_bytes : {std::size_t{1} << 47U, std::size_t{1} << 46U}) {
    const auto thrown = railyard_test::run_ranks_to_end(2, [&](const ry::World& world, ry::Store& store) {
      static_cast<void>(
          ry::SharedMemory::connect({.arena_bytes = arena_bytes}, world, store, ry::Deadline::after(60s)));
    });
    for (const auto& one : thrown) {
      REQUIRE(one);
      CHECK_THROWS_AS(std::rethrow_exception(one), ry::ConfigError);
      CHECK_THROWS_WITH(std::rethrow_exception(one),
                        Catch::ContainsSubstring("arena_bytes") || Catch::ContainsSubstring("addresses"));
    }
  }
}

TEST_CASE("SharedMemory: a container with too little memory is found out before any of it is taken, with the remedy") {
  if (railyard_test::is_sanitized) {
    SUCCEED("a sanitizer takes more than that for itself");
    return;
  }
  const auto group = railyard_test::MemoryGroup::make(std::size_t{16} << 20U);
  if (!group) {
    WARN("not tested: no memory cgroup can be made here");
    return;
  }
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    group->enter();
    const auto thrown = railyard_test::run_ranks_to_end(64, [](const ry::World& world, ry::Store& store) {
      static_cast<void>(ry::SharedMemory::connect({}, world, store, ry::Deadline::after(60s)));
    });
    const bool are_refused = std::all_of(thrown.begin(), thrown.end(), [](const std::exception_ptr& one) {
      try {
        if (one) std::rethrow_exception(one);
      } catch (const ry::ConfigError& error) {
        const std::string text = error.what();
        return text.find("64 ranks need ") != std::string::npos &&
               text.find("raise the limit, or use fewer workers") != std::string::npos;
      }
      return false;
    });
    ::_exit(are_refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);  // and not the kernel's SIGKILL
}

TEMPLATE_TEST_CASE("SharedMemory: the heaps of all ranks keep an equal part of what memory is left", "", ry::Threads,
                   ry::Processes) {
  run_group<TestType>(3, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    const std::size_t kept = backend->heap()->max_cached();
    require(kept > 0 && kept <= ry::detail::physical_memory() / 2 / 3, fmt::format("a part of it, not {} bytes", kept));
    std::vector<std::int64_t> least{static_cast<std::int64_t>(kept), -static_cast<std::int64_t>(kept)};
    backend->all_reduce(ry::buffer_of(least), ry::ReduceOp::min, {});
    require(least[0] == -least[1], "the same on all ranks");
  });
}

TEST_CASE("SharedMemory: a hundred groups leave no descriptor, thread or mapping behind") {
  const auto turn = [] {
    railyard_test::run_ranks(3, [](const ry::World& world, ry::Store& store) {
      ry::SharedMemory::connect({}, world, store, ry::Deadline::after(60s))->barrier({});
    });
  };
  turn();
  const auto descriptors = count_entries("/proc/self/fd");
  const auto threads = count_entries("/proc/self/task");
  const auto mappings = count_large_mappings();
  for (int i = 0; i < 100; ++i) turn();
  CHECK(count_entries("/proc/self/fd") == descriptors);
  CHECK(count_entries("/proc/self/task") == threads);
  CHECK(count_large_mappings() == mappings);
}

TEST_CASE("SharedMemory: among processes only the ranks' own memory files are opened, and closed again (TRAPS 39)") {
  run_group<ry::Processes>(3, [](ry::WorkerLink& link) {
    const auto before = count_entries("/proc/self/fd");
    const auto backend = join(link);
    backend->barrier({});
    // One for the death of each other rank; without that of the memory which the group has kept for this rank.
    require(count_entries("/proc/self/fd") == before + 2 - 1, "no more descriptors than other ranks");
  });
}

TEST_CASE("SharedMemory: a rank that waits for long sleeps, and costs no time of the processor") {
  run_group<ry::Processes>(2, [](ry::WorkerLink& link) {
    const auto backend = join(link);
    const auto cpu_ms = [] {
      timespec time{};
      ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
      return static_cast<long>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
    };
    backend->barrier({});
    if (link.world().rank == 1) static_cast<void>(link.store().get("nothing", ry::Deadline::after(1s)));
    const long before = cpu_ms();
    backend->barrier({});
    require(cpu_ms() - before < 300, fmt::format("less than a third of the wait, not {} ms", cpu_ms() - before));
  });
}

TEST_CASE("SharedMemory: a thread that gives up waits for those who still read its buffer", "[stress]") {
  // The buffers are freed at once when a rank has thrown: a peer that still read them would be seen by the sanitizers.
  for (int turn = 0; turn < 200; ++turn) {
    railyard_test::run_ranks_to_end(3, [&](const ry::World& world, ry::Store& store) {
      const auto backend = ry::SharedMemory::connect({}, world, store, ry::Deadline::after(60s));
      std::vector<float> values(100'000, 1.0F);
      std::thread aborter;
      if (world.rank == turn % 3) aborter = std::thread{[&] { backend->abort("enough"); }};
      const auto join_aborter = [&] {
        if (aborter.joinable()) aborter.join();
      };
      try {
        for (;;) backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::max, {});
      } catch (const ry::CollectiveError&) {
        values = {};
        join_aborter();
      }
    });
  }
  SUCCEED("nobody hangs");
}

TEMPLATE_TEST_CASE("sum: equals a plain loop for every width of vectors, count and number of sources", "", float,
                   double) {
  using T = TestType;
  const auto check = [](auto&& sum_with) {
    for (const std::size_t num_sources : {1U, 2U, 3U, 4U, 5U, 70U}) {
      for (const std::size_t count : {1U, 4U, 7U, 64U, 65U, 1000U}) {
        std::vector<std::vector<T>> data(num_sources);
        std::vector<T> weights;
        for (std::size_t source = 0; source < num_sources; ++source) {
          weights.push_back(static_cast<T>(source + 1));
          for (std::size_t i = 0; i < count; ++i) data[source].push_back(static_cast<T>(i * (source + 2) % 97));
        }
        std::vector<const T*> sources;
        for (const auto& one : data) sources.push_back(one.data());
        std::vector<T> out(count);
        std::vector<T> copy(count);
        const std::array<T*, 2> both{out.data(), copy.data()};
        const auto targets = std::span{both}.first(count % 2 + 1);
        const bool finite = sum_with(ry::detail::SumTask<T>{
            .targets = targets, .sources = sources, .weights = weights.data(), .divisor = T{8}, .count = count});
        CHECK(finite);
        if (targets.size() == 1) copy = out;
        for (std::size_t i = 0; i < count; ++i) {
          T expected{0};
          for (std::size_t source = 0; source < num_sources; ++source) expected += weights[source] * data[source][i];
          if (out[i] != expected / T{8} || copy[i] != out[i]) FAIL("element " << i << " of " << count);
        }
      }
    }
  };
  check([](const auto& task) { return ry::detail::sum_few(task); });
  check([](const auto& task) { return ry::detail::sum_baseline(task); });
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) check([](const auto& task) { return ry::detail::sum_avx2(task); });
  if (__builtin_cpu_supports("avx512f")) check([](const auto& task) { return ry::detail::sum_avx512(task); });
#endif
  check([](const auto& task) { return ry::detail::sum(task); });
}

TEMPLATE_TEST_CASE("sum: says whether all results are finite, wherever one is not", "", float, double) {
  using T = TestType;
  for (const T bad :
       {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity()}) {
    for (std::size_t at = 0; at < 131; ++at) {
      std::vector<T> data(131, std::numeric_limits<T>::max() / 4);
      const std::array<T*, 1> target{data.data()};
      const std::array<const T*, 1> source{data.data()};
      const ry::detail::SumTask<T> task{.targets = target, .sources = source, .count = data.size()};
      if (!ry::detail::sum(task)) FAIL("large numbers are finite");
      data[at] = bad;
      if (ry::detail::sum(task)) FAIL("element " << at << " is not finite");
    }
  }
  SUCCEED("every place was looked at");
}

TEMPLATE_TEST_CASE("SharedMemory: counts and sizes beyond 2^31 bytes arrive whole (FAULTS D29)", "", ry::Threads,
                   ry::Processes) {
  run_group<TestType>(2,
                      [](ry::WorkerLink& link) { railyard_test::check_large_counts(*join(link), link.world().rank); });
}
