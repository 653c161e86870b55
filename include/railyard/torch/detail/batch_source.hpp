// SPDX-License-Identifier: MIT
// Where a loader gets its batches from. Torch room.
#pragma once

#include "railyard/torch/batch.hpp"
#include "railyard/torch/detail/block_tensors.hpp"
#include "railyard/torch/detail/gpu_copies.hpp"
#include "railyard/torch/loader_options.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/host_feed.hpp"
#include "railyard/data/detail/user_calls.hpp"
#include "railyard/data/epoch_position.hpp"
#include "railyard/data/epoch_reader.hpp"
#include "railyard/data/shuffle.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Says of which batches a loader gives which part.
struct BatchShares {
  std::size_t global_batch_size = 0;
  std::size_t micro_batches = 1;
  std::size_t rank = 0;
  std::size_t world_size = 1;
  bool drop_last = false;
};

// Is one worker's part of a batch, or of a micro-batch.
struct LoadedPart {
  at::Tensor data{};
  at::Tensor target{};
  std::shared_ptr<const BatchColumns> columns{};
  bool is_pinned = false;   // data and target are in pinned memory that nobody else has
  std::size_t samples = 0;  // that count
  bool completes_batch = true;
  EpochPosition after{};  // what has been consumed when this batch has; before its last part, what had been before it
};

// Gives a worker's parts of the batches of an epoch.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  // Begins, or goes on, in the middle of an epoch.
  virtual void open(const EpochPosition& from) = 0;
  // The next part, or nothing after the last. deadline: never, where it waits for nobody.
  [[nodiscard]] virtual std::optional<LoadedPart> next(const Deadline& deadline) = 0;
  // Whether other threads or processes may keep it waiting: to look at the clock takes time.
  [[nodiscard]] virtual bool waits_for_others() const noexcept = 0;
  // Whether the next part has been read ahead, so that next() gives it at once and calls no function of the user's.
  [[nodiscard]] virtual bool is_ready() = 0;
  // Lets go of what open() has begun.
  virtual void close() noexcept = 0;
};

// Reads the samples of the given indices as one batch.
using Fetch = std::function<std::pair<at::Tensor, at::Tensor>(std::span<const std::size_t> indices)>;
// Reads samples that follow each other.
using FetchRange = std::function<std::pair<at::Tensor, at::Tensor>(Range indices)>;

// Asks for samples by their index. Parts are those of an EpochReader, and so are orders where it keeps them as lists,
// which is what all are here: drawing a place costs more than to read a sample of a tensor.
class IndexedBatches final : public BatchSource {
 public:
  IndexedBatches(Fetch fetch, const BatchShares& shares) : fetch_(std::move(fetch)), shares_(shares) {}
  // Of samples in their own order.
  IndexedBatches(FetchRange fetch, const BatchShares& shares) : fetch_range_(std::move(fetch)), shares_(shares) {}

  void open(const EpochPosition& from) override {
    position_ = from;
    batch_ = {static_cast<std::size_t>(from.consumed()), static_cast<std::size_t>(from.consumed())};
    num_parts_ = part_ = 0;
    count_ = static_cast<std::size_t>(*from.count());
    if (from.is_shuffled()) {
      order_ = shuffled_indices(count_, derive_seed(from.seed(), from.epoch()));
    } else if (!fetch_range_ && order_.empty()) {
      order_ = ordered_indices(count_);
    }
  }

  [[nodiscard]] std::optional<LoadedPart> next(const Deadline& /*deadline*/) override {
    if (part_ == num_parts_ && !begin_batch()) return std::nullopt;
    const Range whole = part_of(batch_, part_++, num_parts_);
    const Range mine = part_of(whole, shares_.rank, shares_.world_size);
    if (part_ == num_parts_) position_.move_to(batch_.end);
    LoadedPart part{.samples = mine.size(), .completes_batch = part_ == num_parts_, .after = position_};
    // Who has no sample is given another worker's, which does not count, to keep step.
    std::tie(part.data, part.target) = read(mine.size() > 0 ? mine : Range{whole.begin, whole.begin + 1});
    return part;
  }

  void close() noexcept override {}
  [[nodiscard]] bool waits_for_others() const noexcept override { return false; }
  [[nodiscard]] bool is_ready() override { return false; }

 private:
  // Goes on to the next batch. False at the end of the epoch.
  bool begin_batch() {
    const std::size_t left = count_ - batch_.end;
    if (left < (shares_.drop_last ? shares_.global_batch_size : 1)) return false;
    batch_ = {batch_.end, batch_.end + std::min(shares_.global_batch_size, left)};
    num_parts_ = std::min(shares_.micro_batches, batch_.size());
    part_ = 0;
    return true;
  }

  [[nodiscard]] std::pair<at::Tensor, at::Tensor> read(Range places) const {
    auto batch = fetch_range_ ? fetch_range_(places) : fetch_(std::span{order_}.subspan(places.begin, places.size()));
    const at::Tensor& data = batch.first;
    if (data.defined() && data.dim() > 0 && data.size(0) == static_cast<std::int64_t>(places.size())) return batch;
    throw DataError{
        compose("the dataset was asked for {} samples on rank {}/{} and gave data of shape {}: the first "
                "dimension must count the samples",
                places.size(), shares_.rank, shares_.world_size, shape_of(data))};
  }

  Fetch fetch_{};
  FetchRange fetch_range_{};  // one of both
  BatchShares shares_;
  EpochPosition position_{};  // after the last whole batch
  std::size_t count_ = 0;
  std::vector<std::size_t> order_{};  // for the first
  Range batch_{};
  std::size_t num_parts_ = 0;
  std::size_t part_ = 0;  // that is read next
};

// Makes tensors of the blocks of a Dataset: its own on the thread that reads ahead, so that the loop need not wait for
// them; a user's on the loop's, whose generators it may use.
class DatasetBatches final : public BatchSource {
 public:
  // feed: as an EpochReader's; may be nullptr. warn: told of what was left out when a loop has ended, and once, where
  // the workers divide the dataset, that the feed is not all that is read from.
  DatasetBatches(Dataset dataset, const LoaderOptions& options, const BatchShares& shares, at::Device device,
                 std::shared_ptr<HostFeed> feed, std::function<void(const std::string&)> warn)
      : dataset_(std::move(dataset)),
        feed_(std::move(feed)),
        warn_(std::move(warn)),
        collate_(options.collate),
        padding_(options.padding),
        device_(device),
        is_pinned_(takes_pinned_memory(device)),
        reading_{.global_batch_size = shares.global_batch_size,
                 .rank = shares.rank,
                 .world_size = shares.world_size,
                 .micro_batches = shares.micro_batches,
                 .threads = options.threads,
                 .prefetch = options.prefetch,
                 .bound_bytes = options.bound_bytes,
                 .stands_in = true,
                 .drop_last = shares.drop_last} {
    if (collate_) return;
    const std::size_t ahead = options.prefetch > 0 ? options.prefetch : dataset_.batches_ahead();
    make_ = [collation =
                 BlockCollation{dataset_.schema(), dataset_.label(), padding_, ahead, is_pinned_}](const Block& block) {
      auto made = std::make_shared<Tensors>(collation(block));
      const std::size_t bytes = bytes_of(made->first) + bytes_of(made->second);
      return MadeOfBlock{std::move(made), bytes};
    };
  }

  DatasetBatches(const DatasetBatches&) = delete;
  DatasetBatches& operator=(const DatasetBatches&) = delete;
  ~DatasetBatches() override { close(); }

  void open(const EpochPosition& from) override {
    reading_.seed = from.seed();
    reading_.epoch = from.epoch();
    reading_.shuffle = from.is_shuffled();
    reading_.from = from;
    if (feed_ != nullptr) feed_->begin_epoch();
    reader_.emplace(dataset_, reading_, LoaderWishes{feed_, make_});
  }

  [[nodiscard]] std::optional<LoadedPart> next(const Deadline& deadline) override {
    std::optional<EpochStep> step = reader_->next(deadline);
    if (!step) return std::nullopt;
    if (feed_ != nullptr && step->after.consumed() > feed_->alone_from()) tell_of_being_alone();
    LoadedPart part{
        .samples = step->samples, .completes_batch = step->completes_batch, .after = std::move(step->after)};
    std::tie(part.data, part.target) =
        collate_ ? collated(step->block) : std::move(*std::static_pointer_cast<Tensors>(step->made));
    part.is_pinned = is_pinned_ && !collate_;
    part.columns = std::make_shared<const BatchColumns>(BatchColumns{std::move(step->block), device_, padding_});
    if (collate_) check_collated(part);
    return part;
  }

  [[nodiscard]] bool waits_for_others() const noexcept override { return true; }
  [[nodiscard]] bool is_ready() override { return !collate_ && reader_ && reader_->is_ready(); }

  void close() noexcept override {
    if (!reader_) return;
    if (reader_->is_late()) feed_.reset();  // which what was left behind may still use
    reader_.reset();
    try {
      tell_of_skipped();
    } catch (...) {  // there is no memory for a warning, or nobody to hear it
    }
  }

 private:
  // Losses and gradients are weighted by the samples that were given, so the data must be of as many.
  void check_collated(const LoadedPart& part) const {
    const at::Tensor& data = part.data;
    const std::size_t rows = part.columns->block.rows();
    if (!data.defined() || (data.dim() > 0 && data.size(0) == static_cast<std::int64_t>(rows))) return;
    throw DataError{
        compose("LoaderOptions::collate of {} on rank {}/{} was given {} samples and made data of {}, of shape {}: the "
                "first dimension must count the samples",
                dataset_.describe(), reading_.rank, reading_.world_size, rows, data.dim() > 0 ? data.size(0) : 0,
                shape_of(data))};
  }
  void tell_of_skipped() {
    SkipCounts by_source;
    dataset_.node()->count_skipped(by_source);
    std::map<std::string, Skipped> counts;  // of sources that messages call alike, all together
    for (const auto& [source, skipped] : by_source) {
      Skipped& all = counts[source->describe()];
      all.count += skipped.count;
      all.parts.insert(all.parts.end(), skipped.parts.begin(), skipped.parts.end());
    }
    const std::string of = dataset_.name().empty() ? "" : compose(" (dataset \"{}\")", dataset_.name());
    for (const auto& [source, skipped] : counts) {
      const std::uint64_t count = skipped.count;
      if (std::exchange(told_of_[source], count) == count) continue;
      warn_(compose("{}: {} damaged sample{} left out, as .on_error says{}{}{}", source, count,
                    count == 1 ? " was" : "s were", of,
                    skipped.parts.empty() ? "" : "; as one each: ", joined_first(skipped.parts, 8)));
    }
  }

  void tell_of_being_alone() {
    // Not of what each gets as a whole: workers may read it when they like.
    if (!dataset_.is_divided() || std::exchange(is_alone_, true)) return;
    warn_(compose(
        "a loader of {} on rank {}/{} reads epoch {} by itself from here on, for the worker that reads for all of its "
        "host has not waited for it, or has left: samples are read more than once; let the workers of a host begin "
        "and end their loops together (worker.barrier() before the loop), or .cache() the dataset",
        dataset_.describe(), reading_.rank, reading_.world_size, reading_.epoch));
  }

  using Tensors = std::pair<at::Tensor, at::Tensor>;

  [[nodiscard]] Tensors collated(const Block& block) const {
    const std::string of = dataset_.name().empty() ? "" : compose(" (dataset \"{}\")", dataset_.name());
    return call_user([&] { return collate_(block); },
                     compose("LoaderOptions::collate of {}{}", dataset_.describe(), of),
                     [&block] { return text_of_samples(block.ids()); });
  }

  [[nodiscard]] static std::size_t bytes_of(const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<std::size_t>(tensor.nbytes()) : 0;
  }

  Dataset dataset_;
  std::shared_ptr<HostFeed> feed_;
  std::function<void(const std::string&)> warn_;
  bool is_alone_ = false;
  std::map<std::string, std::uint64_t> told_of_{};   // samples that were left out, by source
  std::function<Tensors(const Block&)> collate_;     // the user's
  std::function<MadeOfBlock(const Block&)> make_{};  // otherwise
  double padding_;
  at::Device device_;
  bool is_pinned_;  // what is made of blocks
  EpochOptions reading_;
  std::optional<EpochReader> reader_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
