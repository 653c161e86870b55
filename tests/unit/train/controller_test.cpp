// SPDX-License-Identifier: MIT
#include "railyard/train/controller.hpp"

#include "support/catch.hpp"

namespace ry = railyard;
using Catch::ContainsSubstring;
using ry::Controller;
using ry::Phase;
using ry::WorkerExit;
using namespace std::chrono_literals;

namespace {

constexpr Controller::Time start{};

Controller::Time at(std::chrono::nanoseconds time) { return start + time; }

Controller begun(int num_workers) {
  Controller controller{{.num_workers = num_workers, .start_timeout = 10s, .stop_grace = 5s}};
  controller.begin(start);
  return controller;
}

Controller running(int num_workers) {
  Controller controller = begun(num_workers);
  for (int rank = 0; rank < num_workers; ++rank) controller.on_started(rank);
  return controller;
}

WorkerExit thrown(const std::string& message) { return {.kind = WorkerExit::Kind::threw, .message = message}; }
WorkerExit lost(std::vector<int> blamed) {
  return {.kind = WorkerExit::Kind::threw,
          .message = "all_reduce failed",
          .blamed = std::move(blamed),
          .is_consequence = true};
}

bool is_idle(const ry::Orders& orders) { return !orders.abort && !orders.kill && !orders.request_leave; }

}  // namespace

TEST_CASE("Controller: goes from checking to finished when nothing goes wrong") {
  Controller controller{{.num_workers = 2, .start_timeout = 10s}};
  CHECK(controller.phase() == Phase::checking);
  CHECK(controller.wakes_at() == Controller::Time::max());
  controller.begin(start);
  CHECK(controller.phase() == Phase::starting);
  CHECK(controller.wakes_at() == at(10s));
  controller.on_started(1);
  CHECK(controller.phase() == Phase::starting);
  controller.on_started(0);
  CHECK(controller.phase() == Phase::running);
  CHECK(controller.wakes_at() == Controller::Time::max());
  CHECK(is_idle(controller.on_exit(0, {}, at(20s))));
  CHECK(controller.num_alive() == 1);
  CHECK(is_idle(controller.on_exit(1, {}, at(30s))));
  CHECK(controller.phase() == Phase::finished);
  CHECK_FALSE(controller.failure());
}

TEST_CASE("Controller: workers that do not start in time are named") {
  Controller controller = begun(4);
  controller.on_started(0);
  controller.on_started(2);
  CHECK(is_idle(controller.on_time(at(9s))));
  const auto orders = controller.on_time(at(10s));
  REQUIRE(orders.abort);
  CHECK(controller.phase() == Phase::ending);
  CHECK(controller.failure()->rank == 1);
  CHECK_THAT(controller.failure()->what, ContainsSubstring("not joined") && ContainsSubstring("10 s") &&
                                             ContainsSubstring("nor had 3") && ContainsSubstring("start_timeout"));
}

TEST_CASE("Controller: time in which the program was suspended puts off what is due (TRAPS 25)") {
  Controller controller = begun(2);
  controller.put_off(400ms);  // a busy machine
  CHECK(controller.wakes_at() == at(10s));
  controller.put_off(1h);
  CHECK(controller.wakes_at() == at(1h + 10s));
  CHECK(is_idle(controller.on_time(at(1h + 9s))));
  CHECK(controller.on_time(at(1h + 10s)).abort);
  Controller other = running(2);
  other.put_off(1h);
  CHECK(other.wakes_at() == Controller::Time::max());
}

TEST_CASE("Controller: a ConfigError is of a kind of its own once its worker has started, and so of the training") {
  const WorkerExit refused{.kind = WorkerExit::Kind::threw, .message = "no batch", .is_config_error = true};
  Controller controller = running(2);
  CHECK(controller.on_exit(1, refused, at(1s)).abort == "rank 1 threw: no batch");
  CHECK(controller.failure()->kind == ry::Failure::Kind::setting);
  Controller connecting = begun(2);
  connecting.on_started(0);
  static_cast<void>(connecting.on_exit(1, refused, at(1s)));
  CHECK(connecting.failure()->kind == ry::Failure::Kind::exception);
}

TEST_CASE("Controller: a failure aborts the others, then kills them, then waits no longer") {
  Controller controller = running(3);
  const auto orders = controller.on_exit(1, thrown("boo"), at(1s));
  CHECK(orders.abort == "rank 1 threw: boo");
  CHECK_FALSE(orders.kill);
  CHECK(controller.phase() == Phase::ending);
  CHECK(is_idle(controller.on_exit(0, lost({1}), at(2s))));
  CHECK(is_idle(controller.on_time(at(5s))));
  CHECK(controller.on_time(at(6s)).kill);
  CHECK(controller.phase() == Phase::ending);
  CHECK(is_idle(controller.on_time(at(6s))));
  CHECK(controller.wakes_at() == at(16s));
  CHECK(is_idle(controller.on_time(at(16s))));
  CHECK(controller.phase() == Phase::finished);
  CHECK(controller.failure()->rank == 1);
}

TEST_CASE("Controller: the failure behind a lost collective is the first cause, whichever comes first") {
  Controller controller = running(3);
  CHECK(is_idle(controller.on_exit(0, lost({1}), at(1s))));
  CHECK(controller.wakes_at() == at(2s));
  CHECK(is_idle(controller.on_exit(2, lost({0}), at(1s))));
  CHECK(controller.on_exit(1, {.kind = WorkerExit::Kind::signalled, .code = SIGKILL, .message = "why"}, at(1500ms))
            .abort);
  CHECK(controller.failure()->rank == 1);
  CHECK(controller.failure()->what == "was ended by signal 9 (SIGKILL): why");
}

TEST_CASE("Controller: a signal is told once when the reason names it too") {
  Controller controller = running(1);
  const WorkerExit exit{
      .kind = WorkerExit::Kind::signalled, .code = SIGABRT, .message = "killed by signal 6 (SIGABRT): abort()"};
  CHECK(controller.on_exit(0, exit, at(1s)).abort);
  CHECK(controller.failure()->what == "was killed by signal 6 (SIGABRT): abort()");
}

TEST_CASE("Controller: exit() in a worker is a failure with any status") {
  Controller controller = running(2);
  CHECK(controller.on_exit(0, {.kind = WorkerExit::Kind::exited, .code = 0}, at(1s)).abort);
  CHECK_THAT(controller.failure()->what, ContainsSubstring("called exit(0)"));
}

TEST_CASE("Controller: a rank that returned while others waited for it is named with who waited") {
  Controller controller = running(3);
  CHECK(is_idle(controller.on_exit(0, {}, at(1s))));
  CHECK(is_idle(controller.on_exit(1, lost({0}), at(1s))));
  CHECK(is_idle(controller.on_time(at(1900ms))));
  CHECK(controller.on_time(at(2s)).abort);
  CHECK(controller.failure()->rank == 0);
  CHECK_THAT(controller.failure()->what,
             ContainsSubstring("returned from the training function while rank 1 still waited"));
}

TEST_CASE("Controller: no time is lost on a lost collective when nobody is left who could explain it") {
  Controller controller = running(2);
  CHECK(is_idle(controller.on_exit(1, lost({0}), at(1s))));
  CHECK(controller.on_exit(0, {}, at(1s)).abort);
  CHECK(controller.phase() == Phase::finished);
  CHECK(controller.failure()->rank == 0);
}

TEST_CASE("Controller: a rank that never answers is blamed on the word of the others") {
  Controller controller = running(3);
  CHECK(is_idle(controller.on_exit(0, lost({1}), at(1s))));
  CHECK(is_idle(controller.on_exit(2, lost({0}), at(1s))));
  CHECK(controller.on_time(at(2s)).abort);
  CHECK(controller.failure()->rank == 1);
  CHECK(controller.failure()->what == "did not answer rank 0: all_reduce failed");
}

TEST_CASE("Controller: ranks that blame each other leave the word to the first, and odd ranks are left out") {
  Controller controller = running(2);
  CHECK(is_idle(controller.on_exit(1, lost({0, 7, -1}), at(1s))));
  CHECK(controller.on_exit(0, lost({1}), at(1s)).abort);
  CHECK(controller.failure()->rank == 1);
  CHECK(controller.failure()->what == "threw: all_reduce failed");
}

TEST_CASE("Controller: silence, a broken group and a callback that throws end the run") {
  Controller silent = running(2);
  CHECK(silent.on_silence(1, "stopped since 30 s", at(1s)).abort);
  CHECK(silent.failure()->what == "stopped answering: stopped since 30 s");
  CHECK(is_idle(silent.on_silence(0, "", at(2s))));
  Controller broken = running(2);
  CHECK(broken.on_failure({.what = "lost"}, at(1s)).abort == "lost");
  CHECK(broken.failure()->rank == -1);
  CHECK(is_idle(broken.on_failure({.what = "again"}, at(1s))));
}

TEST_CASE("Controller: a rank that does not answer gets no grace once the others have gone") {
  Controller controller = running(3);
  CHECK(controller.on_silence(1, "stopped", at(1s)).abort);
  CHECK(is_idle(controller.on_exit(0, lost({1}), at(2s))));
  CHECK(controller.wakes_at() == at(6s));  // for rank 2
  CHECK(is_idle(controller.on_exit(2, lost({1}), at(2s))));
  CHECK(controller.wakes_at() == at(3s));
  CHECK(controller.on_time(at(3s)).kill);
  CHECK(controller.failure()->rank == 1);

  Controller alone = running(1);
  CHECK(alone.on_silence(0, "stopped", at(1s)).abort);
  CHECK(alone.on_time(at(2s)).kill);
}

TEST_CASE("Controller: the first signal asks to stop, the grace ends the wait") {
  Controller controller = running(2);
  CHECK(controller.on_signal(SIGTERM, at(1s)).request_leave);
  CHECK(controller.phase() == Phase::stopping);
  CHECK(is_idle(controller.on_exit(0, {}, at(2s))));
  CHECK(is_idle(controller.on_time(at(5s))));
  CHECK(controller.on_time(at(6s)).abort == "interrupted by SIGTERM");
  CHECK(controller.phase() == Phase::ending);
  CHECK(is_idle(controller.on_time(at(6900ms))));
  CHECK(controller.on_time(at(7s)).kill);  // not another 5 s
  CHECK(controller.failure()->signal == SIGTERM);
}

TEST_CASE("Controller: B1 a second signal kills at once") {
  Controller controller = running(2);
  CHECK(controller.on_signal(SIGINT, at(1s)).request_leave);
  const auto orders = controller.on_signal(SIGINT, at(2s));
  CHECK(orders.abort);
  CHECK(orders.kill);
  CHECK(controller.failure()->signal == SIGINT);
  CHECK(controller.failure()->what == "interrupted by SIGINT");
}

TEST_CASE("Controller: a signal after a failure kills and leaves the failure") {
  Controller controller = running(2);
  CHECK(controller.on_exit(0, thrown("boo"), at(1s)).abort);
  const auto orders = controller.on_signal(SIGINT, at(2s));
  CHECK(orders.kill);
  CHECK_FALSE(orders.abort);
  CHECK(controller.failure()->signal == 0);
  CHECK(controller.failure()->rank == 0);
}

TEST_CASE(
    "Controller: a rank that fails while all are stopping ends the others, and the interruption stays the cause") {
  Controller controller = running(2);
  CHECK(controller.on_signal(SIGINT, at(1s)).request_leave);
  CHECK(controller.on_exit(0, thrown("boo"), at(2s)).abort);
  CHECK(controller.phase() == Phase::ending);
  CHECK(controller.failure()->what == "interrupted by SIGINT");
}

TEST_CASE("Controller: times without end do not wrap around") {
  Controller controller{{.num_workers = 1,
                         .start_timeout = std::chrono::nanoseconds::max(),
                         .stop_grace = std::chrono::nanoseconds::max()}};
  controller.begin(at(1s));
  CHECK(controller.wakes_at() == Controller::Time::max());
  CHECK(is_idle(controller.on_time(at(24h))));
}
