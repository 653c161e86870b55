// SPDX-License-Identifier: MIT
#include "railyard/core/scaling.hpp"

#include "support/catch.hpp"

#include <stdexcept>

namespace ry = railyard;

namespace {

struct Odd {};

template <class E>
ry::WorkerExit exit_after(const E& exception) {
  return ry::exit_of(std::make_exception_ptr(exception));
}

}  // namespace

TEST_CASE("exit_of: keeps the message of a standard exception and calls it a cause") {
  const auto exit = exit_after(std::runtime_error{"no such file"});
  CHECK(exit.kind == ry::WorkerExit::Kind::threw);
  CHECK(exit.message == "no such file");
  CHECK_FALSE(exit.is_consequence);
  CHECK_FALSE(exit.is_config_error);
}

TEST_CASE("exit_of: a lost collective is a consequence and names who is blamed") {
  const auto exit = exit_after(ry::CollectiveError{"barrier", 0, {2}, "rank 2 did not answer"});
  CHECK(exit.is_consequence);
  CHECK(exit.blamed == std::vector<int>{2});
}

TEST_CASE("exit_of: an error of configuration is told from others") {
  const auto exit = exit_after(ry::ConfigError{"num_workers is 0"});
  CHECK(exit.is_config_error);
  CHECK_FALSE(exit.is_consequence);
}

TEST_CASE("exit_of: texts and numbers that are thrown are the message, anything else is named by its type") {
  CHECK(exit_after(42).message == "42");
  CHECK(exit_after(-7L).message == "-7");
  CHECK(exit_after(std::string{"no disk"}).message == "no disk");
  CHECK(exit_after(static_cast<const char*>("no file")).message == "no file");
  CHECK(exit_after(Odd{}).message == "an exception of type (anonymous namespace)::Odd");
}

TEST_CASE("exit_of: a thread that was unwound without an exception has a message too") {
  const auto exit = ry::exit_of(nullptr);
  CHECK(exit.kind == ry::WorkerExit::Kind::threw);
  CHECK_THAT(exit.message, Catch::Contains("pthread_exit"));
}

TEST_CASE("exit_of: tells the type for an empty what(), drops LibTorch's backtrace, adds nested causes") {
  CHECK(exit_after(std::runtime_error{""}).message == "std::runtime_error");
  CHECK(exit_after(std::runtime_error{"bad shape\nException raised from f at x.cpp:1\nframe #0"}).message ==
        "bad shape");
  std::exception_ptr outer;
  try {
    try {
      throw std::runtime_error{"no such file"};
    } catch (...) {
      std::throw_with_nested(std::logic_error{"cannot load"});
    }
  } catch (...) {
    outer = std::current_exception();
  }
  CHECK(ry::exit_of(outer).message == "cannot load; because: no such file");
}

namespace {

struct NotAScaling {
  static constexpr std::string_view name = "none";
};
static_assert(!ry::Scaling<NotAScaling>);
static_assert(!ry::Scaling<int>);

}  // namespace
