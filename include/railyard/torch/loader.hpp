// SPDX-License-Identifier: MIT
// A worker's share of every batch of a dataset. Torch room.
#pragma once

#include "railyard/torch/tensor.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/data/shuffle.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says how prepare_loader() divides a dataset. Exactly one of the two sizes must be given: the learning rate depends
/// on what it is.
struct LoaderOptions {
  std::size_t global_batch_size = 0;      ///< samples of a batch, all workers together
  std::size_t batch_size_per_worker = 0;  ///< samples of a batch for each worker
  bool shuffle = false;                   ///< a new order every epoch; otherwise the dataset's own
  bool drives_step = false;               ///< the training loader: its batches are what gradients are weighted with
  /// A batch is given in so many parts, one after another, whose gradients accumulate: for batches that memory does not
  /// hold at once. The sizes above are still those of the whole, which one optimizer step is for.
  std::size_t micro_batches = 1;
  /// The most samples of a micro-batch for each worker; 0 for any number. There are more parts than micro_batches if
  /// need be: with a global_batch_size, and fewer workers than before, each step is as it was and takes no more memory.
  std::size_t largest_micro_batch = 0;
};

/// Is one worker's part of a batch.
class Batch {
 public:
  at::Tensor data{};
  at::Tensor target{};  ///< undefined where the dataset has none

  Batch() = default;
  Batch(at::Tensor data_, at::Tensor target_, std::size_t size, bool completes_step = true)
      : data(std::move(data_)), target(std::move(target_)), size_(size), completes_step_(completes_step) {}

  /// The number of samples that count: those of data, or 0 where the batch had fewer samples than there are workers and
  /// this one has been given a sample of another worker's, to keep step. Weight sums with it.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Whether this is the last micro-batch of a step: then backward() averages, and it is time for optimizer.step().
  [[nodiscard]] bool completes_step() const noexcept { return completes_step_; }

 private:
  std::size_t size_ = 0;
  bool completes_step_ = true;
};

namespace detail {

// Reads the samples of the given indices as one batch.
using Fetch = std::function<std::pair<at::Tensor, at::Tensor>(const std::vector<std::size_t>& indices)>;

// Where a loader stands.
struct LoaderState {
  Worker* worker = nullptr;
  LoaderOptions options{};
  Fetch fetch{};
  std::size_t num_samples = 0;
  std::size_t global_batch_size = 0;
  std::int64_t epoch = -1;
  std::int64_t next_epoch = 0;
  std::size_t next_position = 0;  // samples of the next epoch that the run this one goes on from has consumed
  bool is_set = true;             // these two have been said since the last begin()
  std::uint64_t iteration = 0;    // tells an iterator that another begin() has come after its own
  std::vector<std::size_t> order{};
  std::size_t position = 0;   // samples of this epoch that all workers together have been given
  Range window{};             // the batch under way
  std::size_t num_parts = 0;  // in which it is given
  std::size_t next_part = 0;
  std::uint64_t num_ended = 0;  // steps when its last part was given
  std::optional<Batch> batch{};

  void start_epoch() {
    leave_epoch();
    epoch = next_epoch++;
    position = std::exchange(next_position, 0);
    is_set = false;
    window = {position, position};
    if (options.drives_step) {
      worker->end_step();  // what came after the last epoch belonged to its last step
      worker->control().begin_loop();
    }
    order = options.shuffle
                ? shuffled_indices(num_samples, derive_seed(worker->seed(), static_cast<std::uint64_t>(epoch)))
                : ordered_indices(num_samples);
    advance();
  }

  // Goes on to this worker's part of the next batch; batch is empty after the last one.
  void advance() {
    if (next_part == num_parts) {
      // The last step ends with the next begin(), or with a report of the state: whoever goes on from its end has
      // done what the loop does after an epoch.
      if (position >= num_samples) return batch.reset();
      if (options.drives_step) worker->end_step();  // while the batch that it was given still stands
      window = {position, position + std::min(global_batch_size, num_samples - position)};
      num_parts = std::min(options.micro_batches, window.size());
      next_part = 0;
    }
    batch.reset();
    const Range whole = part_of(window, next_part++, num_parts);
    const Range mine =
        part_of(whole, static_cast<std::size_t>(worker->rank()), static_cast<std::size_t>(worker->world_size()));
    const bool has_part = mine.size() > 0;
    const Range read = has_part ? mine : Range{whole.begin, whole.begin + 1};
    const auto first = order.begin();
    const std::vector<std::size_t> indices(first + static_cast<std::ptrdiff_t>(read.begin),
                                           first + static_cast<std::ptrdiff_t>(read.end));
    auto [data, target] = fetch(indices);
    check_count(data, indices.size());
    const at::Device home = device(*worker);
    batch.emplace(data.to(home), target.defined() ? target.to(home) : target, mine.size(), next_part == num_parts);
    position = whole.end;
    if (options.drives_step) announce(mine.size());
    num_ended = worker->steps();
  }

  // Makes the next begin() start there.
  void set_place(std::int64_t new_epoch, std::size_t new_position) {
    next_epoch = new_epoch;
    next_position = new_position;
    is_set = true;
  }

  // The epoch, and the samples of it that are consumed: those of batches whose step has ended, or after which the next
  // one has been asked for. When the loop has gone past its last batch, the end of an epoch is the begin of the next;
  // before that, what the loop does after the epoch is still to come.
  [[nodiscard]] std::pair<std::int64_t, std::size_t> place() const {
    if (is_set) return {next_epoch, next_position};
    const bool is_done = position == window.end && (!batch || worker->steps() > num_ended);
    const std::size_t done = is_done ? window.end : window.begin;
    return done == num_samples && !batch ? std::pair{next_epoch, std::size_t{0}} : std::pair{epoch, done};
  }

  void load(const State& state) {
    check_same(state, "num_samples", num_samples, "give the dataset that was saved with");
    check_same(state, "shuffle", options.shuffle, "set LoaderOptions::shuffle as it was");
    check_same(state, "seed", std::to_string(worker->seed()), "set RunConfig::seed as it was");
    const auto saved_epoch = state.at("epoch").as<std::int64_t>();
    const auto samples = state.at("samples").as<std::int64_t>();
    if (saved_epoch < 0 || samples < 0 || static_cast<std::size_t>(samples) > num_samples) {
      refuse(compose("sample {} of epoch {}, which is none of {}", samples, saved_epoch, num_samples));
    }
    leave_epoch();
    epoch = saved_epoch - 1;
    set_place(saved_epoch, static_cast<std::size_t>(samples));
  }

 private:
  // Ends all iterators, and the step of a batch that was not given in full.
  void leave_epoch() {
    if (options.drives_step && next_part < num_parts) worker->abandon_step();
    batch.reset();
    num_parts = next_part = 0;
    ++iteration;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError{compose("a loader on rank {}/{} cannot go on from the saved state: {}", worker->rank(),
                              worker->world_size(), what)};
  }

  void check_same(const State& state, std::string_view name, const Value& here, std::string_view remedy) const {
    const Value& saved = state.at(name);
    if (saved == here) return;
    const auto text = [](const Value& value) {
      return value.visit([](const auto& inside) { return compose("{}", inside); });
    };
    refuse(compose("{} was {} and is {}, so the order of the samples is another: {}", name, text(saved), text(here),
                   remedy));
  }

  void check_count(const at::Tensor& data, std::size_t asked) const {
    if (data.defined() && data.dim() > 0 && data.size(0) == static_cast<std::int64_t>(asked)) return;
    throw DataError{
        compose("the dataset was asked for {} samples on rank {}/{} and gave data of shape {}: the first "
                "dimension must count the samples",
                asked, worker->rank(), worker->world_size(), shape_of(data))};
  }

  void announce(std::size_t samples) const {
    worker->samples(samples, next_part == num_parts);
    WorkerPage& page = worker->page();
    page.epoch.store(epoch, std::memory_order_relaxed);
    page.epoch_size.store(num_samples, std::memory_order_relaxed);
    page.epoch_done.store(position, std::memory_order_relaxed);
  }
};

}  // namespace detail

/// Gives a worker its part of every batch. Each begin() starts the next epoch. The order of an epoch is a function of
/// the run's seed and the epoch only, never of the number of workers; each batch of it is cut among the workers, in
/// parts whose sizes differ by at most one; the last batch may be smaller; nothing is dropped, and nothing counts
/// twice. All workers are given equally many batches. Made by prepare_loader(); must not outlive the training function.
/// Example: for (const auto& batch : loader) loss(net->forward(batch.data), batch.target).backward();
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

  /// Starts the next epoch, also where the last one was left half way.
  [[nodiscard]] Iterator begin() {
    state_->start_epoch();
    return Iterator{*state_};
  }
  [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

  /// The epoch that is being gone over or was last, from 0; -1 before the first.
  [[nodiscard]] std::int64_t epoch() const noexcept { return state_->epoch; }
  /// The epoch that a loop which goes on from here has to begin with: the one under way, or the next after its end.
  [[nodiscard]] std::int64_t next_epoch() const { return state_->place().first; }
  /// Makes the next begin() start the given epoch. Never needed to get a new order. Throws: ConfigError below 0.
  void set_epoch(std::int64_t epoch) {
    if (epoch < 0) throw ConfigError{detail::compose("Loader::set_epoch({}): epochs count from 0", epoch)};
    if (state_->is_set && epoch == state_->next_epoch) return;  // which may have to be gone on with half way
    state_->set_place(epoch, 0);
  }

  /// Returns how much of which epoch all workers together have consumed, in samples, so that other numbers of workers
  /// and batch sizes go on right. A batch counts when its step has ended. After
  /// the loop it is the next epoch; inside it, after the last batch, an empty rest of this one.
  [[nodiscard]] State state() const {
    const auto [epoch, samples] = state_->place();
    return {{"epoch", epoch},
            {"samples", samples},
            {"num_samples", state_->num_samples},
            {"shuffle", state_->options.shuffle},
            {"seed", std::to_string(state_->worker->seed())}};  // all 64 bits, which no number of JSON has
  }
  /// Makes the next begin() go on where a saved loader was, in the middle of its epoch.
  /// Throws: ConfigError if the saved one had another number of samples or another order.
  void load_state(const State& state) { state_->load(state); }

  /// Whether its batches are what gradients are weighted with; see LoaderOptions.
  [[nodiscard]] bool drives_step() const noexcept { return state_->options.drives_step; }
  /// Samples of an epoch, all workers together.
  [[nodiscard]] std::size_t num_samples() const noexcept { return state_->num_samples; }
  /// Batches of an epoch, micro-batches counted one by one; equally many for every worker.
  [[nodiscard]] std::size_t num_batches() const noexcept {
    const std::size_t parts = state_->options.micro_batches;
    const std::size_t full = state_->num_samples / state_->global_batch_size;
    return full * std::min(parts, state_->global_batch_size) +
           std::min(parts, state_->num_samples % state_->global_batch_size);
  }
  /// Samples of a full batch, all workers together.
  [[nodiscard]] std::size_t global_batch_size() const noexcept { return state_->global_batch_size; }

 private:
  std::unique_ptr<detail::LoaderState> state_;  // iterators point to it, and a Loader may be moved
};

static_assert(Stateful<Loader>);

}  // namespace railyard::inline v0_1
