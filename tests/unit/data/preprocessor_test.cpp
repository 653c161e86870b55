// SPDX-License-Identifier: MIT
#include "railyard/data/preprocessor.hpp"

#include "railyard/data/chain.hpp"
#include "railyard/data/imputer.hpp"
#include "railyard/data/normalizer.hpp"
#include "railyard/data/scalers.hpp"

#include "preprocessing.hpp"

#include "support/catch.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace ry = railyard;

namespace preprocessor_test {
using preprocessing::Rows;

static_assert(ry::Preprocessor<ry::Normalizer> && !ry::LearningPreprocessor<ry::Normalizer>);

/// Is a source over a block.
struct Source {
  ry::Block block{};
  [[nodiscard]] ry::Schema schema() const { return block.schema(); }
  [[nodiscard]] std::optional<std::uint64_t> count() const { return block.rows(); }
  [[nodiscard]] std::string describe() const { return "a block"; }
  [[nodiscard]] std::unique_ptr<ry::BlockReader> open(std::uint64_t from) const {
    return std::make_unique<preprocessing::RowsOfBlock>(block.slice(from, block.rows()));
  }
};

inline ry::Block random_block(std::size_t rows) {
  std::mt19937_64 generator{rows};
  std::lognormal_distribution<double> distribution;
  std::vector<double> values(rows);
  for (double& value : values) value = generator() % 10 == 0 ? preprocessing::nan : distribution(generator);
  return Rows{}.numbers("a", values).block();
}

TEST_CASE("fit: reads a source once, in blocks of the size that was asked for") {
  const Source source{random_block(10'000)};
  ry::StandardScaler one_block{{.columns = {"a"}}};
  ry::fit(one_block, source, {.rows_per_block = 10'000});
  for (const std::size_t rows : {std::size_t{1}, std::size_t{7}, std::size_t{4096}}) {
    ry::StandardScaler scaler{{.columns = {"a"}}};
    ry::fit(scaler, source, {.rows_per_block = rows});
    CHECK(scaler.learned()[0].mean == Approx(one_block.learned()[0].mean).epsilon(1e-13));
    CHECK(scaler.learned()[0].variance == Approx(one_block.learned()[0].variance).epsilon(1e-12));
  }
}

/// Gathers what the threads of a test give.
class Gathering {
 public:
  explicit Gathering(std::size_t size) : all_(size) {}
  std::vector<std::vector<std::byte>> gather(std::size_t rank, std::vector<std::byte> bytes) {
    std::unique_lock lock{mutex_};
    all_[rank] = std::move(bytes);
    const std::size_t round = arrived_++ / all_.size();
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::minutes{1}, [&] { return arrived_ >= (round + 1) * all_.size(); })) {
      throw ry::Error{"a worker did not give its statistics within a minute"};
    }
    return all_;
  }

 private:
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::size_t arrived_ = 0;
  std::vector<std::vector<std::byte>> all_;
};

TEST_CASE("fit: gives all workers the same bits, and near to what one worker learns") {
  const ry::Block block = random_block(30'000);
  ry::RobustScaler alone{{.columns = {"a"}}};
  preprocessing::fit(alone, block);
  const std::size_t size = GENERATE(1U, 2U, 5U);
  Gathering gathering{size};
  std::vector<std::vector<std::byte>> states(size);
  std::vector<double> medians(size);
  std::vector<std::thread> workers;
  for (std::size_t rank = 0; rank < size; ++rank) {
    workers.emplace_back([&, rank] {
      ry::RobustScaler scaler{{.columns = {"a"}}};
      const ry::Block part = block.slice(block.rows() * rank / size, block.rows() * (rank + 1) / size);
      preprocessing::fit(scaler, part, {.gather = [&](std::vector<std::byte> bytes) {
                           return gathering.gather(rank, std::move(bytes));
                         }});
      const ry::State state = scaler.state();
      states[rank].resize(static_cast<std::size_t>(state.tensors.at(0).count()));
      state.tensors[0].read(0, state.tensors[0].count(), states[rank].data());
      medians[rank] = scaler.learned()[0].median;
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (const auto& state : states) CHECK(state == states[0]);
  CHECK(medians[0] == Approx(alone.learned()[0].median).epsilon(0.01));
}

TEST_CASE("fit: is the same with workers that have no samples") {
  const ry::Block block = random_block(3);
  const auto scaler = preprocessing::fitted_by_workers(ry::StandardScaler{{.columns = {"a"}}}, block, 8);
  CHECK(scaler.learned()[0].mean ==
        Approx(preprocessing::fitted(ry::StandardScaler{{.columns = {"a"}}}, block).learned()[0].mean));
}

TEST_CASE("fit: forgets what was learned before") {
  ry::MaxAbsScaler scaler{{.columns = {"a"}}};
  preprocessing::fit(scaler, Rows{}.numbers<double>("a", {1000}).block());
  preprocessing::fit(scaler, Rows{}.numbers<double>("a", {2}).block());
  CHECK(scaler.learned().size() == 1);
  CHECK(scaler.learned()[0].largest == 2);
}
}  // namespace preprocessor_test
