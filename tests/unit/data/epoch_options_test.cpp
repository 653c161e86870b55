// SPDX-License-Identifier: MIT
#include "railyard/data/epoch_options.hpp"

#include "support/catch.hpp"

#include "railyard/data/epoch_reader.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace ry = railyard;

namespace {

constexpr std::size_t shuffled_sample_bytes = 10'000;
constexpr std::size_t shuffled_bound_bytes = std::size_t{4} << 20U;

// Looks from any thread at how much a reader has under way at most, until the look ends.
class Look {
 public:
  void at_now() {
    const std::lock_guard lock{mutex_};
    if (reader_ != nullptr) most_ = std::max(most_, reader_->used_bytes());
  }
  [[nodiscard]] std::size_t most() const noexcept { return most_; }

  // Is a look at one reader, which ends before the reader does, however that comes about.
  class At {
   public:
    At(Look& look, const ry::EpochReader& reader) : look_(&look) { look_->set(&reader); }
    At(const At&) = delete;
    At& operator=(const At&) = delete;
    ~At() { look_->set(nullptr); }

   private:
    Look* look_;
  };

 private:
  void set(const ry::EpochReader* reader) {
    const std::lock_guard lock{mutex_};
    reader_ = reader;
  }

  std::mutex mutex_{};
  const ry::EpochReader* reader_ = nullptr;
  std::size_t most_ = 0;
};

// Reads shuffled samples in batches, and returns how much is under way at most, in percent of the bound. window, batch:
// in percent of it as well.
std::size_t percent_used(std::size_t window, std::size_t batch, std::size_t threads) {
  constexpr std::size_t percent_rows = shuffled_bound_bytes / shuffled_sample_bytes;  // of a hundred
  Look look;
  const std::vector<std::uint8_t> row(shuffled_sample_bytes);
  const auto same = [&](const ry::Sample&, ry::SampleWriter& out) {
    look.at_now();
    out.set("x", row);
  };
  const auto dataset =
      ry::Dataset::from_generator({{"x", ry::Dtype::u8, {static_cast<std::int64_t>(row.size())}}}, [&row] {
        return [&row, num_left = 3 * percent_rows](ry::SampleWriter& out) mutable {
          if (num_left-- == 0) return false;
          out.set("x", row);
          return true;
        };
      });
  ry::EpochReader all{dataset.shuffle_window(window * percent_rows / 100).map(same).map(same),
                      {.global_batch_size = batch * percent_rows / 100,
                       .threads = threads,
                       .prefetch = 1000,
                       .bound_bytes = shuffled_bound_bytes}};
  const Look::At looked_at{look, all};
  std::size_t samples = 0;
  while (const auto step = all.next()) {
    samples += step->samples;
    look.at_now();
  }
  CHECK(samples == 3 * percent_rows);
  return look.most() * 100 / shuffled_bound_bytes;
}

}  // namespace

TEST_CASE("EpochOptions: are refused when they cannot be met") {
  const auto dataset = ry::Dataset::from_columns({{"x", std::vector<float>(3)}});
  const auto check = [](const ry::Dataset& of, const ry::EpochOptions& options) {
    return ry::detail::check_epoch_options(of, options);
  };
  CHECK(check(dataset, {.global_batch_size = 1, .seed = 2, .epoch = 5}).epoch() == 5);
  CHECK_THROWS_WITH(check(dataset, {}), ContainsSubstring("global_batch_size must be given"));
  CHECK_THROWS_WITH(check(dataset, {.global_batch_size = 1, .rank = 2, .world_size = 2}),
                    ContainsSubstring("on rank 2/2"));
  CHECK_THROWS_WITH(check(dataset, {.global_batch_size = 1, .micro_batches = 0}), ContainsSubstring("micro_batches"));
  const auto stream = dataset.filter([](const ry::Sample&) { return true; });
  CHECK_THROWS_WITH(check(stream, {.global_batch_size = 1, .shuffle = true}),
                    ContainsSubstring("-> filter") && ContainsSubstring("shuffle_window()"));
}

TEST_CASE("EpochOptions: take from the dataset what they do not say") {
  const auto dataset = ry::Dataset::from_columns({{"x", std::vector<float>(10)}});
  const ry::Dataset said = dataset.batch(4).prefetch(2).filter([](const ry::Sample&) { return true; }).take(9);
  CHECK((said.batch_size() == 4 && said.batches_ahead() == 2));
  const ry::EpochOptions completed = ry::detail::completed({}, said);
  CHECK((completed.global_batch_size == 4 && completed.prefetch == 2));
  const ry::EpochOptions given = ry::detail::completed({.global_batch_size = 3, .prefetch = 7}, said);
  CHECK((given.global_batch_size == 3 && given.prefetch == 7));
  CHECK((dataset.batch_size() == 0 && ry::detail::completed({}, dataset).prefetch == 8));

  ry::EpochReader reader{said, {}};
  std::vector<std::size_t> sizes;
  for (const ry::EpochStep& step : reader) sizes.push_back(step.block.rows());
  CHECK(sizes == std::vector<std::size_t>{4, 4, 1});
}

TEST_CASE("EpochOptions: a batch may be as large as can be said, also where reading goes on in the middle") {
  for (const bool is_stream : {false, true}) {
    const auto columns = ry::Dataset::from_columns({{"x", std::vector<float>(10)}});
    const auto dataset = is_stream ? columns.filter([](const ry::Sample&) { return true; }) : columns;
    ry::EpochReader begin{dataset, {.global_batch_size = 3}};
    CHECK(begin.next());
    ry::EpochReader rest{dataset,
                         {.global_batch_size = std::numeric_limits<std::size_t>::max(), .from = begin.position()}};
    const auto step = rest.next();
    CHECK((step && step->samples == 7));
    CHECK_FALSE(rest.next());
  }
}

TEST_CASE(
    "EpochOptions: what a batch has already counts against the bound while the rest of it is read from a stream") {
  constexpr std::size_t sample_bytes = 10'000;
  constexpr std::size_t batch_size = 50;
  const ry::EpochReader* reader = nullptr;
  std::size_t num_seen = 0;
  std::size_t num_uncounted = 0;
  const auto look = [&](const ry::Sample&) {
    const std::size_t in_batch = num_seen++ % batch_size;
    const std::size_t in_blocks = 14;  // which the filter has, or has just given
    if (in_batch > in_blocks && reader->used_bytes() < (in_batch - in_blocks) * sample_bytes) ++num_uncounted;
    return true;
  };
  const std::vector<std::uint8_t> row(sample_bytes);
  const auto dataset =
      ry::Dataset::from_generator({{"x", ry::Dtype::u8, {static_cast<std::int64_t>(sample_bytes)}}}, [&row] {
        return [&row, num_left = 4 * batch_size](ry::SampleWriter& out) mutable {
          if (num_left-- == 0) return false;
          out.set("x", row);
          return true;
        };
      });
  ry::EpochReader all{dataset.filter(look),
                      {.global_batch_size = batch_size, .threads = 0, .bound_bytes = std::size_t{2} << 20U}};
  reader = &all;
  while (all.next()) {
  }
  CHECK(num_seen == 4 * batch_size);
  CHECK(num_uncounted == 0);
  CHECK(all.used_bytes() == 0);
}

TEST_CASE("EpochOptions: large windows and large batches together keep to the bound") {
  for (const std::size_t threads : {0U, 1U, 3U}) {
    for (const auto& [window, batch] : {std::pair{70U, 2U}, std::pair{70U, 12U}, std::pair{50U, 20U}}) {
      CAPTURE(threads, window, batch);
      CHECK(percent_used(window, batch, threads) <= 110);
    }
  }
}

TEST_CASE("EpochOptions: a window that leaves no room for two batches is refused") {
  CHECK_THROWS_WITH(percent_used(70, 20, 1), ContainsSubstring("shuffle_window(") &&
                                                 ContainsSubstring("for batches: make it or the batches smaller"));
}

TEST_CASE("EpochOptions: batches of which the bound holds no two are read all the same, and break it by no more") {
  for (const std::size_t threads : {0U, 1U, 3U}) {
    for (const auto& [window, batch] : {std::pair{10U, 60U}, std::pair{10U, 150U}, std::pair{40U, 90U}}) {
      CAPTURE(threads, window, batch);
      CHECK(percent_used(window, batch, threads) <= window + 2 * batch + 10);
    }
  }
}

TEST_CASE("EpochOptions: a saved position behind more samples than there are is refused by that name") {
  const auto ten = ry::Dataset::from_columns({{"x", std::vector<float>(10)}});
  ry::EpochPosition behind{0, 0, false, 10};
  behind.move_to(11);
  CHECK_THROWS_WITH(ry::EpochReader(ten, {.global_batch_size = 4, .from = behind}),
                    ContainsSubstring("behind 11 samples of 10"));
}
