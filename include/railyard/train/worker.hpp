// SPDX-License-Identifier: MIT
// What a training function sees. Train room: knows the concepts, no backend and no LibTorch.
#pragma once

#include "railyard/train/data_config.hpp"
#include "railyard/train/detail/accepted_changes.hpp"
#include "railyard/train/detail/control_lane.hpp"
#include "railyard/train/detail/environment.hpp"
#include "railyard/train/detail/kept_preprocessors.hpp"
#include "railyard/train/detail/wire.hpp"
#include "railyard/train/detail/worker_waits.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/device_line.hpp"
#include "railyard/core/host_memory.hpp"
#include "railyard/core/mean.hpp"
#include "railyard/core/scaling.hpp"
#include "railyard/core/side_line.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/summed_metric.hpp"
#include "railyard/core/value.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

/// Says what every worker of a run has in common.
struct RunContext {
  std::string name{};
  std::filesystem::path path{};  ///< the run's directory
  std::uint64_t seed = 0;
  std::chrono::nanoseconds collective_timeout = std::chrono::minutes{10};
  std::chrono::nanoseconds setup_timeout{0};  ///< that of the time before a worker's first step has ended; 0: the same
  std::uint64_t checkpoint_every_steps = 0;
  std::chrono::nanoseconds checkpoint_interval{0};
  bool is_elastic = false;    ///< the number of workers may change
  double memory_percent = 0;  ///< of the time of training, for snapshots in memory; 0: none
  bool has_restarts = true;   ///< failures are survived
  bool waits_for_checkpoints = false;
  /// The checkpoint that this attempt goes on from; empty at the first start.
  std::string resumes_from{};
  /// The snapshots, by rank, that it goes on from instead.
  std::vector<std::uint8_t> held_slots{};
  int attempt = 0;                            ///< counts the starts of the run's workers, from 0
  std::vector<std::string> accept_changes{};  ///< see RunConfig
  Datasets datasets{};
  DataConfig data{};
  bool reports_step_times = false;
};

class TrainState;

/// Is a worker as its training function sees it: who it is, and how it talks to the others. No template, so that
/// training functions and their helpers can live in ordinary .cpp files; a collective costs one virtual call more than
/// the backend's.
///
/// Collectives return when the buffers may be used again. All ranks call the same ones in the same order; whoever does
/// not, dies, or is later than RunConfig::collective_timeout (at first setup_timeout) makes them throw CollectiveError
/// on every rank.
class Worker {
 public:
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] const World& world() const noexcept { return world_; }
  [[nodiscard]] int rank() const noexcept { return world().rank; }
  [[nodiscard]] int world_size() const noexcept { return world().size; }
  [[nodiscard]] int local_rank() const noexcept { return world().local_rank; }
  [[nodiscard]] int local_world_size() const noexcept { return world().local_size; }
  [[nodiscard]] const std::string& host() const noexcept { return world().host; }
  /// The seed of the run, equal on all ranks.
  [[nodiscard]] std::uint64_t seed() const noexcept { return context_->seed; }
  [[nodiscard]] const std::string& run_name() const noexcept { return context_->name; }
  /// The run's directory, equal on all ranks.
  [[nodiscard]] const std::filesystem::path& run_path() const noexcept { return context_->path; }

  /// Returns a dataset of the Trainer, for prepare_loader(). Throws: ConfigError that lists the names that exist.
  [[nodiscard]] Dataset dataset(std::string_view name) const {
    return detail::dataset_of_worker(context_->datasets, context_->data, name, static_cast<std::size_t>(rank()),
                                     static_cast<std::size_t>(world_size()));
  }

  /// The GPU that this worker was given (ScalingConfig::use_gpu), by its number among those that its process is shown;
  /// nothing without.
  [[nodiscard]] std::optional<int> device_index() const noexcept {
    return world_.device < 0 ? std::nullopt : std::optional{world_.device};
  }
  /// Where the backend expects buffers: the CPU, or this worker's GPU.
  [[nodiscard]] virtual Device device() const noexcept = 0;

  /// The memory that the ranks of each host share, where the backend has such: for rooms above this one. nullptr
  /// otherwise.
  [[nodiscard]] virtual HostMemory* host_memory() noexcept = 0;
  /// A second line of sums for one other thread of each rank, where the backend has such; nullptr otherwise. All ranks
  /// call it at the same place; the first call joins the ranks anew. Lives as long as the worker.
  [[nodiscard]] virtual SideLine* side_line() = 0;
  /// A second line of operations on the device, where the backend has such; otherwise as side_line().
  [[nodiscard]] virtual DeviceLine* device_line() = 0;
  /// When a collective that begins now is to give up.
  [[nodiscard]] Deadline collective_deadline() const {
    const bool is_setting_up = !has_ended_step_ && context_->setup_timeout.count() > 0;
    return is_setting_up ? Deadline::after(context_->setup_timeout, "RunConfig::setup_timeout")
                         : Deadline::after(context_->collective_timeout, "RunConfig::collective_timeout");
  }

  /// Reports metrics. Call number i of all ranks forms report i; rank 0's metrics are the run's. Never waits for
  /// another rank. Several threads of a rank may report at once. Cost: about a microsecond. Throws: ConfigError for a
  /// report of more than 1 MiB, or a metric named "report" or "seconds", which are columns of metrics.jsonl already.
  void report(const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      if (name == "report" || name == "seconds") {
        throw ConfigError{detail::compose(
            "report() on rank {}/{}: a metric is named \"{}\", but metrics.jsonl has a column of that name: "
            "give the metric another name",
            rank(), world_size(), name)};
      }
    }
    post_report(context_->reports_step_times ? with_step_times(metrics) : metrics);
    ++num_reports_;
  }

  /// Reports metrics with a checkpoint of the state, as it is when the step under way has ended. Returns when the state
  /// has been copied: the checkpoint is written meanwhile, by the supervisor. Waits while two are still unwritten.
  /// Every rank reports with a state, or none. Include railyard/train/train_state.hpp.
  void report(const Metrics& metrics, TrainState& state);

  /// Tells the user of something that does not end the run: the console now, and Result::warnings(). The text says
  /// which rank this is, unless it holds for all: what several say alike is told once. Throws: CollectiveError if the
  /// run has ended.
  void warn(const std::string& text) { link_->post(detail::encode_warning(text)); }

  /// The directory of the checkpoint that this attempt goes on from, "memory" if it is that of the processes that make
  /// workers, empty if it begins at the beginning. Where there is a TrainState, it has put everything back.
  [[nodiscard]] const std::string& resumes_from() const noexcept { return context_->resumes_from; }
  /// Whether the run may go on with another number of workers.
  [[nodiscard]] bool is_elastic() const noexcept { return context_->is_elastic; }
  /// Whether RunConfig::accept_changes names it.
  [[nodiscard]] bool accepts_change(std::string_view name) const {
    return detail::accepts_change(context_->accept_changes, name);
  }
  /// Counts how often the run's workers have been started before.
  [[nodiscard]] int attempt() const noexcept { return context_->attempt; }

  /// Returns the mean over what all ranks have added: the sum of sums by the sum of weights, equal on every rank.
  [[nodiscard]] double mean(const Mean& local) {
    double both[2] = {local.sum(), local.weight()};
    do_all_reduce(buffer_of(both), ReduceOp::sum);
    return both[0] / both[1];
  }
  /// Returns the mean of one number per rank, equal on every rank.
  [[nodiscard]] double mean(double value) {
    do_all_reduce(buffer_of_value(value), ReduceOp::sum);
    return value / world_size();
  }
  /// Returns the metric of what all ranks have added, equal on every rank. Example: worker.reduce(auc).value()
  template <SummedMetric M>
  [[nodiscard]] M reduce(M metric) {
    do_all_reduce(buffer_of(metric.sums()), ReduceOp::sum);
    return metric;
  }

  /// States how many samples are behind the gradients of the next backward passes of this rank; gradients are averaged
  /// with these weights. Loaders with drives_step call it; with a loader of one's own it is the user's to call, before
  /// the forward pass of every step. Throws: ConfigError if a prepared model has changed so that it would not be
  /// averaged.
  /// completes_step: false where the step goes on with another micro-batch; then gradients accumulate, and are averaged
  /// over the samples of all micro-batches in the backward pass of the last one.
  void samples(std::uint64_t count, bool completes_step = true) {
    if (completes_step_) end_step();
    if (num_steps_ == 0) has_exchanged_ = false;  // what came before the first step carried no gradients
    if (on_samples_) on_samples_(count, completes_step);
    step_samples_ = count;
    has_step_ = true;
    completes_step_ = completes_step;
    link_->page().samples.fetch_add(count, std::memory_order_relaxed);
  }
  /// Says that the micro-batches since the last completed step will not be completed: the next samples() begins a step
  /// of its own. Loaders with drives_step call it at the begin of an epoch.
  void abandon_step() {
    if (!completes_step_) has_step_ = false;
    if (on_abandoned_step_) on_abandoned_step_();
  }
  /// Says that nothing more belongs to the step under way, if there is one: its optimizer has stepped, and so have
  /// schedulers and whatever else the loop does. Each samples() after the last micro-batch of a step says so too;
  /// loaders with drives_step do before they go on to the next batch or epoch, and so does report() with a state.
  void end_step() {
    if (!completes_step_ || !std::exchange(has_step_, false)) return;
    link_->page().steps.fetch_add(1, std::memory_order_relaxed);
    const std::chrono::nanoseconds now = Deadline::Clock::now().time_since_epoch();
    link_->page().stepped_at_ns.store(now.count(), std::memory_order_relaxed);
    if (on_step_end_) on_step_end_();
    has_ended_step_ = true;
    if (++num_steps_ == steps_apart) warn_of_training_apart();
  }
  /// Steps that this rank has ended, in all attempts of the run together.
  [[nodiscard]] std::uint64_t steps() const noexcept { return link_->page().steps.load(std::memory_order_relaxed); }
  /// Sets what is called whenever a step has ended.
  void on_step_end(std::function<void()> function) { on_step_end_ = std::move(function); }
  /// What samples() was last told; nothing if it never was.
  [[nodiscard]] std::optional<std::uint64_t> step_samples() const noexcept { return step_samples_; }
  /// Sets what tells where the time of all steps has gone, for a room above this one; it is told whether the training
  /// function has returned.
  void on_step_times(std::function<StepTimes(bool is_end)> function) { on_step_times_ = std::move(function); }
  /// Tells the supervisor where it has gone; called when the training function has returned.
  void post_step_times() {
    if (num_steps_ > 0 && num_steps_ < steps_apart) warn_of_training_apart();
    if (on_step_times_) link_->post(detail::encode_step_times(on_step_times_(true)));
  }
  /// Says that a loader begins to wait for data, or has it: the time between is StepTimes::data.
  void wait_for_data(bool begins) {
    if (on_data_wait_) on_data_wait_(begins);
  }
  /// Sets what wait_for_data() calls.
  void on_data_wait(std::function<void(bool)> function) { on_data_wait_ = std::move(function); }
  /// Sets what each samples() calls first, for a room above this one that must see every step begin.
  void on_samples(std::function<void(std::uint64_t, bool)> function) { on_samples_ = std::move(function); }

  /// Sets what abandon_step() calls.
  void on_abandoned_step(std::function<void()> function) { on_abandoned_step_ = std::move(function); }

  /// Sets what tells behind which work of the device collectives on its buffers start, for a room above this one. Until
  /// then it is the device's default stream.
  void on_stream(std::function<Stream()> function) { on_stream_ = std::move(function); }

  /// Asks all workers to stop; they learn of it in their next should_stop(), or the one after.
  void request_stop() noexcept { stop_requested_ = true; }
  /// Returns true on every rank as soon as request_stop() was called on any, or the run was asked to end (Ctrl-C,
  /// SIGTERM, a callback). All ranks call it at the same place.
  /// Cost: none where it is called once in every step of a prepared model, for then the answer has come with the
  /// gradients, and a wish that comes after them is heard a step later; elsewhere a small collective.
  [[nodiscard]] bool should_stop() {
    if (stop_agreed_) return true;  // all ranks have agreed in the same call, so none of them talks here any more
    if (const auto heard = control_.take_stop(); heard && world_size() > 1) return stop_agreed_ = *heard;
    std::int32_t anyone = wants_stop() ? 1 : 0;
    do_all_reduce(buffer_of_value(anyone), ReduceOp::max);
    return stop_agreed_ = anyone != 0;
  }
  /// Whether this rank knows of a wish to stop.
  [[nodiscard]] bool wants_stop() const noexcept {
    return stop_requested_ || link_->page().stop_requested.load(std::memory_order_relaxed);
  }
  /// What this rank wants all ranks to do at the end of the step under way.
  [[nodiscard]] detail::Wishes wishes() const noexcept {
    detail::Wishes own = control_.own();
    own.stop = wants_stop();
    return own;
  }
  /// What goes with the exchanges of a room above this one, which tells what it has heard.
  [[nodiscard]] detail::ControlLane& control() noexcept { return control_; }

  void barrier() { do_barrier(); }
  /// Combines data of all ranks in place; equal bits on every rank afterwards.
  void all_reduce(Buffer data, ReduceOp op) {
    has_exchanged_ = true;
    do_all_reduce(data, op);
  }
  void broadcast(Buffer data, int root) {
    has_exchanged_ = true;
    do_broadcast(data, root);
  }
  /// Shapes: out has world_size times the elements of in; part r is rank r's.
  void all_gather(ConstBuffer in, Buffer out) {
    has_exchanged_ = true;
    do_all_gather(in, out);
  }
  /// Shapes: rank r gives counts[r] elements; out has their sum. counts are equal on all ranks.
  void all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) {
    has_exchanged_ = true;
    do_all_gather_uneven(in, out, counts);
  }
  /// Shapes: in has world_size times the elements of out; rank r gets the combined slice r.
  void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) {
    has_exchanged_ = true;
    do_reduce_scatter(in, out, op);
  }
  /// Shapes: at root, out has world_size times the elements of in; elsewhere out is not looked at.
  void gather(ConstBuffer in, Buffer out, int root) {
    has_exchanged_ = true;
    do_gather(in, out, root);
  }
  /// Shapes: at root, in has world_size times the elements of out; elsewhere in is not looked at.
  void scatter(ConstBuffer in, Buffer out, int root) {
    has_exchanged_ = true;
    do_scatter(in, out, root);
  }
  /// Shapes: in and out are equally long, a multiple of world_size; slice r of in goes to rank r.
  void all_to_all(ConstBuffer in, Buffer out) {
    has_exchanged_ = true;
    do_all_to_all(in, out);
  }
  void send(ConstBuffer data, int to) {
    has_exchanged_ = true;
    do_send(data, to);
  }
  void receive(Buffer data, int from) {
    has_exchanged_ = true;
    do_receive(data, from);
  }

  /// What equal bits depend on, for the manifests of checkpoints: rooms above this one add what they know.
  [[nodiscard]] NamedValues& environment() noexcept { return environment_; }
  /// Adds to it what comes out only while the workers train, and warns where the checkpoint that the run goes on from
  /// says something else.
  void note_environment(const std::string& name, const Value& value) {
    environment_.set(name, value);
    warn_of_environment({{name, value}});
  }

  /// Takes what changes the samples of a dataset that goes back to one of the Trainer's into the checkpoints from now
  /// on. Loaders do that.
  void keep_preprocessors(const Dataset& dataset) { preprocessors_.note(dataset); }

  /// Where the workers leave small values for each other; for rooms above this one.
  [[nodiscard]] Store& store() noexcept { return link_->store(); }
  /// What this worker shows its supervisor while it runs: loaders write their progress there.
  [[nodiscard]] WorkerPage& page() noexcept { return link_->page(); }

  /// Returns the one T of this worker, made by T{} on first use and destroyed when the training function has ended, the
  /// last one made first. For rooms above this one, which keep their state per worker. T has a static extension_name.
  template <class T>
  [[nodiscard]] T& extension() {
    for (const auto& [name, object] : extensions_) {
      if (name == T::extension_name) return *static_cast<T*>(object.get());
    }
    auto made = std::make_shared<T>();
    extensions_.emplace_back(T::extension_name, made);
    return *made;
  }

 protected:
  Worker(WorkerLink& link, const RunContext& context, const World& world)
      : link_(&link), context_(&context), world_(world), waits_(link) {}
  ~Worker() { drop_extensions(); }

  void drop_extensions() noexcept {
    while (!extensions_.empty()) extensions_.pop_back();
  }

  [[nodiscard]] WorkerLink& link() noexcept { return *link_; }
  [[nodiscard]] Stream stream() const { return on_stream_ ? on_stream_() : Stream{}; }
  // Ends waits for other programs; the backend's are its own.
  void end_waits(std::string_view reason) { waits_.end(reason); }
  [[nodiscard]] const RunContext& context() const noexcept { return *context_; }
  // Says that from here on gradients may go from rank to rank without a word to this class.
  void note_backend() noexcept { uses_backend_ = true; }

 private:
  friend class TrainState;

  // Steps after which it is no accident that nothing was exchanged.
  static constexpr std::uint64_t steps_apart = 1000;

  void warn_of_environment(const NamedValues& now) {
    if (const std::string text = detail::difference_of(now, resumed_environment_); !text.empty()) {
      warn(detail::compose("the run goes on from {} with {}: bits may differ", resumes_from(), text));
    }
  }

  // Nobody wants as many models as there are workers, of which none has seen all samples.
  void warn_of_training_apart() {
    if (rank() != 0 || world_size() == 1 || on_samples_ || has_exchanged_ || uses_backend_) return;
    warn(detail::compose(
        "rank 0/{} has ended {} steps of training, and nothing was exchanged between the workers: each of them trains "
        "a "
        "model of its own. Give the model to prepare_model(worker, model), or sum gradients with worker.all_reduce()",
        world_size(), num_steps_));
  }

  // Other threads than the training function's may not look at its clock.
  [[nodiscard]] Metrics with_step_times(Metrics metrics) {
    if (!on_step_times_ || std::this_thread::get_id() != thread_) return metrics;
    const StepTimes now = on_step_times_(false);
    detail::add_step_times(detail::times_since(std::exchange(reported_times_, now), now), metrics);
    return metrics;
  }

  // The link knows of messages only: the error says what this one was.
  void post_report(const Metrics& metrics) {
    const auto call = [&] {
      return detail::compose("report() of {} metrics on rank {}/{}", metrics.size(), rank(), world_size());
    };
    const auto reason = [](const std::exception& error) {
      const std::string_view text = error.what();
      const std::size_t colon = text.find(": ");
      return std::string{colon == std::string_view::npos ? text : text.substr(colon + 2)};
    };
    try {
      link_->post(detail::encode_report(metrics));
    } catch (const ConfigError& error) {
      throw ConfigError{detail::compose("{}: {}", call(), reason(error))};
    } catch (const CollectiveError& error) {
      throw CollectiveError{"report()", rank(), error.blamed(),
                            detail::compose("{}: {}; let this error pass: the run's Result tells the first cause",
                                            call(), reason(error))};
    }
  }

  virtual void do_barrier() = 0;
  virtual void do_all_reduce(Buffer data, ReduceOp op) = 0;
  virtual void do_broadcast(Buffer data, int root) = 0;
  virtual void do_all_gather(ConstBuffer in, Buffer out) = 0;
  virtual void do_all_gather_uneven(ConstBuffer in, Buffer out, std::span<const std::size_t> counts) = 0;
  virtual void do_reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) = 0;
  virtual void do_gather(ConstBuffer in, Buffer out, int root) = 0;
  virtual void do_scatter(ConstBuffer in, Buffer out, int root) = 0;
  virtual void do_all_to_all(ConstBuffer in, Buffer out) = 0;
  virtual void do_send(ConstBuffer data, int to) = 0;
  virtual void do_receive(Buffer data, int from) = 0;

  WorkerLink* link_;
  const RunContext* context_;
  World world_;
  detail::WorkerWaits waits_;
  std::optional<std::uint64_t> step_samples_{};
  std::function<void(std::uint64_t, bool)> on_samples_{};
  std::function<void()> on_abandoned_step_{};
  std::function<void()> on_step_end_{};
  std::function<StepTimes(bool is_end)> on_step_times_{};
  StepTimes reported_times_{};  // up to the last report
  std::thread::id thread_ = std::this_thread::get_id();
  std::function<void(bool)> on_data_wait_{};
  std::function<Stream()> on_stream_{};
  TrainState* state_ = nullptr;
  std::atomic<std::int64_t> num_reports_{0};  // those before the checkpoint that the run goes on from included
  bool has_step_ = false;                     // one has begun and not ended
  bool completes_step_ = false;               // its last micro-batch has begun
  bool has_ended_step_ = false;
  std::uint64_t num_steps_ = 0;  // that have ended in this attempt
  bool has_exchanged_ = false;   // by a collective that could carry gradients
  bool uses_backend_ = false;    // itself
  bool stop_requested_ = false;
  bool stop_agreed_ = false;
  bool has_saved_ = false;  // its state, over what it has gone on from in memory
  detail::ControlLane control_{};
  NamedValues environment_{};
  NamedValues resumed_environment_{};  // on rank 0: of the checkpoint that it has gone on from, with as many workers
  detail::KeptPreprocessors preprocessors_{};  // of the datasets that are read
  std::vector<std::pair<std::string_view, std::shared_ptr<void>>> extensions_{};
};

}  // namespace railyard::inline v0_1
