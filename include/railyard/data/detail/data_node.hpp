// SPDX-License-Identifier: MIT
// What every dataset consists of: nodes that give samples at places, or one after another. Data room.
#pragma once

#include "railyard/data/detail/data_stock.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/place.hpp"
#include "railyard/data/detail/task_pool.hpp"
#include "railyard/data/sample_random.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Some samples of a stream, and where a stream begins that gives them, after so many others.
struct Chunk {
  Block block{};
  Place place{};
  MemoryShare share{};
  std::uint64_t before = 0;
};

// Gives samples one after another; used by one thread at a time.
class ChunkStream {
 public:
  ChunkStream() = default;
  ChunkStream(const ChunkStream&) = delete;
  ChunkStream& operator=(const ChunkStream&) = delete;
  virtual ~ChunkStream() = default;

  // The next samples, at least one; an empty block at the end.
  [[nodiscard]] virtual Chunk next() = 0;
};

// What a reader lends to the streams that it opens.
struct Scope {
  EpochKey key{};
  TaskPool* pool = nullptr;
  MemoryBudget* budget = nullptr;
  // How many samples of batches are held at once beside what streams hold; 0 where there are no batches.
  std::size_t batch_rows = 0;
  // How many streams hold blocks at the same time, of which this is one.
  std::size_t num_streams = 1;

  // How large blocks should be: small beside the bound, for each operation and thread has some.
  [[nodiscard]] std::size_t block_bytes() const noexcept {
    return std::max<std::size_t>(budget->bound() / 32 / num_streams, 1);
  }
  // For each of so many streams that are read together.
  [[nodiscard]] Scope divided(std::size_t streams) const noexcept {
    Scope scope = *this;
    scope.num_streams *= std::max<std::size_t>(streams, 1);
    return scope;
  }
};

// Says whether samples come to an end. That of datasets together is the greatest of theirs.
enum class Ending : std::uint8_t { certain, unknown, never };

class DataNode;
class SampleShelf;
// What a source has left out.
struct Skipped {
  std::uint64_t count = 0;
  std::vector<std::string> parts{};  // that count as one and may have been many samples, as far as they are told
};
// By the source, which is there once where several parts are of one.
using SkipCounts = std::map<const DataNode*, Skipped>;

// Is a dataset as its operations see it. Never changes; used by many threads at once.
class DataNode : public std::enable_shared_from_this<DataNode> {
 public:
  explicit DataNode(std::shared_ptr<const Schema> schema) : schema_(std::move(schema)) {}
  DataNode(const DataNode&) = delete;
  DataNode& operator=(const DataNode&) = delete;
  virtual ~DataNode() = default;

  [[nodiscard]] const std::shared_ptr<const Schema>& schema() const noexcept { return schema_; }
  // How many samples an epoch has, where that is known without reading them.
  [[nodiscard]] virtual std::optional<std::uint64_t> count() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
  // Can each sample be computed alone? Then the count is known.
  [[nodiscard]] virtual bool is_indexed() const = 0;
  [[nodiscard]] virtual Ending ending() const = 0;
  // Does reading a sample cost no more than copying it? Then nobody gains by having it from somebody else.
  [[nodiscard]] virtual bool costs_a_copy() const { return false; }
  // Is it another order or selection in each epoch?
  [[nodiscard]] virtual bool is_reordered() const { return false; }
  // Ids are below that, where this is known.
  [[nodiscard]] virtual std::uint64_t id_span() const { return count().value_or(unknown_span); }
  // How many operations it consists of: tells the random numbers of one from those of another.
  [[nodiscard]] virtual std::uint64_t depth() const { return 0; }

  // Adds how many damaged samples its sources have left out of what this process has read.
  virtual void count_skipped(SkipCounts& counts) const = 0;

  // Calls a function with each node that keeps something for several processes, and where it does.
  using ShelfVisit = std::function<void(const DataNode& node, SampleShelf& shelf)>;
  virtual void visit_shelves(const ShelfVisit& visit) const = 0;

  // Adds what its samples depend on, as far as that is known without reading them: users' functions count by name only.
  virtual void take_stock(DataStock& stock) const = 0;

  // The samples at the places of an epoch, each below count(), in that order. Only if is_indexed(): others have none.
  [[nodiscard]] virtual Block read(std::span<const std::uint64_t> /*places*/, const EpochKey& /*key*/) const {
    throw Error{compose("{} was read out of order", describe())};
  }
  // All samples of an epoch from a place on.
  [[nodiscard]] virtual std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const = 0;

  // Where the count is not known, ids of different parts are kept apart by that much.
  static constexpr std::uint64_t unknown_span = std::uint64_t{1} << 40U;

 private:
  std::shared_ptr<const Schema> schema_;
};

using NodePtr = std::shared_ptr<const DataNode>;

// Says how many samples a block may have that is to take so many bytes, from the blocks seen so far. Begins with one
// sample, for nobody knows how large they are.
class RowGauge {
 public:
  explicit RowGauge(std::size_t block_bytes) noexcept : block_bytes_(block_bytes) {}

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  void saw(std::size_t rows, std::size_t bytes) noexcept {
    if (rows == 0) return;
    bytes_per_row_ = std::max({bytes_per_row_, bytes / rows, std::size_t{1}});
    rows_ = std::clamp<std::size_t>(block_bytes_ / bytes_per_row_, 1, std::min<std::size_t>(4 * rows_, most_rows));
  }

 private:
  static constexpr std::size_t most_rows = 4096;

  std::size_t block_bytes_;
  std::size_t bytes_per_row_ = 0;
  std::size_t rows_ = 1;
};

// Does so for blocks that several threads make.
class SharedRowGauge {
 public:
  explicit SharedRowGauge(std::size_t block_bytes) noexcept : gauge_(block_bytes) {}

  // How many of so many samples the next part of them should have: about as many as each of the others.
  [[nodiscard]] std::size_t part_of(std::size_t rows) const {
    const std::lock_guard lock{mutex_};
    const std::size_t parts = std::max<std::size_t>((rows + gauge_.rows() / 2) / gauge_.rows(), 1);
    return (rows + parts - 1) / parts;
  }
  void saw(std::size_t rows, std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    gauge_.saw(rows, bytes);
  }

 private:
  mutable std::mutex mutex_{};
  RowGauge gauge_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
