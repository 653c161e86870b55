// SPDX-License-Identifier: MIT
// The memory that the workers of a later start find as those before them have left it, and when they do not.
#include "railyard/workers/processes.hpp"
#include "railyard/workers/threads.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <unistd.h>

using namespace workers_test;

namespace {

// Says what stands in this rank's memory, and writes the briefing there.
std::string read_and_write(ry::WorkerLink& link) {
  const auto file = link.store().take_memory();
  std::string found(8, ' ');
  found.resize(static_cast<std::size_t>(std::max<ssize_t>(::pread(file.get(), found.data(), found.size(), 0), 0)));
  const std::string text{link.briefing()};
  if (::pwrite(file.get(), text.data(), text.size(), 0) < 0) throw std::runtime_error{"pwrite() failed"};
  return found;
}

std::vector<std::string> found_by_ranks(ry::WorkerGroup& group) {
  Story story = follow_to_end(group);
  std::vector<std::string> found;
  for (auto& [rank, messages] : story.messages) found.push_back(messages.at(0));
  return found;
}

}  // namespace

TEST_CASE("Processes: give each rank the memory of that rank's earlier starts, whatever has ended it") {
  auto group = ry::Processes{}.start({.num_workers = 2, .briefing = "start 0"}, [](ry::WorkerLink& link) {
    link.post(bytes_of(read_and_write(link)));
    if (link.world().rank == 1) ::raise(SIGKILL);
  });
  CHECK(found_by_ranks(*group) == std::vector<std::string>{"", ""});
  for (int start = 1; start < 3; ++start) {
    group->restart(2, fmt::format("start {}", start));
    CHECK(found_by_ranks(*group) == std::vector<std::string>(2, fmt::format("start {}", start - 1)));
  }
}

TEST_CASE("Processes: give no memory to a later start that a process of an earlier one may write to (TRAPS 38)") {
  auto group = ry::Processes{}.start({.num_workers = 2, .briefing = "fork"}, [](ry::WorkerLink& link) {
    const bool forks = link.briefing() == "fork" && link.world().rank == 0;
    link.post(bytes_of(read_and_write(link)));
    if (!forks) return;
    int has_left[2] = {-1, -1};
    if (::pipe(has_left) != 0) throw std::runtime_error{"pipe() failed"};
    char sign = 0;
    if (::fork() != 0) {
      if (::read(has_left[0], &sign, 1) != 1) throw std::runtime_error{"the process has not come to live by itself"};
      return;
    }
    ::alarm(60);
    if (::setsid() < 0 || ::write(has_left[1], &sign, 1) != 1) ::_exit(1);  // out of what ends with the worker
    while (true) ::pause();
  });
  CHECK(found_by_ranks(*group) == std::vector<std::string>{"", ""});
  group->restart(2, "second");
  CHECK(found_by_ranks(*group) == std::vector<std::string>{"", ""});
}

TEST_CASE("Processes: let go of the memory of ranks that there are no more") {
  auto group = ry::Processes{}.start({.num_workers = 2, .briefing = "start 0"},
                                     [](ry::WorkerLink& link) { link.post(bytes_of(read_and_write(link))); });
  follow_to_end(*group);
  group->restart(1, "start 1");
  CHECK(found_by_ranks(*group) == std::vector<std::string>{"start 0"});
  group->restart(2, "start 2");
  CHECK(found_by_ranks(*group) == std::vector<std::string>{"start 1", ""});
}

TEMPLATE_TEST_CASE("WorkerLink: gives memory once, and only where workers are processes", "", ry::Threads,
                   ry::Processes) {
  auto group = TestType{}.start({.num_workers = 1}, [](ry::WorkerLink& link) {
    const auto first = link.store().take_memory();
    const auto second = link.store().take_memory();
    link.post(bytes_of(fmt::format("{} {}", first.is_open(), second.is_open())));
  });
  const bool has_any = std::is_same_v<TestType, ry::Processes>;
  CHECK(found_by_ranks(*group) == std::vector<std::string>{fmt::format("{} false", has_any)});
}

TEMPLATE_TEST_CASE("WorkerLink: says of its store whether it joins threads", "", ry::Threads, ry::Processes) {
  auto group = TestType{}.start({.num_workers = 2}, [](ry::WorkerLink& link) {
    link.post(bytes_of(fmt::format("{}", link.store().joins_threads())));
  });
  const std::string answer = std::is_same_v<TestType, ry::Threads> ? "true" : "false";
  CHECK(found_by_ranks(*group) == std::vector<std::string>{answer, answer});
}
