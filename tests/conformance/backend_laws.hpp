// SPDX-License-Identifier: MIT
// The laws of the concept Backend as tests, for every pair of a backend and a way to make workers. A file defines
// RAILYARD_TEST_PAIRS, the list of its pairs, and includes this one.
#pragma once

#include "support/catch.hpp"
#include "support/run_ranks.hpp"
#include "support/sanitizers.hpp"
#include "support/values.hpp"

#include "railyard/core/backend.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

namespace railyard_test {

using namespace std::chrono_literals;

template <class B, class S>
struct Pair {
  using Backend = B;
  using Scaling = S;
};

/// Is true of a backend whose ranks may be done with what they only send before anybody has asked for it.
template <class Backend>
constexpr bool sends_ahead = requires {
  Backend::sends_ahead;
};

template <class Backend>
std::unique_ptr<Backend> join(ry::WorkerLink& link, std::chrono::nanoseconds budget = 60s) {
  return Backend::connect({}, link.world(), link.store(), ry::Deadline::after(budget));
}

/// Runs body(backend, world) on every rank of a group and fails the test if one of them throws.
template <class P, class Body>
void on_ranks(int size, const Body& body) {
  run_group<typename P::Scaling>(size, [&](ry::WorkerLink& link) {
    const auto backend = join<typename P::Backend>(link);
    body(*backend, link.world());
  });
}

/// Calls call(), which has to throw a CollectiveError with all of the texts in it, and returns the error.
template <class Call>
ry::CollectiveError lost(const Call& call, std::initializer_list<std::string> texts) {
  try {
    call();
  } catch (const ry::CollectiveError& error) {
    for (const auto& text : texts) {
      require(std::string{error.what()}.find(text) != std::string::npos,
              fmt::format("\"{}\" in the message \"{}\"", text, error.what()));
    }
    return error;
  }
  throw std::runtime_error{"not as required: a CollectiveError"};
}

template <class Call>
void refused(const Call& call, const std::string& text) {
  try {
    call();
  } catch (const ry::ConfigError& error) {
    require(std::string{error.what()}.find(text) != std::string::npos,
            fmt::format("\"{}\" in the message \"{}\"", text, error.what()));
    return;
  }
  throw std::runtime_error{fmt::format("not as required: a ConfigError about \"{}\"", text)};
}

/// Waits until a rank has left something under key.
inline void await_event(ry::Store& store, const std::string& key) {
  require(store.get(key, ry::Deadline::after(60s)).has_value(), "the event " + key);
}

inline ry::Call within(std::chrono::nanoseconds budget) { return {.deadline = ry::Deadline::after(budget)}; }

inline bool blames(const ry::CollectiveError& error, int rank) {
  return std::find(error.blamed().begin(), error.blamed().end(), rank) != error.blamed().end();
}

const std::vector<int> world_sizes{1, 2, 3, 4, 7};
const std::vector<std::size_t> small_counts{0, 1, 37};

// About 1 MB, which takes several ways through a backend; less where every access is checked and costs twenty times.
inline std::size_t large_count(ry::Dtype dtype) {
  const std::size_t size_bytes = is_sanitized ? 300'000 : 1'000'000;
  return size_bytes / ry::size_of(dtype) + 3;
}

// A little more than ranks show each other at once, so that there is a second piece.
inline std::size_t two_pieces_count(ry::Dtype dtype) { return 128 * 1024 / ry::size_of(dtype) + 3; }

/// Every count for one reduction or one dtype. To save time the large one is for sum only, and of the other operations
/// a plain and a half type stand for all where they go in pieces.
inline std::vector<std::size_t> counts_for(ry::Dtype dtype, ry::ReduceOp op) {
  auto counts = small_counts;
  if (op == ry::ReduceOp::sum) {
    counts.push_back(large_count(dtype));
  } else if (dtype == ry::Dtype::f32 || dtype == ry::Dtype::f16) {
    counts.push_back(two_pieces_count(dtype));
  }
  return counts;
}

// Looks at every element of short results and at about a thousand of long ones.
inline std::size_t stride(std::size_t count) { return count < 1000 ? 1 : count / 997; }

template <class Expected>
void check(const Values& values, const std::string& what, const Expected& expected) {
  for (std::size_t i = 0; i < values.count(); i += stride(values.count())) {
    require(values.get(i) == expected(i), [&] {
      return fmt::format("{} of {} x {}: element {} is {}, not {}", what, values.count(), ry::name_of(values.dtype()),
                         i, values.get(i), expected(i));
    });
  }
}

template <class Visit>
void for_each_reduction(const Visit& visit) {
  for (const ry::Dtype dtype : ry::all_dtypes) {
    for (const ry::ReduceOp op : ry::all_reduce_ops) {
      if (op == ry::ReduceOp::average && !is_floating(dtype)) continue;
      for (const std::size_t count : counts_for(dtype, op)) visit(dtype, op, count);
    }
  }
}

template <class Visit>
void for_each_array(const Visit& visit) {
  for (const ry::Dtype dtype : ry::all_dtypes) {
    for (const std::size_t count : counts_for(dtype, ry::ReduceOp::sum)) {
      const bool stands_for_all = dtype == ry::Dtype::u8 || dtype == ry::Dtype::f32 || dtype == ry::Dtype::i64;
      if (count <= 37 || stands_for_all) visit(dtype, count);
    }
  }
}

TEMPLATE_TEST_CASE("Law 3: all_reduce equals a plain loop", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : world_sizes) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      for_each_reduction([&](ry::Dtype dtype, ry::ReduceOp op, std::size_t count) {
        Values data{dtype, count};
        data.fill(world.rank, op);
        backend.all_reduce(data.buffer(), op, {});
        check(data, "all_reduce", [&](std::size_t i) { return expected_reduction(dtype, op, world.size, i); });
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 3: reduce_scatter gives rank r slice r", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : world_sizes) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      for_each_reduction([&](ry::Dtype dtype, ry::ReduceOp op, std::size_t total) {
        const std::size_t count = total == 1 ? 1 : total / static_cast<std::size_t>(world.size);
        Values in{dtype, count * static_cast<std::size_t>(world.size)};
        Values out{dtype, count};
        in.fill(world.rank, op);
        backend.reduce_scatter(in.buffer(), out.buffer(), op, {});
        const std::size_t begin = count * static_cast<std::size_t>(world.rank);
        check(out, "reduce_scatter",
              [&](std::size_t i) { return expected_reduction(dtype, op, world.size, begin + i); });
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 3: average divides by the number of ranks and not of elements (FAULTS D15, D16)", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(3, [](auto& backend, const ry::World& world) {
    std::vector<double> values(5, static_cast<double>(world.rank));
    backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::average, {});
    for (const double value : values) require(value == 1.0, "the mean of 0, 1 and 2");
    std::vector<std::int32_t> whole(5, 1);
    refused([&] { backend.all_reduce(ry::buffer_of(whole), ry::ReduceOp::average, {}); }, "average of i32");
    backend.barrier({});
  });
}

TEMPLATE_TEST_CASE("Law 3: all_reduce leaves equal bits on every rank", "[laws]", RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(3, [](auto& backend, const ry::World& world) {
    for (const std::size_t count : {std::size_t{11}, std::size_t{300'001}}) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = 1.0F / static_cast<float>(i * 3 + static_cast<std::size_t>(world.rank) + 1);
      }
      backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {});
      std::vector<float> all(count * 3);
      backend.all_gather(ry::buffer_of(std::as_const(values)), ry::buffer_of(all), {});
      for (std::size_t rank = 0; rank < 3; ++rank) {
        require(std::memcmp(values.data(), all.data() + rank * count, count * sizeof(float)) == 0, "equal bits");
      }
    }
  });
}

TEMPLATE_TEST_CASE("Law 4: all_gather puts rank r's part at slice r", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : world_sizes) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      for_each_array([&](ry::Dtype dtype, std::size_t count) {
        Values in{dtype, count};
        Values out{dtype, count * static_cast<std::size_t>(world.size)};
        in.fill(world.rank);
        backend.all_gather(in.buffer(), out.buffer(), {});
        check(out, "all_gather",
              [&](std::size_t i) { return value_of(dtype, static_cast<int>(i / count), i % count); });
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 4: all_gather_uneven takes a count per rank, also 0", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : world_sizes) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      for_each_array([&](ry::Dtype dtype, std::size_t largest) {
        std::vector<std::size_t> counts;
        std::vector<std::size_t> ends;  // of the parts in the result
        for (int rank = 0; rank < world.size; ++rank) {
          counts.push_back(rank == 1 ? 0 : largest / static_cast<std::size_t>(rank + 1));
          ends.push_back(counts.back() + (rank == 0 ? 0 : ends.back()));
        }
        Values in{dtype, counts[static_cast<std::size_t>(world.rank)]};
        Values out{dtype, ends.back()};
        in.fill(world.rank);
        backend.all_gather_uneven(in.buffer(), out.buffer(), counts, {});
        check(out, "all_gather_uneven", [&](std::size_t i) {
          const auto rank = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), i) - ends.begin());
          return value_of(dtype, static_cast<int>(rank), i - (ends[rank] - counts[rank]));
        });
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 4: all_to_all sends slice r to rank r", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : world_sizes) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      for_each_array([&](ry::Dtype dtype, std::size_t total) {
        const std::size_t count = total == 1 ? 1 : total / static_cast<std::size_t>(world.size);
        Values in{dtype, count * static_cast<std::size_t>(world.size)};
        Values out{dtype, in.count()};
        in.fill(world.rank);
        backend.all_to_all(in.buffer(), out.buffer(), {});
        const std::size_t begin = count * static_cast<std::size_t>(world.rank);
        check(out, "all_to_all",
              [&](std::size_t i) { return value_of(dtype, static_cast<int>(i / count), begin + i % count); });
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 5: broadcast, gather and scatter work with every root", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : world_sizes) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      const auto ranks = static_cast<std::size_t>(world.size);
      int root = 0;
      for_each_array([&](ry::Dtype dtype, std::size_t count) {
        root = (root + 1) % world.size;
        const bool is_root = world.rank == root;
        Values data{dtype, count};
        if (is_root) data.fill(root);
        backend.broadcast(data.buffer(), root, {});
        check(data, "broadcast", [&](std::size_t i) { return value_of(dtype, root, i); });

        data.fill(world.rank);
        Values all{dtype, is_root ? count * ranks : 0};  // elsewhere out has no memory at all
        backend.gather(data.buffer(), all.buffer(), root, {});
        check(all, "gather", [&](std::size_t i) { return value_of(dtype, static_cast<int>(i / count), i % count); });

        if (is_root) all.fill(root);
        backend.scatter(all.buffer(), data.buffer(), root, {});
        const std::size_t begin = count * static_cast<std::size_t>(world.rank);
        check(data, "scatter", [&](std::size_t i) { return value_of(dtype, root, begin + i); });
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 6: messages between two ranks arrive in order, each way", "[laws]", RAILYARD_TEST_PAIRS) {
  for (const int size : {2, 3, 7}) {
    on_ranks<TestType>(size, [](auto& backend, const ry::World& world) {
      const int right = (world.rank + 1) % world.size;
      const int left = (world.rank + world.size - 1) % world.size;
      for_each_array([&](ry::Dtype dtype, std::size_t count) {
        for (int turn = 0; turn < 2; ++turn) {
          Values sent{dtype, count};
          Values received{dtype, count};
          sent.fill(world.rank + turn);
          const auto send = [&] { backend.send(sent.buffer(), right, {}); };
          const auto receive = [&] { backend.receive(received.buffer(), left, {}); };
          // Somebody has to begin with receiving: a send may wait for its receiver.
          world.rank == 0 ? (receive(), send()) : (send(), receive());
          check(received, "receive", [&](std::size_t i) { return value_of(dtype, left + turn, i); });
        }
      });
    });
  }
}

TEMPLATE_TEST_CASE("Law 3: a world of one works without a peer (FAULTS D22)", "[laws]", RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(1, [](auto& backend, const ry::World&) {
    std::vector<float> values{1, 2, 3};
    std::vector<float> copy(3);
    backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::average, {});
    backend.all_to_all(ry::buffer_of(values), ry::buffer_of(copy), {});
    backend.barrier({});
    require(copy == std::vector<float>{1, 2, 3}, "the values as they were");
    refused([&] { backend.send(ry::buffer_of(values), 0, {}); }, "itself");
    backend.abort("no more");
    lost([&] { backend.barrier({}); }, {"no more"});
  });
}

TEMPLATE_TEST_CASE("Law 2: operations are matched in their order although a rank comes late to each", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  run_group<typename TestType::Scaling>(3, [](ry::WorkerLink& link) {
    const int rank = link.world().rank;
    const auto be_late = [&](int turn) {
      if (rank == turn % 3) static_cast<void>(link.store().get("nothing", ry::Deadline::after(30ms)));
    };
    be_late(1);
    const auto backend = join<typename TestType::Backend>(link);
    for (int turn = 0; turn < 6; ++turn) {
      be_late(turn);
      std::vector<std::int64_t> sum{rank + turn};
      std::vector<std::int64_t> root{rank == 1 ? turn : -1};
      backend->all_reduce(ry::buffer_of(sum), ry::ReduceOp::sum, {});
      backend->broadcast(ry::buffer_of(root), 1, {});
      require(sum[0] == 3 + 3 * turn && root[0] == turn, "the values of this turn");
    }
  });
}

TEMPLATE_TEST_CASE("Law 1: connect names the rank that never comes", "[laws]", RAILYARD_TEST_PAIRS) {
  run_group<typename TestType::Scaling>(3, [](ry::WorkerLink& link) {
    if (link.world().rank == 1) return;
    const auto error =
        lost([&] { join<typename TestType::Backend>(link, 300ms); }, {"rank 1 did not connect in 300 ms"});
    require(blames(error, 1) && error.rank() == link.world().rank, "rank 1 is to blame");
  });
}

TEMPLATE_TEST_CASE("Law 1: connect waits for a rank that comes later than a collective may take (FAULTS A17)", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  run_group<typename TestType::Scaling>(2, [](ry::WorkerLink& link) {
    if (link.world().rank == 1) static_cast<void>(link.store().get("nothing", ry::Deadline::after(1100ms)));
    const auto backend = join<typename TestType::Backend>(link);
    backend->barrier(within(1s));
  });
}

TEMPLATE_TEST_CASE("Law 2: ranks that disagree on the size all get an error that names both sides (FAULTS A10, A11)",
                   "[laws]", RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(3, [](auto& backend, const ry::World& world) {
    std::vector<float> values(world.rank == 1 ? 2048 : 1024);
    lost([&] { backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, within(60s)); },
         {"rank 1", "2048 x f32", "1024 x f32"});
    lost([&] { backend.barrier({}); }, {"2048 x f32"});
  });
}

TEMPLATE_TEST_CASE("Law 2: ranks that call different operations all get an error that names both (FAULTS A9)", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  if (sends_ahead<typename TestType::Backend>) {
    SUCCEED("the sender is done before it can know");
    return;
  }
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<std::int32_t> values(8);
    const auto call = [&] {
      if (world.rank == 0) {
        backend.broadcast(ry::buffer_of(values), 0, within(60s));
      } else {
        backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::max, within(60s));
      }
    };
    lost(call, {"broadcast(8 x i32, root 0)", "all_reduce(max, 8 x i32)"});
  });
}

TEMPLATE_TEST_CASE("Law 2: ranks that disagree on the dtype, the reduction or the root all get an error", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<float> floats(8);
    std::vector<std::int32_t> whole(8);
    const ry::Buffer data = world.rank == 0 ? ry::buffer_of(floats) : ry::buffer_of(whole);
    lost([&] { backend.all_reduce(data, ry::ReduceOp::sum, within(60s)); }, {"8 x f32", "8 x i32"});
  });
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<float> values(8);
    const auto op = world.rank == 0 ? ry::ReduceOp::sum : ry::ReduceOp::max;
    lost([&] { backend.all_reduce(ry::buffer_of(values), op, within(60s)); }, {"(sum", "(max"});
  });
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<float> values(8);
    std::vector<float> all(16);
    lost([&] { backend.gather(ry::buffer_of(values), ry::buffer_of(all), world.rank, within(60s)); },
         {"root 0", "root 1"});
  });
}

TEMPLATE_TEST_CASE("Law 2: a rank with nothing to give is told from one with something", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<float> values(world.rank == 0 ? 0 : 8);
    const auto call = [&] {
      backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, within(60s));
      backend.barrier(within(60s));
    };
    lost(call, {"8 x f32"});
  });
}

TEMPLATE_TEST_CASE("Law 6: a message of another size than expected ends both sides with an error", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  if (sends_ahead<typename TestType::Backend>) {
    SUCCEED("the sender is done before it can know");
    return;
  }
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<float> values(world.rank == 0 ? 4 : 5);
    const auto call = [&] {
      world.rank == 0 ? backend.send(ry::buffer_of(values), 1, within(60s))
                      : backend.receive(ry::buffer_of(values), 0, within(60s));
    };
    lost(call, {"send(4 x f32, to 1)", "receive(5 x f32, from 0)"});
  });
}

TEMPLATE_TEST_CASE("Law 8: past the deadline the rank that never calls is named, on every other rank (FAULTS A10, A16)",
                   "[laws]", RAILYARD_TEST_PAIRS) {
  run_group<typename TestType::Scaling>(3, [](ry::WorkerLink& link) {
    const auto backend = join<typename TestType::Backend>(link);
    backend->barrier({});
    if (link.world().rank == 1) {
      await_event(link.store(), "seen by 0");
      await_event(link.store(), "seen by 2");
      return;
    }
    std::vector<float> values(100);
    const auto error = lost([&] { backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, within(400ms)); },
                            {"all_reduce(sum, 100 x f32) on rank", "rank 1 did not answer in 400 ms"});
    require(error.blamed() == std::vector<int>{1}, "rank 1 alone is to blame");
    // A later call throws at once: it gets a deadline that would outlast the test.
    lost([&] { backend->barrier(within(1h)); }, {"lost before", "rank 1 did not answer"});
    link.store().set(fmt::format("seen by {}", link.world().rank), "");
  });
}

TEMPLATE_TEST_CASE("Law 8: a rank that leaves is named by all others", "[laws]", RAILYARD_TEST_PAIRS) {
  run_group<typename TestType::Scaling>(3, [](ry::WorkerLink& link) {
    auto backend = join<typename TestType::Backend>(link);
    backend->barrier({});
    if (link.world().rank == 1) return backend.reset();
    std::vector<float> values(100);
    const auto error = lost([&] { backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, within(60s)); },
                            {"rank 1 left the group"});
    require(error.blamed() == std::vector<int>{1}, "rank 1 alone is to blame");
  });
}

TEMPLATE_TEST_CASE("Law 8: a rank that has done its part may leave before the others have done theirs", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  for (int turn = 0; turn < 10; ++turn) {
    on_ranks<TestType>(3, [](auto& backend, const ry::World& world) {
      std::vector<std::int64_t> values(5000, world.rank);
      backend.all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, {});  // and each leaves as soon as it has this
      require(values.back() == 3, "the sum of 0, 1 and 2");
    });
  }
}

TEMPLATE_TEST_CASE("Law 8: a killed rank is named by all others, and nobody hangs (B18)", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  if constexpr (TestType::Scaling::reach != ry::Reach::process) {
    const auto exits = run_group_to_end<typename TestType::Scaling>(3, [](ry::WorkerLink& link) {
      const auto backend = join<typename TestType::Backend>(link);
      backend->barrier({});
      if (link.world().rank == 1) std::raise(SIGKILL);
      std::vector<float> values(100'000);
      const auto error =
          lost([&] { backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, within(60s)); }, {"rank 1", "died"});
      require(error.blamed() == std::vector<int>{1}, "rank 1 alone is to blame");
    });
    CHECK(exits[1].kind == ry::WorkerExit::Kind::signalled);
    CHECK(exits[1].code == SIGKILL);
    for (const std::size_t rank : {0U, 2U}) {
      INFO(exits[rank].message);
      CHECK(exits[rank].kind == ry::WorkerExit::Kind::returned);
    }
  } else {
    SUCCEED("a thread cannot be killed alone");
  }
}

TEMPLATE_TEST_CASE("Law 8: abort from another thread ends a wait without deadline, with its reason", "[laws]",
                   RAILYARD_TEST_PAIRS) {
  run_group<typename TestType::Scaling>(3, [](ry::WorkerLink& link) {
    const auto backend = join<typename TestType::Backend>(link);
    backend->barrier({});
    const ry::Call for_ever{.deadline = ry::Deadline::never()};
    std::vector<float> values(10);
    const auto wait = [&] { backend->all_reduce(ry::buffer_of(values), ry::ReduceOp::sum, for_ever); };
    if (link.world().rank == 1) {  // never calls, and so nobody else can have finished
      await_event(link.store(), "seen by 0");
      await_event(link.store(), "seen by 2");
      return;
    }
    if (link.world().rank == 0) {
      std::thread aborter{[&] {
        static_cast<void>(link.store().get("nothing", ry::Deadline::after(50ms)));  // most likely it waits by then
        backend->abort("the supervisor says so");
      }};
      lost(wait, {"the supervisor says so"});
      aborter.join();
      lost(wait, {"lost before", "the supervisor says so"});
    } else {
      const auto error = lost(wait, {"rank 0 gave up", "the supervisor says so"});
      require(blames(error, 0), "rank 0 is to blame");
    }
    link.store().set(fmt::format("seen by {}", link.world().rank), "");
  });
}

TEMPLATE_TEST_CASE("Law 8: abort before a call makes it throw, and wakes the others", "[laws]", RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    if (world.rank == 1) backend.abort("no disk");
    lost([&] { backend.barrier({.deadline = ry::Deadline::never()}); }, {"no disk"});
  });
}

TEMPLATE_TEST_CASE("Law 9: wrong arguments are refused and the group stays usable", "[laws]", RAILYARD_TEST_PAIRS) {
  on_ranks<TestType>(2, [](auto& backend, const ry::World& world) {
    std::vector<float> four(4);
    std::vector<float> five(5);
    std::vector<std::int32_t> whole(4);
    const auto data = ry::buffer_of(four);
    if (world.rank == 0) {  // on one rank alone: had anything been sent, the barrier below would not match
      refused([&] { backend.all_reduce({nullptr, 3, ry::Dtype::f32, {}}, ry::ReduceOp::sum, {}); }, "null pointer");
      refused(
          [&] {
            backend.all_reduce({&four, 3, ry::Dtype::f32, {ry::DeviceKind::cuda, 0}}, ry::ReduceOp::sum, {});
          },
          "CUDA");
      refused([&] { backend.broadcast(data, 2, {}); }, "root is 2");
      refused([&] { backend.broadcast(data, -1, {}); }, "root is -1");
      refused([&] { backend.all_gather(data, ry::buffer_of(five), {}); }, "out has 5 elements");
      refused([&] { backend.all_gather(ry::buffer_of(whole), data, {}); }, "one dtype");
      refused([&] { backend.reduce_scatter(data, ry::buffer_of(five), ry::ReduceOp::sum, {}); }, "in has 4 elements");
      refused([&] { backend.all_to_all(ry::buffer_of(five), data, {}); }, "must be equal");
      refused([&] { backend.all_gather_uneven(data, ry::buffer_of(five), std::vector<std::size_t>{4}, {}); },
              "counts has 1");
      refused(
          [&] {
            backend.all_gather_uneven(data, ry::buffer_of(five), std::vector<std::size_t>{3, 2}, {});
          },
          "counts[0] says 3");
      refused([&] { backend.send(data, 0, {}); }, "itself");
      refused([&] { backend.receive(data, 5, {}); }, "from is 5");
      refused(
          [&] {
            backend.reduce_scatter(data, {four.data(), 2, ry::Dtype::f32, {}}, ry::ReduceOp::sum, {});
          },
          "overlap");
    }
    std::vector<float> one{1};
    backend.all_reduce(ry::buffer_of(one), ry::ReduceOp::sum, within(60s));
    require(one[0] == 2, "the sum after the refusals");
  });
}

}  // namespace railyard_test
