// SPDX-License-Identifier: MIT
// The small parts of this room.
#include "railyard/workers/detail/exit_reason.hpp"
#include "railyard/workers/detail/line_splitter.hpp"
#include "railyard/workers/detail/silence_watch.hpp"
#include "railyard/workers/detail/worker_link.hpp"

#include "support.hpp"
#include "support/catch.hpp"

#include <fstream>

using namespace workers_test;

namespace {

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  ry::detail::LineSplitter splitter;
  std::vector<std::string> lines;
  const auto sink = [&](std::string line) { lines.push_back(std::move(line)); };
  for (const auto& chunk : chunks) splitter.append(chunk, sink);
  splitter.finish(sink);
  return lines;
}

// Looks at `watch` every `step` of its clock, for `total`, at heartbeats that stand still.
int count_reports(ry::detail::SilenceWatch& watch, std::int64_t& now_ns, std::chrono::nanoseconds step,
                  std::chrono::nanoseconds total) {
  int reports = 0;
  for (const auto end = now_ns + total.count(); now_ns < end;) {
    now_ns += step.count();
    watch.look(
        now_ns, [](int) { return std::uint64_t{5}; }, [&](int, std::chrono::nanoseconds) { ++reports; });
  }
  return reports;
}

}  // namespace

TEST_CASE("LineSplitter: makes the same lines of every division into chunks") {
  using Lines = std::vector<std::string>;
  CHECK(split({"a\nb\n"}) == Lines{"a", "b"});
  CHECK(split({"a", "\n", "b", "c\n\n", "d"}) == Lines{"a", "bc", "", "d"});
  CHECK(split({}) == Lines{});
  CHECK(split({"\n"}) == Lines{""});
}

TEST_CASE("LineSplitter: cuts a line that is too long, but not one that just fits") {
  const std::size_t most = ry::detail::LineSplitter::max_bytes;
  CHECK(split({std::string(most, 'x') + "\n"}).size() == 1);
  CHECK(split({std::string(most, 'x'), "\n"}).size() == 1);
  CHECK(split({std::string(most, 'x')}).size() == 1);
  const auto cut = split({std::string(2 * most + 1, 'x') + "\nnext"});
  REQUIRE(cut.size() == 4);
  CHECK(cut[0].size() == most);
  CHECK(cut[2].size() == 1);
  CHECK(cut[3] == "next");
}

TEST_CASE("SilenceWatch: reports a heartbeat that stands still once, after the limit") {
  std::int64_t now = 0;
  ry::detail::SilenceWatch watch{1, 8s, now};
  CHECK(watch.interval() == 1s);
  CHECK(count_reports(watch, now, 1s, 9s) == 0);  // the first look sees a change from 0 to 5
  CHECK(count_reports(watch, now, 1s, 1s) == 1);
  CHECK(count_reports(watch, now, 1s, 100s) == 0);
}

TEST_CASE("SilenceWatch: does not count the time in which nobody looked") {
  std::int64_t now = 0;
  ry::detail::SilenceWatch watch{1, 8s, now};
  CHECK(count_reports(watch, now, 1s, 4s) == 0);
  CHECK(count_reports(watch, now, 1h, 1h) == 0);  // suspended: counts as two intervals at most
  CHECK(count_reports(watch, now, 1s, 3s) == 0);
  CHECK(count_reports(watch, now, 1s, 1s) == 1);
}

TEST_CASE("OomCounter: reads the kernel's numbers and notices a kill") {
  const std::string path = fmt::format("/tmp/railyard-{}-memory.events", ::getpid());
  std::ofstream{path} << "low 0\nhigh 12\nmax 3\noom 4\noom_kill 5\n";
  CHECK(ry::detail::number_in_file(path, "oom_kill") == 5U);
  CHECK(ry::detail::number_in_file(path, "oom") == 4U);
  CHECK_FALSE(ry::detail::number_in_file(path, "oom_group_kill"));
  CHECK_FALSE(ry::detail::number_in_file(path + "x", "oom_kill"));
  ry::detail::OomCounter counter{path};
  CHECK_FALSE(counter.has_moved());
  std::ofstream{path} << "oom_kill 6\n";
  CHECK(counter.has_moved());
  CHECK_THAT(ry::detail::explain_signal(SIGKILL, false, counter), ContainsSubstring("out of memory"));
  ::unlink(path.c_str());
  CHECK(ry::detail::number_in_file("/proc/vmstat", "oom_kill").has_value());
}

TEST_CASE("process_state: tells a stopped, a dead and a missing process apart") {
  Forked stopped{[](const Forked::Tell&) {
    ::raise(SIGSTOP);
    return 0;
  }};
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(stopped.pid()), &info, WSTOPPED | WNOWAIT);
  CHECK(ry::detail::process_state(stopped.pid()) == 'T');
  ::kill(stopped.pid(), SIGKILL);
  CHECK(ends(stopped.pid()));
  CHECK(ry::detail::process_state(stopped.pid()) == 'Z');
  CHECK(ry::detail::process_state(::getpid()) == 'R');
  CHECK(ry::detail::process_state(0) == '\0');
}

TEST_CASE("encode_exit: brings back what it was given, and bounds a huge message") {
  const ry::WorkerExit exit{.kind = ry::WorkerExit::Kind::threw,
                            .code = -7,
                            .message = std::string("with \0 inside", 13),
                            .blamed = {3, 1},
                            .is_consequence = true};
  const auto back = ry::detail::decode_exit(ry::detail::encode_exit(exit));
  CHECK(back.kind == exit.kind);
  CHECK(back.code == exit.code);
  CHECK(back.message == exit.message);
  CHECK(back.blamed == exit.blamed);
  CHECK(back.is_consequence);
  CHECK_FALSE(back.is_config_error);
  const auto refused = ry::detail::decode_exit(ry::detail::encode_exit({.is_config_error = true}));
  CHECK(refused.is_config_error);
  CHECK_FALSE(refused.is_consequence);
  const auto huge = ry::detail::encode_exit({.message = std::string(std::size_t{9} << 20U, 'x')});
  CHECK(huge.size() <= ry::detail::max_message_bytes);
  CHECK(ry::detail::decode_exit({}).message.empty());
  CHECK(ry::detail::decode_exit(std::span{huge}.first(7)).blamed.empty());
}

TEST_CASE("AbortHandler: set does not return while the former handler runs") {
  ry::detail::AbortHandler handler;
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_leave{false};
  std::atomic<bool> has_left{false};
  handler.set([&](std::string_view) {
    is_inside.store(true);
    while (!may_leave.load()) std::this_thread::yield();
    has_left.store(true);
  });
  std::thread agent{[&] { handler.run("over"); }};
  while (!is_inside.load()) std::this_thread::yield();
  std::thread releaser{[&] { may_leave.store(true); }};
  handler.set({});
  CHECK(has_left.load());
  agent.join();
  releaser.join();
}

TEST_CASE("AbortHandler: may be taken away by itself, and swallows what it throws") {
  ry::detail::AbortHandler handler;
  int times = 0;
  handler.set([&](std::string_view) {
    ++times;
    handler.set({});
    throw std::runtime_error{"nobody could be told"};
  });
  handler.run("over");
  handler.run("over");
  CHECK(times == 1);
}
