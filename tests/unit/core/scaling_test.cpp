// SPDX-License-Identifier: MIT
#include "railyard/core/scaling.hpp"

#include "support/catch.hpp"

#include <stdexcept>

namespace ry = railyard;

namespace {

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
}

TEST_CASE("exit_of: a lost collective is a consequence and names who is blamed") {
  const auto exit = exit_after(ry::CollectiveError{"barrier", 0, {2}, "rank 2 did not answer"});
  CHECK(exit.is_consequence);
  CHECK(exit.blamed == std::vector<int>{2});
}

TEST_CASE("exit_of: says so when what was thrown is no exception object") {
  CHECK_THAT(exit_after(42).message, ContainsSubstring("std::exception"));
}

namespace {

struct NotAScaling {
  static constexpr std::string_view name = "none";
};
static_assert(!ry::Scaling<NotAScaling>);
static_assert(!ry::Scaling<int>);

}  // namespace
