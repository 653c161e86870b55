// SPDX-License-Identifier: MIT
#include "railyard/train/result.hpp"

#include "support/catch.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <array>
#include <string>

namespace ry = railyard;

namespace {

// Returns what print_error() writes to standard error.
std::string errors_of(const ry::Result& result) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const int kept = ::dup(2);
  ::dup2(ends[1], 2);
  CHECK(&result.print_error() == &result);
  ::dup2(kept, 2);
  ::close(kept);
  ::close(ends[1]);
  std::array<char, 100> text{};
  const ssize_t size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  return {text.data(), static_cast<std::size_t>(size)};
}

}  // namespace

TEST_CASE("Result: of a run that succeeded") {
  const ry::Result result{{.history = {{{"loss", 2}}, {{"loss", 1}}}, .world_size = 2}};
  CHECK(static_cast<bool>(result));
  CHECK(result.metrics().at("loss").number() == 1);
  CHECK(result.history().size() == 2);
  CHECK(&result.value_or_throw() == &result);
  CHECK(result.failed_rank() == -1);
  CHECK(result.exit_status() == 0);
  CHECK(errors_of(result).empty());
}

TEST_CASE("Result: of a run that failed") {
  const ry::Result result{{.error = "rank 1 threw: boo", .failed_rank = 1, .exit_status = 1}};
  CHECK_FALSE(static_cast<bool>(result));
  CHECK(result.metrics().empty());
  try {
    static_cast<void>(result.value_or_throw());
    FAIL("no exception");
  } catch (const ry::WorkerError& error) {
    CHECK(error.rank() == 1);
    CHECK(std::string{error.what()} == "rank 1 threw: boo");
  }
  CHECK(errors_of(result) == "rank 1 threw: boo\n");
}

TEST_CASE("Result: can be copied and moved with its metrics") {
  ry::Result first{{.history = {{{"loss", 2}}}}};
  ry::Result second = first;
  const ry::Result third = std::move(second);
  CHECK(third.metrics().at("loss").number() == 2);
  CHECK(first.metrics().at("loss").number() == 2);
}
