// SPDX-License-Identifier: MIT
// A worker's share of every batch of a dataset. Torch room.
#pragma once

#include "railyard/torch/batch.hpp"
#include "railyard/torch/detail/batch_source.hpp"
#include "railyard/torch/loader_options.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/reduce_op.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/core/value.hpp"
#include "railyard/data/detail/data_stock.hpp"
#include "railyard/data/epoch_position.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Where a loader stands.
struct LoaderState {
  Worker* worker = nullptr;
  std::unique_ptr<BatchSource> source{};
  LoaderOptions options{};
  BatchShares shares{};
  std::optional<std::uint64_t> num_samples{};  // of an epoch, where that is known
  EpochPosition first{};                       // the begin of epoch 0
  std::function<std::string()> take_stock{};   // tells what is read, see DataStock
  std::string order{};                         // describes what must be alike on all ranks
  bool is_own = false;                         // what is read: this rank's part, of which no other knows
  at::Device home{at::kCPU};
  std::int64_t epoch = -1;
  EpochPosition next = first;   // where the next begin() starts
  bool is_set = true;           // that has been said since the last begin()
  std::uint64_t iteration = 0;  // tells an iterator that another begin() has come after its own
  EpochPosition before{};       // the batch under way
  EpochPosition after{};        // it, if the last part of it has been given
  bool completes_batch = true;  // it has
  bool is_over = false;         // the last batch of the epoch has been gone past
  std::uint64_t num_ended = 0;  // steps when the batch was given
  std::optional<Batch> batch{};
  mutable std::optional<std::string> stock{};  // once it has been taken

  void start_epoch() {
    leave_epoch();
    if (options.drives_step) static_cast<void>(data());  // not when the first checkpoint waits for it
    epoch = static_cast<std::int64_t>(next.epoch());
    before = after = std::exchange(next, begin_of(epoch + 1));
    is_set = is_over = false;
    if (options.drives_step) {
      worker->end_step();  // what came after the last epoch belonged to its last step
      const std::string begin = is_own ? "" : compose("begin: sample {}\n", before.consumed());
      worker->control().begin_loop(order + compose("seed: {}\nepoch: {}\n", before.seed(), epoch) + begin);
    }
    source->open(after);
    advance();
  }

  // Goes on to this worker's part of the next batch; batch is empty after the last one.
  void advance() {
    // The last step ends with the next begin(), or with a report of the state: whoever goes on from its end has done
    // what the loop does after an epoch. Of a stream it is not known before which step is the last.
    const auto end_step = [this] {
      if (options.drives_step && completes_batch) worker->end_step();  // while the batch that it was given still stands
    };
    if (num_samples && after.consumed() < *num_samples && *num_samples - after.consumed() >= smallest_batch()) {
      end_step();
    }
    worker->wait_for_data(true);
    std::optional<LoadedPart> part =
        source->next(source->waits_for_others() ? worker->collective_deadline() : Deadline::never());
    worker->wait_for_data(false);
    if (!part) {
      is_over = true;
      batch.reset();
      source->close();
      return refuse_empty_epoch();
    }
    end_step();
    if (completes_batch) before = std::move(after);
    after = std::move(part->after);
    completes_batch = part->completes_batch;
    batch.emplace(at_home(std::move(part->data)), at_home(std::move(part->target)), part->samples, completes_batch,
                  std::move(part->columns));
    if (options.drives_step) announce(part->samples);
    num_ended = worker->steps();
  }

  // A loop over nothing would look like one that has been done. What is consumed is alike on all ranks, but of parts of
  // their own, of which one may have no sample to evaluate.
  void refuse_empty_epoch() const {
    if (after.consumed() > 0 || (is_own && !options.drives_step)) return;
    throw ConfigError{compose(
        "a loader on rank {}/{} was given no sample in epoch {}: {}", worker->rank(), worker->world_size(), epoch,
        shares.drop_last
            ? compose("the samples do not fill a batch of {}, and drop_last leaves out what does not: use smaller "
                      "batches, or leave drop_last out; or there is none, as where filter() keeps none: look at the "
                      "dataset with ry::show()",
                      shares.global_batch_size)
            : std::string{"its dataset has none, as where filter() keeps none, or the source is empty: look at it with "
                          "ry::show()"})};
  }

  // Makes the next begin() start there.
  void set_place(EpochPosition place) {
    next = std::move(place);
    is_set = true;
  }

  [[nodiscard]] std::uint64_t smallest_batch() const noexcept {
    return shares.drop_last ? shares.global_batch_size : 1;
  }
  // The samples of an epoch that are given.
  [[nodiscard]] std::uint64_t num_given() const noexcept {
    return *num_samples - (shares.drop_last ? *num_samples % shares.global_batch_size : 0);
  }

  [[nodiscard]] EpochPosition begin_of(std::int64_t number) const {
    return {first.seed(), static_cast<std::uint64_t>(number), first.is_shuffled(), first.count()};
  }

  // The samples of an epoch that are consumed: those of batches whose step has ended, or after which the next one has
  // been asked for. When the loop has gone past its last batch, the end of an epoch is the begin of the next; before
  // that, what the loop does after the epoch is still to come.
  [[nodiscard]] const EpochPosition& place() const {
    if (is_set || is_over) return next;
    const bool is_done = completes_batch && (!batch || worker->steps() > num_ended);
    return is_done ? after : before;
  }

  // What is read, as it was at first; empty where that is not known, and on all ranks but the first, whose state is
  // that of all.
  [[nodiscard]] const std::string& data() const {
    if (stock) return *stock;
    stock = worker->rank() == 0 ? stock_here() : "";
    return *stock;
  }

  [[nodiscard]] std::string stock_here() const {
    if (!take_stock) return "";
    try {
      return take_stock();
    } catch (const std::exception& error) {  // who reads it will be told
      worker->warn(
          compose("a loader cannot look at its data, which a run that goes on will not compare: {}", error.what()));
      return "";
    }
  }

  // A position in a part of this rank's own says nothing to the others.
  [[nodiscard]] State state() const {
    State state = place().state();
    if (!data().empty()) state.values.set("data", data());
    state.values.set("global_batch_size", static_cast<std::int64_t>(options.global_batch_size));
    state.values.set("batch_size_per_worker", static_cast<std::int64_t>(options.batch_size_per_worker));
    if (!is_own) return state;
    state.is_own = true;
    state.values.set("rank", worker->rank());
    state.values.set("world_size", worker->world_size());
    return state;
  }

  void load(const State& state) {
    check_part(state);
    EpochPosition saved;
    saved.load_state(state);
    check_same("shuffle", saved.is_shuffled(), first.is_shuffled(), "set LoaderOptions::shuffle as it was");
    if (!worker->accepts_change("seed")) {
      check_same(
          "seed", saved.seed(), first.seed(),
          "set RunConfig::seed as it was, or .accept_changes = {\"seed\"}, with which this epoch keeps its order");
    }
    const bool is_as_long = saved.count().value_or(0) == first.count().value_or(0);
    if (!worker->accepts_change("data")) {
      check_same(
          "num_samples", saved.count().value_or(0), first.count().value_or(0),
          "give the dataset that was saved with, or .accept_changes = {\"data\"}, with which the epoch begins anew");
    }
    const bool begins_anew = loses_place(state, is_as_long);
    if (is_as_long && first.count() && saved.consumed() > *first.count()) {
      refuse(compose("sample {} of epoch {}, which is none of {}", saved.consumed(), saved.epoch(), *first.count()));
    }
    tell_of_sizes(state);
    leave_epoch();
    epoch = static_cast<std::int64_t>(saved.epoch()) - 1;
    const bool goes_on = is_as_long && !begins_anew && saved.consumed() > 0;  // in the order that it had
    set_place(goes_on ? std::move(saved) : begin_of(epoch + 1));
  }

 private:
  void check_part(const State& state) const {
    const Value* const size = state.values.find("world_size");
    if (size == nullptr && !is_own) return;
    if (size == nullptr) {
      refuse(
          "its dataset was read by all ranks alike, or an older release took it for alike, and now each rank has a "
          "part "
          "of its own: set RunConfig::data (.split, .splitter) as it was, let the Trainer's dataset have what all are "
          "to do alike, or begin anew with another RunConfig::name");
    }
    const auto workers = size->as<std::int64_t>();
    if (workers == worker->world_size()) return;  // each rank goes on in what it has read itself
    const auto rank = state.at("rank").as<std::int64_t>();
    if (!is_own) {
      refuse(compose(
          "its dataset was a part of rank {}'s own, made for {} workers, or an older release took it for one, and now "
          "all ranks, {} of them, read it alike: give the run {} workers, whose next checkpoint is for any number, set "
          "RunConfig::data (.split, .splitter) as it was, or begin anew with another RunConfig::name",
          rank, workers, worker->world_size(), workers));
    }
    refuse(compose(
        "its dataset was a part of rank {}'s own, made for {} workers by RunConfig::data.splitter, by undivided(), or "
        "in the training function by filter(), flat_map() or arguments that differ between ranks, as those of take(), "
        "shuffle() and the like may where LoaderOptions::drives_step is not set, and now there are {}, for which the "
        "parts are others: give the run {} workers, or begin anew with another RunConfig::name, and let the Trainer's "
        "dataset have what all are to do alike",
        rank, workers, worker->world_size(), workers));
  }

  // Places are as good as they were, but steps are of other samples than those that the learning rate was chosen for.
  void tell_of_sizes(const State& state) const {
    if (worker->rank() != 0) return;
    const auto saved = [&state](std::string_view name) {
      const Value* const value = state.values.find(name);
      return value == nullptr ? std::size_t{0} : static_cast<std::size_t>(value->as<std::int64_t>());
    };
    const std::size_t of_all = saved("global_batch_size");
    const std::size_t of_each = saved("batch_size_per_worker");
    if (of_all == options.global_batch_size && of_each == options.batch_size_per_worker) return;
    if (of_all == 0 && of_each == 0) return;  // an older release has saved neither
    const auto words = [](std::size_t all, std::size_t each) {
      return all > 0 ? compose("a global batch size of {}", all) : compose("a batch size per worker of {}", each);
    };
    worker->warn(compose("a loader goes on with {} instead of {}",
                         words(options.global_batch_size, options.batch_size_per_worker), words(of_all, of_each)));
  }

  // Returns whether the place that was saved means nothing in the data, which is another; then it was accepted. Ranks
  // whose loaders drive steps are told by rank 0. Of others each looks by itself: some may be loaded on one rank only.
  [[nodiscard]] bool loses_place(const State& state, bool is_as_long) const {
    const bool is_accepted = worker->accepts_change("data");
    const bool looks_itself = is_accepted && !options.drives_step && worker->rank() != 0;
    std::int32_t is_lost =
        has_other_places(state, looks_itself ? stock_here() : data(), is_as_long, is_accepted) ? 1 : 0;
    if (is_accepted && options.drives_step) worker->all_reduce(buffer_of_value(is_lost), ReduceOp::max);
    return is_lost != 0;
  }

  // Data that was copied or touched is the same, and so may be what a program computes anew: of that it only tells. Of
  // an indexed dataset with other bytes, places are as good as they were, unless its operations choose other samples.
  [[nodiscard]] bool has_other_places(const State& state, const std::string& now, bool is_as_long,
                                      bool is_accepted) const {
    const Value* then = state.values.find("data");
    if (then == nullptr || then->as<std::string>().empty() || now.empty()) return false;
    const StockDifference difference = difference_of_stocks(then->as<std::string>(), now);
    if (difference.text.empty()) return false;
    if (difference.is_certain && !is_accepted) {
      refuse(
          compose("its data is another: {}; give the data that was saved with, or go on with this by "
                  ".accept_changes = {{\"data\"}}, or begin anew with another RunConfig::name",
                  difference.text));
    }
    const bool keeps_place = is_as_long && first.count() && !difference.moves_places;
    worker->warn(compose("a loader on rank {}/{} goes on with data that {}: {}{}", worker->rank(), worker->world_size(),
                         difference.is_certain ? "is another" : "may be another", difference.text,
                         keeps_place || !difference.is_certain ? "" : "; the epoch begins anew"));
    return difference.is_certain && !keeps_place;
  }

  // Ends all iterators, and the step of a batch that was not given in full.
  void leave_epoch() {
    if (options.drives_step && !completes_batch) worker->abandon_step();
    source->close();
    batch.reset();
    completes_batch = true;
    ++iteration;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError{compose("a loader on rank {}/{} cannot go on from the saved state: {}", worker->rank(),
                              worker->world_size(), what)};
  }

  template <class T>
  void check_same(std::string_view name, T saved, T here, std::string_view remedy) const {
    if (saved == here) return;
    refuse(compose("{} was {} and is {}, so the order of the samples is another: {}", name, saved, here, remedy));
  }

  [[nodiscard]] at::Tensor at_home(at::Tensor tensor) const {
    return tensor.defined() && tensor.device() != home ? tensor.to(home) : std::move(tensor);
  }

  void announce(std::size_t samples) const {
    worker->samples(samples, completes_batch);
    WorkerPage& page = worker->page();
    page.epoch.store(epoch, std::memory_order_relaxed);
    page.epoch_size.store(num_samples ? num_given() : 0, std::memory_order_relaxed);
    page.epoch_done.store(after.consumed(), std::memory_order_relaxed);
  }
};

}  // namespace detail

/// Gives a worker its part of every batch. Each begin() starts the next epoch. The order of an epoch is a function of
/// the run's seed and the epoch only, never of the number of workers; each batch of it is cut among the workers, in
/// parts whose sizes differ by at most one; the last batch may be smaller; nothing is dropped unless
/// LoaderOptions::drop_last says so, and nothing counts twice. All workers are given equally many batches. Made by
/// prepare_loader(); must not outlive the training function. Example: for (const auto& batch : loader)
/// loss(net->forward(batch.data), batch.target).backward();
class Loader {
 public:
  /// Goes over the batches of one epoch. The end is reached at once if begin() is called again.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using value_type = Batch;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    explicit Iterator(detail::LoaderState& state) noexcept : state_(&state), iteration_(state.iteration) {}

    [[nodiscard]] Batch& operator*() const noexcept { return *state_->batch; }
    [[nodiscard]] Batch* operator->() const noexcept { return &*state_->batch; }
    Iterator& operator++() {
      if (!is_over()) state_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t /*end*/) noexcept {
      return iterator.is_over();
    }

   private:
    [[nodiscard]] bool is_over() const noexcept {
      return state_ == nullptr || state_->iteration != iteration_ || !state_->batch;
    }

    detail::LoaderState* state_ = nullptr;
    std::uint64_t iteration_ = 0;
  };

  explicit Loader(detail::LoaderState state) : state_(std::make_unique<detail::LoaderState>(std::move(state))) {}

  /// Starts the next epoch, also where the last one was left half way. Throws, as ++ does: what reading throws;
  /// ConfigError at the end of an epoch without any sample.
  [[nodiscard]] Iterator begin() {
    state_->start_epoch();
    return Iterator{*state_};
  }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

  /// The epoch that is being gone over or was last, from 0; -1 before the first.
  [[nodiscard]] std::int64_t epoch() const noexcept { return state_->epoch; }
  /// The epoch that a loop which goes on from here has to begin with: the one under way, or the next after its end.
  [[nodiscard]] std::int64_t next_epoch() const { return static_cast<std::int64_t>(state_->place().epoch()); }
  /// Makes the next begin() start the given epoch. Never needed to get a new order. Throws: ConfigError below 0.
  void set_epoch(std::int64_t epoch) {
    if (epoch < 0) throw ConfigError{detail::compose("Loader::set_epoch({}): epochs count from 0", epoch)};
    if (state_->is_set && epoch == next_epoch()) return;  // which may have to be gone on with half way
    state_->set_place(state_->begin_of(epoch));
  }

  /// Returns how much of which epoch all workers together have consumed, an EpochPosition's state, so that other
  /// numbers of workers and batch sizes go on right. A batch counts when its step has ended. After the loop it is the
  /// next epoch; inside it, after the last batch, an empty rest of this one.
  /// Where each rank has a part of its own (RunConfig::data.splitter, Dataset::undivided()), so does each its state.
  [[nodiscard]] State state() const { return state_->state(); }
  /// Makes the next begin() go on where a saved loader was, in the middle of its epoch.
  /// Throws: ConfigError if the saved one had other data, another number of samples or another order, such as by
  /// another part of a split() or another seed of shuffle(), unless RunConfig::accept_changes names it: "data", "seed";
  /// or, where it was a part of this rank's own, another number of workers. Of other numbers in memory, and of files of
  /// which only parts are compared and that may be copies, Result::warnings() tell.
  void load_state(const State& state) { state_->load(state); }

  /// Whether its batches are what gradients are weighted with; see LoaderOptions.
  [[nodiscard]] bool drives_step() const noexcept { return state_->options.drives_step; }
  /// Samples that an epoch gives, all workers together. Throws: ConfigError where a stream tells it only at its end.
  [[nodiscard]] std::size_t num_samples() const {
    if (state_->num_samples) return static_cast<std::size_t>(state_->num_given());
    throw ConfigError{
        "a loader of a stream does not know how many samples there are before it has seen all of them: count them in "
        "the loop"};
  }
  /// Batches of an epoch, micro-batches counted one by one; equally many for every worker. Throws: as num_samples().
  [[nodiscard]] std::size_t num_batches() const {
    const auto [batch_size, parts] = std::pair{state_->shares.global_batch_size, state_->shares.micro_batches};
    return num_samples() / batch_size * std::min(parts, batch_size) + std::min(parts, num_samples() % batch_size);
  }
  /// Samples of a full batch, all workers together.
  [[nodiscard]] std::size_t global_batch_size() const noexcept { return state_->shares.global_batch_size; }

 private:
  std::unique_ptr<detail::LoaderState> state_;  // iterators point to it, and a Loader may be moved
};

static_assert(Stateful<Loader>);

}  // namespace railyard::inline v0_1
