// SPDX-License-Identifier: MIT
// Keeps the samples of a dataset in memory or in a file. Data room.
#pragma once

#include "railyard/data/detail/order_nodes.hpp"
#include "railyard/data/detail/row_reader.hpp"
#include "railyard/data/detail/sample_file.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Goes over all samples of an epoch on the calling thread. visit: given blocks in order; says whether to go on.
template <class Visit>
void for_each_block(const NodePtr& node, const EpochKey& key, Visit&& visit) {
  TaskPool pool{0};
  MemoryBudget budget{std::size_t{64} << 20U};
  PlaceCursor begin;
  const auto stream = node->open({key, &pool, &budget}, begin);
  for (Chunk chunk = stream->next(); !chunk.block.empty(); chunk = stream->next()) {
    if (!visit(chunk.block)) return;
  }
}

// Reads all when the first sample is asked for, or the count where that is not known. Whatever is random below is drawn
// once, as in epoch 0 of seed 0: else the samples would depend on when the cache was filled, and a run that goes on
// would see others.
template <class = void>
class CacheNode final : public OrderNode {
 public:
  explicit CacheNode(NodePtr upstream) : OrderNode(std::move(upstream), "cache") {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override {
    const auto known = upstream()->count();
    return known ? known : samples().rows();
  }
  [[nodiscard]] bool is_indexed() const override { return true; }
  [[nodiscard]] bool is_reordered() const override { return false; }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream()->id_span(); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& /*key*/) const override {
    return take(samples(), std::vector<std::size_t>(places.begin(), places.end()));
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }

 private:
  [[nodiscard]] const Block& samples() const {
    const std::lock_guard lock{mutex_};
    if (!samples_) {
      std::vector<Block> parts{no_samples(schema())};
      for_each_block(upstream(), {}, [&](const Block& block) {
        parts.push_back(block);
        return true;
      });
      samples_ = join(parts);
    }
    return *samples_;
  }

  mutable std::mutex mutex_{};
  mutable std::optional<Block> samples_{};
};

// Does the same in a file, which is made when it is not there, and used as it is when it is. Processes that make it at
// once each make it whole, and the last one's stays: nobody waits for another.
template <class = void>
class FileCacheNode final : public OrderNode {
 public:
  FileCacheNode(NodePtr upstream, std::string path)
      : OrderNode(std::move(upstream), compose("cache({})", path)), path_(std::move(path)) {}

  [[nodiscard]] std::optional<std::uint64_t> count() const override { return file().count(); }
  [[nodiscard]] bool is_indexed() const override { return true; }
  [[nodiscard]] bool is_reordered() const override { return false; }
  [[nodiscard]] std::uint64_t id_span() const override { return upstream()->id_span(); }
  [[nodiscard]] Block read(std::span<const std::uint64_t> places, const EpochKey& /*key*/) const override {
    return places.empty() ? no_samples(schema()) : file().read(places);
  }
  [[nodiscard]] std::unique_ptr<ChunkStream> open(const Scope& scope, PlaceCursor& from) const override {
    return open_indexed(shared_from_this(), scope, from);
  }

 private:
  [[nodiscard]] const SampleFile<>& file() const {
    const std::lock_guard lock{mutex_};
    if (file_ == nullptr) file_ = SampleFile<>::open(path_, schema(), content());
    if (file_ == nullptr) {
      SampleFileWriter<> writer{path_, content()};
      for_each_block(upstream(), {}, [&](const Block& block) {
        writer.add(block);
        return true;
      });
      writer.finish();
      file_ = SampleFile<>::open(path_, schema(), content());
    }
    return *file_;
  }

  // What the file holds, in words: another source, other operations or columns make another.
  [[nodiscard]] std::string content() const {
    std::string text = upstream()->describe() + ":";
    for (const Field& field : *schema()) {
      text +=
          compose(" {} {}[{}]", field.name, field.is_text ? "text" : name_of(field.dtype), joined(field.shape, ","));
    }
    return text;
  }

  std::string path_;
  mutable std::mutex mutex_{};
  mutable std::unique_ptr<const SampleFile<>> file_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
