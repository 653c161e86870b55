// SPDX-License-Identifier: MIT
#include "railyard/data/on_error.hpp"

#include "support/catch.hpp"

#include <thread>
#include <vector>

namespace ry = railyard;

TEST_CASE("OnError: lets as many samples be left out as it says") {
  CHECK(ry::OnError::stop().stops_at_once());
  CHECK(ry::OnError::stop().max_skips() == 0);
  CHECK_FALSE(ry::OnError::skip().stops_at_once());
  CHECK(ry::OnError::at_most(3).max_skips() == 3);
  CHECK(ry::OnError::at_most(0).stops_at_once());
}

TEST_CASE("SkipCount: keeps the largest count that any thread has seen, for all copies") {
  const ry::SkipCount count;
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t thread = 1; thread <= 4; ++thread) {
      threads.emplace_back([copy = count, thread] {
        for (std::uint64_t seen = 0; seen <= thread * 1000; ++seen) copy.raise_to(seen);
      });
    }
  }
  CHECK(count.count() == 4000);
}
