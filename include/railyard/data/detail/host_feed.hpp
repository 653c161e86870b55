// SPDX-License-Identifier: MIT
// Lets one worker of a host read a stream, and the others have their samples from it. Data room.
#pragma once

#include "railyard/data/dataset.hpp"
#include "railyard/data/detail/block_op_node.hpp"
#include "railyard/data/detail/data_node.hpp"
#include "railyard/data/detail/feed_ends.hpp"
#include "railyard/data/detail/feed_memory.hpp"
#include "railyard/data/epoch_options.hpp"
#include "railyard/data/epoch_position.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

// Says which batches of what are gone over: workers that say the same are given parts of the same. name: of what all
// workers have alike and each gets as a whole; empty for what is divided among them.
[[nodiscard]] inline std::uint64_t feed_key(const DataNode& node, std::string_view name, const EpochOptions& options,
                                            const EpochPosition& from) {
  std::string text = compose("{} {} {} {} {} {} {} {} {} {} {} {}", name, node.describe(), options.seed, options.epoch,
                             options.shuffle, from.count().value_or(0), from.consumed(), text_of_place(from.place()),
                             options.global_batch_size, options.micro_batches, options.world_size, options.stands_in);
  for (const Field& field : *node.schema()) {
    text += compose(" {} {} {}", field.name, static_cast<int>(field.dtype), joined(field.shape, "x"));
  }
  return std::hash<std::string>{}(text) | 1U;  // 0 is none
}

// The operations that each worker does by itself with what all have alike, and whole; nothing if they could not read
// that together, or if it costs each no more to have it than to be given it.
[[nodiscard]] inline std::optional<OperationChain> own_operations(const Dataset& dataset) {
  if (dataset.is_divided() || dataset.common() == nullptr || dataset.common()->node->costs_a_copy()) return {};
  return OperationChain::after(dataset.common()->node, dataset.node());
}

// Whether each rank may have a part of its own: it is not divided, and not what the Trainer gives all of them alike, or
// what operations make of that whose arguments tell what they do. Others may choose by rank.
[[nodiscard]] inline bool is_own_part(const Dataset& dataset) {
  return !dataset.is_divided() && dataset.likeness() == Likeness::none;
}

// Is one loader's end. The worker whose local rank is 0 leads: it reads, and hands out. Nobody depends on another: who
// is not there in time, stops, or dies is left behind, and the others go on as they would alone, each from where it
// stands. So all that a mishap costs is that samples are read more than once. Of what is divided among the workers each
// message may hold a loop up, for the loops keep step; of what each gets as a whole, an epoch may, for they need not.
class HostFeed {
 public:
  // Says which worker this is, and where it finds the others. name: of the loader, equal on all workers.
  struct Seat {
    Store* store = nullptr;
    std::string name{};
    std::size_t local_rank = 0;
    std::size_t local_size = 1;
    /// How long a message, or an epoch, may hold up this worker's loop for another one.
    std::chrono::nanoseconds patience = std::chrono::seconds{2};
  };

  // capacity: bytes under way to each worker.
  HostFeed(Seat seat, std::size_t capacity)
      : seat_(std::move(seat)), trust_(leads() ? seat_.local_size - 1 : 1, FeedTrust{seat_.patience}) {
    if (!leads()) return;
    memory_.emplace(seat_.local_size - 1, capacity);
    for (std::size_t reader = 0; reader + 1 < seat_.local_size; ++reader) writers_.emplace_back(*memory_, reader);
    seat_.store->set(seat_.name, memory_->address());
  }
  HostFeed(const HostFeed&) = delete;
  HostFeed& operator=(const HostFeed&) = delete;
  ~HostFeed() {
    if (!leads() || !memory_->is_maker()) return;  // a forked child leaves it alone
    memory_->header().is_gone.store(true);
    for (const FeedWriter& writer : writers_) writer.leave();
  }

  [[nodiscard]] bool leads() const noexcept { return seat_.local_rank == 0; }
  // Of all lines together, for the leader.
  [[nodiscard]] std::size_t bytes() const noexcept { return writers_.size() * memory_->header().capacity; }

  // Says that this worker reads no further, and why; or that it does again.
  void rest(FeedRest rest) const noexcept {
    if (leads()) memory_->header().rest.store(rest);
    if (reader_) reader_->rest(rest);
  }

  // For the leader: waits for those who want the batches of the key.
  void gather(std::uint64_t key, const FeedTaker& taker) {
    FeedHeader& header = memory_->header();
    std::vector<bool> is_there(writers_.size(), false);
    FeedPatience patience{taker, seat_.patience};
    while (true) {
      const std::uint32_t seen = header.asked.load();
      bool waits = false;
      for (std::size_t at = 0; at < writers_.size(); ++at) {
        is_there[at] = is_there[at] || writers_[at].accept(key);
        waits = waits || (!is_there[at] && patience.spent() < trust_[at].patience());
      }
      if (!waits || !patience.wait(header.asked, seen)) break;
    }
    for (std::size_t at = 0; at < writers_.size(); ++at) {
      if (!is_there[at] && !taker.has_left.load()) trust_[at].lose();
    }
    header.key.store(key);
    for (const FeedWriter& writer : writers_) writer.flush();  // who is not served need not wait
  }
  [[nodiscard]] std::vector<FeedWriter>& writers() noexcept { return writers_; }
  // How long a writer may hold the leader up; with which the leader gives one up that it has waited for in vain.
  [[nodiscard]] FeedPatience patience_with(std::size_t writer, const FeedTaker& taker) const noexcept {
    return {taker, trust_[writer].patience()};
  }
  void give_up(std::size_t writer, const FeedPatience& patience) noexcept {
    if (patience.is_spent()) trust_[writer].lose();
    writers_[writer].leave();
  }
  void end_session() noexcept {
    memory_->header().key.store(0);
    for (std::size_t at = 0; at < writers_.size(); ++at) {
      if (writers_[at].is_serving()) trust_[at].gain();
      writers_[at].leave();
    }
  }

  // For the others: their line, once the leader serves this one. nullptr if it does not.
  [[nodiscard]] FeedReader* join(std::uint64_t key, std::size_t rank, const FeedTaker& taker) {
    const auto budget = trust_.front().patience();
    FeedPatience patience{taker, budget};
    if (find_leader(taker, Deadline::after(budget)) && reader_->join(key, rank, patience)) return &*reader_;
    if (!taker.has_left.load()) trust_.front().lose();
    return nullptr;
  }
  // How long the leader may hold this worker up; with which it gives it up if it has waited in vain.
  [[nodiscard]] FeedPatience patience_with_leader(const FeedTaker& taker) const noexcept {
    return {taker, trust_.front().patience()};
  }
  void give_up_leader(const FeedPatience& patience) noexcept {
    if (patience.is_spent()) trust_.front().lose();
  }
  // was_fed: to the end, or for as long as was wanted.
  void leave(bool was_fed) noexcept {
    if (was_fed) trust_.front().gain();
    if (reader_) reader_->leave();
  }

  // Says that this worker reads by itself what comes after so many samples of the epoch.
  void go_alone(std::uint64_t consumed) noexcept {
    leave(false);
    alone_from_.store(consumed);
  }
  // What go_alone() has said since begin_epoch(). Both may be called by another thread.
  [[nodiscard]] std::uint64_t alone_from() const noexcept { return alone_from_.load(); }
  void begin_epoch() noexcept { alone_from_.store(never); }

  static constexpr std::uint64_t never = ~std::uint64_t{0};

  // How long one message may hold this worker up, of what is divided.
  [[nodiscard]] FeedPatience patience(const FeedTaker& taker) const noexcept { return {taker, seat_.patience, true}; }

 private:
  [[nodiscard]] bool find_leader(const FeedTaker& taker, const Deadline& deadline) {
    if (reader_) return true;
    std::optional<std::string> address;
    while (!address && !deadline.expired() && !taker.has_left.load()) {
      address = seat_.store->get(seat_.name, Deadline::after(std::chrono::milliseconds{20}));
    }
    if (!address) return false;
    try {
      memory_.emplace(*address);
    } catch (const Error&) {  // it has gone, or this process may not see it
      return false;
    }
    reader_.emplace(*memory_, seat_.local_rank - 1);
    return true;
  }

  Seat seat_;
  std::vector<FeedTrust> trust_;  // of the leader in each reader; of a reader in the leader
  std::optional<FeedMemory> memory_{};
  std::vector<FeedWriter> writers_{};  // of the leader
  std::optional<FeedReader> reader_{};
  std::atomic<std::uint64_t> alone_from_{never};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
