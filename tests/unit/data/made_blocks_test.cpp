// SPDX-License-Identifier: MIT
// What a reader makes of blocks for a loader, and when.
#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

using Counted = std::vector<std::int64_t>;

ry::Dataset counted(std::size_t count) {
  Counted values(count);
  std::iota(values.begin(), values.end(), 0);
  return ry::Dataset::from_columns({{"n", values}});
}

// Counts the blocks that something was made of; each takes so many bytes.
struct Making {
  explicit Making(std::size_t bytes_ = 0) : bytes(bytes_) {}
  [[nodiscard]] ry::detail::LoaderWishes wishes() {
    return {nullptr, [this](const ry::Block& block) {
              const std::lock_guard lock{mutex};
              threads.insert(std::this_thread::get_id());
              ++count;
              changed.notify_all();
              return ry::detail::MadeOfBlock{std::make_shared<Counted>(values_of(block)), bytes};
            }};
  }
  [[nodiscard]] static Counted values_of(const ry::Block& block) {
    const auto values = block.column("n").values<std::int64_t>();
    return {values.begin(), values.end()};
  }
  [[nodiscard]] bool reaches(std::size_t goal) {
    std::unique_lock lock{mutex};
    return changed.wait_for(lock, std::chrono::minutes{1}, [&] { return count >= goal; });
  }
  [[nodiscard]] bool is_within(std::size_t most) {
    const std::lock_guard lock{mutex};
    return count <= most;
  }

  std::size_t bytes;
  std::mutex mutex{};
  std::condition_variable changed{};
  std::size_t count = 0;
  std::set<std::thread::id> threads{};
};

}  // namespace

TEST_CASE("EpochReader: has things made of blocks in their order, ahead of the loop where there are threads") {
  for (const std::size_t threads : {0U, 1U, 3U}) {
    Making making;
    ry::EpochReader reader{counted(1000).map([](const ry::Sample&, ry::SampleWriter&) {}),
                           {.global_batch_size = 7, .threads = threads},
                           making.wishes()};
    std::size_t steps = 0;
    while (const auto step = reader.next()) {
      CHECK(*std::static_pointer_cast<Counted>(step->made) == Making::values_of(step->block));
      ++steps;
    }
    CHECK(making.count == steps);
    CHECK(making.threads.size() == 1);
    CHECK((*making.threads.begin() == std::this_thread::get_id()) == (threads == 0));
  }
}

TEST_CASE("EpochReader: what is made of blocks is counted as memory under way") {
  Making making{std::size_t{1} << 20U};
  ry::EpochReader reader{counted(100),
                         {.global_batch_size = 1, .threads = 1, .prefetch = 100, .bound_bytes = std::size_t{8} << 20U},
                         making.wishes()};
  std::size_t largest_use = 0;
  CHECK(making.reaches(3));
  while (const auto step = reader.next()) largest_use = std::max(largest_use, reader.used_bytes());
  CHECK(largest_use >= std::size_t{1} << 20U);
  CHECK(largest_use <= std::size_t{8} << 20U);
  CHECK(making.count == 100);
}

TEST_CASE("EpochReader: a thread that has read ahead as far as it may reads on when half of that has been taken") {
  Making making;
  ry::EpochReader reader{counted(100), {.global_batch_size = 1, .threads = 1, .prefetch = 8}, making.wishes()};
  CHECK(making.reaches(8));
  CHECK(making.is_within(8 + 1));  // and one that is being made
  for (int step = 0; step < 4; ++step) CHECK(reader.next());
  CHECK(making.reaches(12));
  CHECK(making.is_within(12 + 1));
  std::size_t left = 0;
  while (reader.next()) ++left;
  CHECK(left == 96);
}

TEST_CASE("EpochReader: what making something of a block throws comes where the block would") {
  for (const std::size_t threads : {0U, 2U}) {
    int left = 3;
    ry::EpochReader reader{counted(100),
                           {.global_batch_size = 10, .threads = threads},
                           {nullptr, [&](const ry::Block&) -> ry::detail::MadeOfBlock {
                              if (left-- == 0) throw std::runtime_error{"it cannot be made"};
                              return {};
                            }}};
    for (int step = 0; step < 3; ++step) CHECK(reader.next());
    CHECK_THROWS_WITH(reader.next(), ContainsSubstring("it cannot be made"));
    CHECK_THROWS_WITH(reader.next(), ContainsSubstring("it cannot be made"));
  }
}
