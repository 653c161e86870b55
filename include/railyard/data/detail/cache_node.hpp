// SPDX-License-Identifier: MIT
// Keeps the samples of a dataset in memory or in a file. Data room.
#pragma once

#include "railyard/data/detail/blocks.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/draft_file.hpp"
#include "railyard/data/detail/memory_budget.hpp"
#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/detail/sample_file.hpp"
#include "railyard/data/detail/sample_shelf.hpp"
#include "railyard/data/detail/task_pool.hpp"

#include "railyard/core/block.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/memory_left.hpp"
#include "railyard/core/detail/waiting.hpp"
#include "railyard/core/dtype.hpp"
#include "railyard/core/error.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Tells now and then of the reading of a dataset to an end that may never come, and ends it where nobody wants it any
// more.
class ReadingToEnd {
 public:
  explicit ReadingToEnd(NodePtr node, std::chrono::nanoseconds first_word = std::chrono::seconds{30})
      : node_(std::move(node)),
        wait_(node_->ending() == Ending::unknown ? first_word : std::chrono::nanoseconds::max(), WaitFor::own_run) {}

  void note(std::size_t samples) {
    samples_ += samples;
    wait_.look([this] {
      return compose(
          "{} is read to its end and has given {} samples so far{}", node_->describe(), samples_,
          node_->ending() != Ending::unknown
              ? ""
              : ", and nobody knows how many there are: if it never ends, take() as many as there are to be, "
                "and make it by Dataset::from_endless_generator(), which is refused at once");
    });
  }

 private:
  NodePtr node_;
  LongWait wait_;
  std::uint64_t samples_ = 0;
};

// Goes over all samples of an epoch on the calling thread. visit: given blocks in order; says whether to go on.
template <class Visit>
void for_each_block(const NodePtr& node, const EpochKey& key, Visit&& visit) {
  TaskPool pool{0};
  MemoryBudget budget{std::size_t{64} << 20U};
  PlaceCursor begin;
  const auto stream = node->open({key, &pool, &budget}, begin);
  ReadingToEnd reading{node};
  for (Chunk chunk = stream->next(); !chunk.block.empty(); chunk = stream->next()) {
    if (!visit(chunk.block)) return;
    reading.note(chunk.block.rows());
  }
}

// Adds what lies before a cache, which keeps one order of samples that come in another each epoch.
inline void take_stock_before_cache(const DataNode& upstream, DataStock& stock) {
  upstream.take_stock(stock);
  if (upstream.is_reordered()) stock.add_operation("cache");
}

// Reads all when the first sample is asked for, or the count where that is not known; of processes that were forked
// behind it, the first does that for all. Whatever is random below is drawn once, as in epoch 0 of seed 0: else the
// samples would depend on when the cache was filled, and a run that goes on would see others.
template <class = void>
class CacheNode final : public OrderNode {
 public:
  // most_bytes: of the samples, which are there twice for a moment.
  explicit CacheNode(NodePtr upstream, std::size_t most_bytes = memory_limit() / 2)
      : OrderNode(std::move(upstream), "cache"), most_bytes_(most_bytes) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override {
    const auto known = upstream()->count();
    return known ? known : samples().rows();
  }
  [[nodiscard]] bool is_indexed() const override { return true; }
  [[nodiscard]] bool costs_a_copy() const override { return true; }
  [[nodiscard]] bool is_reordered() const override { return false; }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream()->id_span(); }
  void take_stock(DataStock& stock) const override { take_stock_before_cache(*upstream(), stock); }
  void visit_shelves(const ShelfVisit& visit) const override {
    visit(*this, shelf_);
    upstream()->visit_shelves(visit);
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& /*key*/) const override {
    return take(samples(), std::vector<std::size_t>(places.begin(), places.end()));
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }

 private:
  [[nodiscard]] const Block& samples() const {
    const std::lock_guard lock{mutex_};
    if (samples_) return *samples_;
    const auto read = [this](const auto& progress) { return this->read_all(progress); };
    samples_ = shelf_.has_use() ? shelf_.find_or_make(schema(), read) : join(read([] {}));
    return *samples_;
  }
  // Calls a function for each block that has been read.
  template <class Progress>
  [[nodiscard]] std::vector<Block> read_all(Progress&& progress) const {
    std::vector<Block> parts{no_samples(schema())};
    std::size_t bytes = 0;
    std::uint64_t rows = 0;
    for_each_block(upstream(), {}, [&](const Block& block) {
      parts.push_back(block);
      bytes += bytes_of(block);
      rows += block.rows();
      if (bytes > most_bytes_) refuse(rows);
      progress();
      return true;
    });
    return parts;
  }
  [[noreturn]] void refuse(std::uint64_t rows) const {
    throw DataError{
        compose("{}: the first {} samples take more than {} MiB, which is half of the memory there is, and there are "
                "more: keep them in a file by cache(path), or take() as many as fit; a source that never ends cannot "
                "be cached, and is refused at once if it is made by Dataset::from_endless_generator()",
                describe(), rows, most_bytes_ >> 20U)};
  }

  std::size_t most_bytes_;
  mutable SampleShelf shelf_{};
  mutable std::mutex mutex_{};
  mutable std::optional<Block> samples_{};
};

// Does the same in a file, which is made when it is not there, or when what it holds has changed since. Of processes
// that want it at once one makes it, and the others wait as long as that one goes on.
template <class = void>
class FileCacheNode final : public OrderNode {
 public:
  FileCacheNode(NodePtr upstream, std::string path)
      : OrderNode(std::move(upstream), compose("cache({})", path)), path_(std::move(path)) {
    check_path();
  }

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return file().count(); }
  [[nodiscard]] bool is_indexed() const override { return true; }
  [[nodiscard]] bool costs_a_copy() const override { return true; }
  [[nodiscard]] bool is_reordered() const override { return false; }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream()->id_span(); }
  void take_stock(DataStock& stock) const override {
    take_stock_before_cache(*upstream(), stock);
    stock.add_cache(path_);
  }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& /*key*/) const override {
    return places.empty() ? no_samples(schema()) : file().read(places);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }

 private:
  // Whoever writes a file of which it is to read the samples would wait for itself.
  void check_path() const {
    if (path_.empty()) {
      throw ConfigError{compose("{}: \"\" is no name of a file: give one, or call cache() for memory", describe())};
    }
    const auto place_of = [](const std::string& path) {
      std::error_code no_error;
      const auto place = std::filesystem::weakly_canonical(std::filesystem::absolute(path, no_error), no_error);
      return place.empty() ? std::filesystem::path{path} : place;
    };
    DataStock stock = DataStock::of_operations();
    upstream()->take_stock(stock);
    for (const std::string& before : stock.caches()) {
      if (place_of(before) != place_of(path_)) continue;
      throw ConfigError{compose(
          "{}: its samples come from a cache in that very file: give each cache a file of its own", describe())};
    }
  }

  [[nodiscard]] const SampleFile<>& file() const {
    const std::lock_guard lock{mutex_};
    if (file_ != nullptr) return *file_;
    const SampleFileContent wanted = content();
    file_ = SampleFile<>::open(path_, schema(), wanted);
    if (file_ != nullptr) return *file_;
    DraftFile draft{path_};
    file_ = SampleFile<>::open(path_, schema(), wanted);  // which another process may have made meanwhile
    if (file_ == nullptr) file_ = make(draft, wanted);
    return *file_;
  }

  [[nodiscard]] std::unique_ptr<const SampleFile<>> make(DraftFile& draft, const SampleFileContent& wanted) const {
    SampleFileWriter<> writer{draft, wanted};
    for_each_block(upstream(), {}, [&](const Block& block) {
      writer.add(block);
      return true;
    });
    return std::make_unique<const SampleFile<>>(writer.finish(), path_, schema());
  }

  [[nodiscard]] SampleFileContent content() const {
    SampleFileContent content{upstream()->describe() + ":"};
    for (const Field& field : *schema()) {
      content.words +=
          compose(" {} {}[{}]", field.name, field.is_text ? "text" : name_of(field.dtype), joined(field.shape, ","));
    }
    try {
      DataStock stock;
      upstream()->take_stock(stock);
      content.fingerprint = stock.fingerprint();
    } catch (const DataError&) {  // the source is no longer there: what was kept of it has to do
    }
    return content;
  }

  std::string path_;
  mutable std::mutex mutex_{};
  mutable std::unique_ptr<const SampleFile<>> file_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
