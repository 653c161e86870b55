// SPDX-License-Identifier: MIT
// The laws of Scaling, WorkerLink and Store, for every model of this room.
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <condition_variable>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>

using namespace workers_test;

TEMPLATE_TEST_CASE("Scaling: gives every worker its rank and yields one exit per worker", "", ry::Threads,
                   ry::Processes) {
  TestType scaling;
  for (const int size : {1, 2, 3, 7, 16}) {
    auto group = scaling.start({.num_workers = size}, [](ry::WorkerLink& link) {
      const ry::World& world = link.world();
      link.post(bytes_of(fmt::format("{}/{} {}/{} {}", world.rank, world.size, world.local_rank, world.local_size,
                                     world.host == ry::detail::host_name())));
    });
    const Story story = follow_to_end(*group);
    REQUIRE(story.exits.size() == static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      CHECK(story.messages.at(rank) == std::vector{fmt::format("{0}/{1} {0}/{1} true", rank, size)});
      REQUIRE(story.exits.at(rank).size() == 1);
      CHECK(story.exit_of(rank).kind == ry::WorkerExit::Kind::returned);
    }
    CHECK_FALSE(group->next(soon()));
  }
}

TEMPLATE_TEST_CASE("Scaling: delivers messages in order and before the exit when there are many", "", ry::Threads,
                   ry::Processes) {
  constexpr int count = 20'000;
  auto group = TestType{}.start({.num_workers = 3}, [](ry::WorkerLink& link) {
    for (int at = 0; at < count; ++at)
      link.post(bytes_of(fmt::format("{} {}", at, std::string(static_cast<std::size_t>(at % 100), 'x'))));
  });
  const Story story = follow_to_end(*group);
  CHECK(story.late.empty());
  for (int rank = 0; rank < 3; ++rank) {
    const auto& messages = story.messages.at(rank);
    REQUIRE(messages.size() == count);
    int wrong = 0;
    for (int at = 0; at < count; ++at) {
      wrong += messages[static_cast<std::size_t>(at)] !=
               fmt::format("{} {}", at, std::string(static_cast<std::size_t>(at % 100), 'x'));
    }
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("WorkerLink: carries messages of 0 bytes and of 1 MiB and refuses more", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    std::string large(std::size_t{1} << 20U, 'a');
    for (int at = 0; at < 8; ++at) {
      link.post({});
      large[static_cast<std::size_t>(at) * 100'000] = 'b';
      link.post(bytes_of(large));
    }
    large += 'c';
    link.post(bytes_of(large));
  });
  const Story story = follow_to_end(*group);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& messages = story.messages.at(rank);
    REQUIRE(messages.size() == 16);
    for (std::size_t at = 0; at < 8; ++at) {
      CHECK(messages[2 * at].empty());
      CHECK(messages[2 * at + 1].size() == std::size_t{1} << 20U);
      CHECK(std::count(messages[2 * at + 1].begin(), messages[2 * at + 1].end(), 'b') == static_cast<int>(at) + 1);
    }
    CHECK(story.exit_of(rank).kind == ry::WorkerExit::Kind::threw);
    CHECK_THAT(story.exit_of(rank).message, ContainsSubstring("post on rank") && ContainsSubstring("1048577 bytes"));
  }
}

TEMPLATE_TEST_CASE("WorkerLink: loses nothing when several threads of a worker post at once", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    std::vector<std::thread> threads;
    for (int at = 0; at < 4; ++at) {
      threads.emplace_back([&link, at] {
        for (int number = 0; number < 500; ++number) link.post(bytes_of(fmt::format("{} {}", at, number)));
      });
    }
    for (auto& thread : threads) thread.join();
  });
  const Story story = follow_to_end(*group);
  for (int rank = 0; rank < 2; ++rank) {
    std::array<int, 4> next{};
    for (const auto& message : story.messages.at(rank)) {
      const int thread = message[0] - '0';
      CHECK(std::stoi(message.substr(2)) == next.at(static_cast<std::size_t>(thread))++);
    }
    CHECK(std::accumulate(next.begin(), next.end(), 0) == 2000);
  }
}

TEMPLATE_TEST_CASE("Scaling: reports what() and the blamed ranks of an exception that leaves the body (B17)", "",
                   ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 3}, [](ry::WorkerLink& link) {
    if (link.world().rank == 0) throw ry::DataError{"row 7: not a number"};
    if (link.world().rank == 1) throw ry::CollectiveError{"barrier", 1, {0, 2}, "barrier: rank 0 left"};
    throw 42;
  });
  const Story story = follow_to_end(*group);
  CHECK(story.exit_of(0).kind == ry::WorkerExit::Kind::threw);
  CHECK(story.exit_of(0).message == "row 7: not a number");
  CHECK_FALSE(story.exit_of(0).is_consequence);
  CHECK(story.exit_of(1).message == "barrier: rank 0 left");
  CHECK(story.exit_of(1).blamed == std::vector{0, 2});
  CHECK(story.exit_of(1).is_consequence);
  CHECK(story.exit_of(2).message == "42");
}

TEMPLATE_TEST_CASE("Store: gives every worker what every other one has set", "", ry::Threads, ry::Processes) {
  constexpr int size = 16;
  auto group = TestType{}.start({.num_workers = size}, [](ry::WorkerLink& link) {
    const int rank = link.world().rank;
    std::string sum;
    for (int at = 0; at < size; ++at) {
      link.store().set(fmt::format("{}-{}", rank, at), std::string(static_cast<std::size_t>(rank * at), 'v'));
    }
    int wrong = 0;
    for (int at = 0; at < size; ++at) {
      const auto value = link.store().get(fmt::format("{}-{}", at, rank), soon());
      wrong += !value || value->size() != static_cast<std::size_t>(rank * at);
    }
    link.post(bytes_of(fmt::to_string(wrong)));
  });
  const Story story = follow_to_end(*group);
  for (int rank = 0; rank < size; ++rank) CHECK(story.messages.at(rank) == std::vector<std::string>{"0"});
}

TEMPLATE_TEST_CASE("Store: refuses a key that is taken and returns nothing at the deadline", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 1}, [](ry::WorkerLink& link) {
    link.store().set("key", std::string("\0zero", 5));
    const bool is_equal = link.store().get("key", ry::Deadline::after(0s)) == std::string("\0zero", 5);
    link.post(bytes_of(is_equal ? "equal" : "different"));
    link.post(bytes_of(link.store().get("other", ry::Deadline::after(1ms)) ? "found" : "nothing"));
    link.store().set("key", "again");
  });
  const Story story = follow_to_end(*group);
  CHECK(story.messages.at(0) == std::vector<std::string>{"equal", "nothing"});
  CHECK_THAT(story.exit_of(0).message, ContainsSubstring("\"key\"") && ContainsSubstring("set before"));
}

TEMPLATE_TEST_CASE("WorkerGroup: abort runs the handler once and ends waits on the store", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    if (link.world().rank == 0) {
      link.post(bytes_of("ready"));
      (void)link.store().get("never", soon());
      return;
    }
    std::mutex mutex;
    std::condition_variable changed;
    std::string heard;
    int times = 0;
    const auto body_thread = std::this_thread::get_id();
    bool was_other_thread = false;
    link.on_abort([&](std::string_view reason) {
      const std::lock_guard lock{mutex};
      heard = reason;
      ++times;
      was_other_thread = std::this_thread::get_id() != body_thread;
      changed.notify_all();
    });
    link.post(bytes_of("ready"));
    std::unique_lock lock{mutex};
    changed.wait_for(lock, 30s, [&] { return times > 0; });
    lock.unlock();
    link.on_abort({});  // waits for the end of the handler
    link.post(bytes_of(fmt::format("{} {} {}", heard, times, was_other_thread)));
    std::promise<std::string> late;
    link.on_abort([&](std::string_view reason) { late.set_value(std::string{reason}); });
    link.post(bytes_of(late.get_future().get()));
    link.on_abort({});
  });
  Story story;
  follow(*group, story, [&] { return story.messages[0].size() + story.messages[1].size() == 2; });
  group->abort("rank 5 has failed");
  group->abort("a second reason");
  follow(*group, story, [] { return false; });
  CHECK_THAT(story.exit_of(0).message, ContainsSubstring("never") && ContainsSubstring("rank 5 has failed"));
  CHECK(story.exit_of(0).is_consequence);
  CHECK(story.messages.at(1) == std::vector<std::string>{"ready", "rank 5 has failed 1 true", "rank 5 has failed"});
}

TEMPLATE_TEST_CASE("WorkerGroup: abort ends a post that waits for room", "", ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 1}, [](ry::WorkerLink& link) {
    const std::string large(1'000'000, 'x');
    while (true) link.post(bytes_of(large));
  });
  group->abort("enough");
  const Story story = follow_to_end(*group);
  CHECK(story.exit_of(0).is_consequence);
  CHECK_THAT(story.exit_of(0).message, ContainsSubstring("post on rank 0/1") && ContainsSubstring("enough"));
}

TEMPLATE_TEST_CASE("WorkerGroup: shows the page of every worker and asks workers to stop", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    link.page().samples.store(100 + static_cast<unsigned>(link.world().rank));
    link.post(bytes_of("set"));
    while (!link.page().stop_requested.load()) std::this_thread::yield();
  });
  Story story;
  follow(*group, story, [&] { return story.messages.size() == 2; });
  CHECK(group->page(0).samples.load() == 100);
  CHECK(group->page(1).samples.load() == 101);
  CHECK_FALSE(group->next(ry::Deadline::after(0s)));
  group->request_stop();
  follow(*group, story, [] { return false; });
  CHECK(story.exits.size() == 2);
}

TEMPLATE_TEST_CASE("WorkerGroup: leaves nothing behind after success, failure and an early end", "", ry::Threads,
                   ry::Processes) {
  const auto run = [](bool fails, bool leaves_early) {
    auto group = TestType{}.start({.num_workers = 3}, [=](ry::WorkerLink& link) {
      link.post(bytes_of("here"));
      if (fails && link.world().rank == 1) throw std::runtime_error{"no"};
      if (fails || leaves_early) (void)link.store().get("never", soon());
    });
    if (leaves_early) return;
    Story story;
    follow(*group, story, [&] { return !story.exits.empty(); });
    group->abort("over");
    follow(*group, story, [] { return false; });
    CHECK(story.exits.size() == 3);
  };
  run(false, false);  // whatever is made once per process is made now
  const Holdings before;
  run(false, false);
  CHECK(come_back_to(before));
  run(true, false);
  CHECK(come_back_to(before));
  run(false, true);
  CHECK(come_back_to(before));
}

TEMPLATE_TEST_CASE("Scaling: leaks nothing over 100 groups in a row (C9)", "", ry::Threads, ry::Processes) {
  const Holdings before;
  for (int at = 0; at < 100; ++at) {
    auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
      link.store().set(fmt::to_string(link.world().rank), "here");
      (void)link.store().get(fmt::to_string(1 - link.world().rank), soon());
    });
    REQUIRE(follow_to_end(*group).exits.size() == 2);
  }
  CHECK(come_back_to(before));
}

TEMPLATE_TEST_CASE("Scaling: refuses a plan without workers and an empty function", "", ry::Threads, ry::Processes) {
  TestType scaling;
  CHECK_THROWS_AS(scaling.start({.num_workers = 0}, [](ry::WorkerLink&) {}), ry::ConfigError);
  CHECK_THROWS_AS(scaling.start({.num_workers = 1}, ry::WorkerBody{}), ry::ConfigError);
}

TEMPLATE_TEST_CASE("Scaling: runs two groups of one process at a time in two threads", "", ry::Threads, ry::Processes) {
  const auto run = [] {
    for (int at = 0; at < 5; ++at) {
      auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) { link.post(bytes_of("m")); });
      if (follow_to_end(*group).exits.size() != 2) return false;
    }
    return true;
  };
  const Holdings before;
  bool other = false;
  std::thread second{[&] { other = run(); }};
  const bool mine = run();
  second.join();
  CHECK(mine);
  CHECK(other);
  CHECK(come_back_to(before));
}
