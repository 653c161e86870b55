// SPDX-License-Identifier: MIT
// What users' sources and functions do wrong: they do not return, or throw.
#include "railyard/data/epoch_reader.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ry = railyard;
using Catch::ContainsSubstring;

namespace {

ry::Dataset up_to(std::size_t count) {
  std::vector<std::int64_t> all(count);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return ry::Dataset::from_columns({{"n", all}});
}

// A source of a user's own that throws something of its own where it is asked for sample 5.
class Faulty {
 public:
  [[nodiscard]] ry::Schema schema() const { return {{"n", ry::Dtype::i64}}; }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return 8; }
  [[nodiscard]] std::string describe() const { return "faulty source"; }
  [[nodiscard]] std::unique_ptr<ry::BlockReader> open(std::uint64_t from) const {
    class Reader final : public ry::BlockReader {
     public:
      explicit Reader(std::uint64_t at) : at_(at) {}
      [[nodiscard]] ry::Block next(std::size_t most_rows) override {
        const std::size_t rows = std::min<std::size_t>(most_rows, 8 - at_);
        if (at_ <= 5 && at_ + rows > 5) throw std::runtime_error{"no cable"};
        at_ += rows;
        return up_to(8).node()->read(ry::detail::places_between(at_ - rows, at_), {});
      }

     private:
      std::uint64_t at_;
    };
    if (from > 5) throw 5;
    return std::make_unique<Reader>(from);
  }
};

// It can be asked for any sample.
class FaultyIndexed : public Faulty {
 public:
  [[nodiscard]] ry::Block read(std::span<const std::uint64_t> ids) const {
    if (std::count(ids.begin(), ids.end(), 5U) > 0) throw std::out_of_range{"no shelf"};
    if (std::count(ids.begin(), ids.end(), 7U) > 0) throw ry::DataError{"line 7 of it is damaged"};
    return up_to(8).node()->read(ids, {});
  }
};

std::string fault_of(const ry::Dataset& dataset, std::size_t threads) {
  ry::EpochReader reader{dataset, {.global_batch_size = 3, .threads = threads}};
  try {
    while (reader.next()) {
    }
  } catch (const ry::DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Dataset: what a source of the user's own throws comes with its description and the samples") {
  for (const std::size_t threads : {0U, 3U}) {
    CHECK_THAT(fault_of(ry::Dataset{Faulty{}}, threads),
               ContainsSubstring("faulty source: ") && ContainsSubstring("sample") && ContainsSubstring("no cable"));
    CHECK(fault_of(ry::Dataset{FaultyIndexed{}}.skip(3), threads) == "faulty source: samples 3 to 5: no shelf");
    CHECK(fault_of(ry::Dataset{FaultyIndexed{}}.at({5}), threads) == "faulty source: sample 5: no shelf");
    CHECK(fault_of(ry::Dataset{FaultyIndexed{}}.skip(6), threads) == "line 7 of it is damaged");
  }
  const ry::Dataset faulty{Faulty{}};
  const auto open_late = [&] {
    ry::detail::TaskPool pool{0};
    ry::detail::MemoryBudget budget{1 << 20U};
    ry::detail::PlaceCursor from{{6}};
    static_cast<void>(faulty.node()->open({{}, &pool, &budget}, from));
  };
  CHECK_THROWS_WITH(open_late(), "faulty source: sample 6: an exception that is no std::exception");
}

TEST_CASE("Dataset::map_batches: an exception of the function names all samples that it was given") {
  const auto dataset =
      up_to(10).at({4, 9, 2}).map_batches([](const ry::Block&) -> ry::Block { throw std::runtime_error{"no sum"}; });
  CHECK_THAT(fault_of(dataset, 0), ContainsSubstring("map_batches: 3 samples between 2 and 9: no sum"));
}

TEST_CASE("EpochReader: an exception in a stream comes after the same batches for any number of threads") {
  const auto dataset = up_to(1000).shuffle_window(100).filter([](const ry::Sample& sample) {
    if (sample.id() == 657) throw std::runtime_error{"no such thing"};
    return true;
  });
  const auto batches_before = [&](std::size_t threads) {
    ry::EpochReader reader{dataset, {.global_batch_size = 3, .threads = threads, .bound_bytes = 1 << 14}};
    std::size_t batches = 0;
    try {
      while (reader.next()) ++batches;
    } catch (const ry::DataError& error) {
      CHECK_THAT(error.what(), ContainsSubstring("filter: sample 657: no such thing"));
    }
    CHECK_THROWS_WITH(reader.next(), ContainsSubstring("sample 657"));  // does not go on after it
    CHECK(reader.position().consumed() == 3 * batches);
    return batches;
  };
  const std::size_t batches = batches_before(0);
  CHECK(batches > 100);
  for (const std::size_t threads : {1U, 2U, 4U, 8U}) CHECK(batches_before(threads) == batches);
}

TEST_CASE(
    "EpochReader: says what does not answer when the deadline passes; FAULTS E10: a worker that hangs is no hang") {
  std::promise<void> go_on;
  const auto gate = go_on.get_future().share();
  const auto dataset = up_to(10).map([gate](const ry::Sample&, ry::SampleWriter&) { gate.wait(); });
  ry::EpochReader reader{dataset, {.global_batch_size = 4, .rank = 1, .world_size = 2}};
  CHECK_THROWS_WITH(reader.next(ry::Deadline::after(std::chrono::milliseconds{20})),
                    ContainsSubstring("-> map on rank 1/2 gave no batch in 20 ms"));
  go_on.set_value();
  CHECK(reader.next(ry::Deadline::after(std::chrono::minutes{1})));
}

TEST_CASE("EpochReader: ends although a function of the user's does not, once the deadline has passed (E10)") {
  std::promise<void> go_on;
  const auto gate = go_on.get_future().share();
  std::weak_ptr<int> kept;
  for (const std::size_t threads : {1U, 3U}) {
    const auto made = std::make_shared<int>(1);
    kept = made;
    const auto dataset = up_to(10).map([gate, made](const ry::Sample&, ry::SampleWriter&) { gate.wait(); });
    const auto read = [&] {
      ry::EpochReader reader{dataset, {.global_batch_size = 4, .threads = threads}};
      return reader.next(ry::Deadline::after(std::chrono::milliseconds{20}));
    };
    CHECK_THROWS_WITH(read(), ContainsSubstring("gave no batch in 20 ms"));
  }
  CHECK_FALSE(kept.expired());  // it is still in the function
  go_on.set_value();
  const auto deadline = ry::Deadline::after(std::chrono::minutes{1});
  while (!kept.expired() && !deadline.expired()) std::this_thread::yield();
  CHECK(kept.expired());
}
