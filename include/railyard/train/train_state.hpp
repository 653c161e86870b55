// SPDX-License-Identifier: MIT
// All that a run must not lose: named parts that checkpoints hold, and the epochs that are left. Train room.
#pragma once

#include "railyard/train/detail/environment.hpp"
#include "railyard/train/detail/held_state.hpp"
#include "railyard/train/detail/snapshot_pace.hpp"
#include "railyard/train/detail/user_files.hpp"
#include "railyard/train/detail/wire.hpp"
#include "railyard/train/worker.hpp"

#include "railyard/checkpoint/checkpoint.hpp"
#include "railyard/checkpoint/detail/names.hpp"
#include "railyard/checkpoint/file_image.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/memory_left.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"
#include "railyard/data/detail/dataset_preprocessors.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Ends a training function whose state has been saved, because the run, or this number of workers, is to end. No
// std::exception: it is nobody's error, and handlers of errors shall let it pass.
struct Leave {};

// Says itself in which epoch a resumed run has to go on: the loader of the training data.
template <class T>
concept DrivesEpochs = requires(const T& part) {
  { part.next_epoch() } -> std::convertible_to<std::int64_t>;
  { part.drives_step() } -> std::convertible_to<bool>;
};

// Takes in what another rank has gathered for itself, as running metrics do: each rank has a state of its own. Law:
// after that it behaves as one that has been given the samples of both.
template <class T>
concept Mergeable = std::copy_constructible<T> && requires(T& part, const T& other) {
  part.merge(other);
  part.reset();
};

// Is an optimizer, whose state says the options of each group of parameters.
template <class T>
concept HasParameterGroups = requires(T& part) {
  part.param_groups();
};

}  // namespace detail

/// Is one part of a TrainState: a name and something that has a state, which must outlive it.
class StatePart {
 public:
  template <HasState T>
  StatePart(std::string name, T& part)
      : name_(std::move(name)),
        take_([&part] {
          State state{StateAccess<T>::take(part)};
          state.is_own |= detail::Mergeable<T>;
          return state;
        }),
        put_([&part](const State& state) { StateAccess<T>::put(part, state); }),
        has_options_(detail::HasParameterGroups<T>) {
    if constexpr (detail::DrivesEpochs<T>) {
      if (part.drives_step()) next_epoch_ = [&part] { return static_cast<std::int64_t>(part.next_epoch()); };
    }
    if constexpr (detail::Mergeable<T>) {
      reset_ = [&part] { part.reset(); };
      merge_ = [&part](const State& state) {
        T other = part;  // made alike
        StateAccess<T>::put(other, state);
        part.merge(other);
      };
    }
  }
  template <class T>
  requires(!HasState<T>) StatePart(std::string, T&) {
    static_assert(HasState<T>,
                  "a part of a TrainState needs a state: const member state() that returns a railyard::State, and "
                  "load_state(const State&); or include the header of Railyard that knows its type");
  }

 private:
  friend class TrainState;

  std::string name_;
  std::function<State()> take_{};
  std::function<void(const State&)> put_{};
  std::function<void()> reset_{};  // both of those that can be merged
  std::function<void(const State&)> merge_{};
  std::function<std::int64_t()> next_epoch_{};
  bool has_options_ = false;
};

/// Is what a run goes on with after a failure or in another program: report(metrics, state) makes a checkpoint of it.
///
/// Making one puts all parts back, if the run goes on from a checkpoint; until then parts are as the program has made
/// them. Every rank makes one, with the same names, when all its parts exist; one at a time.
/// Example: ry::TrainState state{worker, {{"net", net}, {"optimizer", optimizer}, {"training", loader}}};
class TrainState {
 public:
  /// Is what a loop over the epochs that are left goes over.
  class Epochs {
   public:
    class Iterator {
     public:
      using iterator_category = std::input_iterator_tag;
      using value_type = int;
      using difference_type = std::ptrdiff_t;
      using pointer = const int*;
      using reference = int;

      [[nodiscard]] int operator*() const noexcept { return static_cast<int>(state_->epoch_); }
      Iterator& operator++() {
        ++state_->epoch_;
        return *this;
      }
      [[nodiscard]] bool operator==(std::default_sentinel_t) const noexcept {
        if (state_->epoch_ >= count_) state_->is_in_epochs_ = false;
        return state_->epoch_ >= count_;
      }

     private:
      friend class Epochs;
      Iterator(TrainState& state, int count) noexcept : state_(&state), count_(count) {}
      TrainState* state_;
      int count_;
    };
    [[nodiscard]] Iterator begin() const {
      state_->epoch_ = state_->resumed_epoch_;
      state_->is_in_epochs_ = true;
      return {*state_, count_};
    }
    [[nodiscard]] static std::default_sentinel_t end() noexcept { return {}; }

   private:
    friend class TrainState;
    Epochs(TrainState& state, int count) noexcept : state_(&state), count_(count) {}
    TrainState* state_;
    int count_;
  };

  /// Throws: ConfigError for two parts of one name, one that cannot name a file, or a part that does not fit what was
  /// saved; DataError for a damaged checkpoint.
  TrainState(Worker& worker, std::initializer_list<StatePart> parts)
      : worker_(&worker),
        parts_(parts),
        pace_(worker.context().memory_percent, worker.context().checkpoint_interval, worker.context().has_restarts,
              Clock::now()) {
    if (worker.state_ != nullptr) {
      throw ConfigError{detail::compose(
          "TrainState on rank {}/{}: there is one already: give all parts to it, so that checkpoints hold all of them",
          worker.rank(), worker.world_size())};
    }
    std::set<std::string_view> names;
    for (const StatePart& part : parts_) check_name(part.name_, names);
    for (const NamedDataset& one : worker.context().datasets) {
      worker.keep_preprocessors(one.dataset.named(one.name));
    }
    if (worker.rank() == 0) note_environment();  // which its checkpoints hold
    resume();
    worker.state_ = this;
    worker.on_step_end([this] { end_step(); });
  }
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;
  ~TrainState() {
    worker_->state_ = nullptr;
    worker_->on_step_end({});
    worker_->control().wish({});
  }

  /// Whether parts were put back from a checkpoint.
  [[nodiscard]] bool is_resumed() const noexcept { return is_resumed_; }

  /// Returns the epochs from the first that is not complete to count - 1: for (int epoch : state.epochs(10)). An epoch
  /// that was left half way is gone on with if the loader that drives steps is a part; without one, a checkpoint counts
  /// the epoch in which it was made as complete, and so the state is copied to memory, and the number of workers
  /// changed, only where report() saves it.
  [[nodiscard]] Epochs epochs(int count) noexcept { return {*this, count}; }

  /// Adds a file to every checkpoint from now on, as it is then, under files/name. Another name on each rank; either
  /// every rank adds files or none does. Throws: ConfigError for a name that this rank has used, or that cannot be one,
  /// and for a directory; report() and the ends of steps, if the file is not there when it is to be saved. If it goes
  /// or becomes shorter while it is copied, that checkpoint is not written, and training goes on.
  void add_file(std::string name, std::filesystem::path source) {
    adding("add_file", [&] { files_.add_file(std::move(name), std::move(source)); });
  }

  /// Does the same with all files in a directory and in those below it, under files/name/ and their relative paths; the
  /// directory is looked through at each save. One without a file leaves nothing. Throws: ConfigError as add_file(),
  /// and for links and special files in it, which are refused at each save as well, and names that can be in no
  /// checkpoint. Example: state.add_directory("tokenizer", "build/tokenizer");
  void add_directory(std::string name, std::filesystem::path source) {
    adding("add_directory", [&] { files_.add_directory(std::move(name), std::move(source)); });
  }

 private:
  friend class Worker;
  using Clock = detail::SnapshotPace::Clock;

  template <class Add>
  void adding(std::string_view call, const Add& add) const {
    try {
      add();
    } catch (const ConfigError& error) {
      throw ConfigError{
          detail::compose("{} on rank {}/{}: {}", call, worker_->rank(), worker_->world_size(), error.what())};
    }
  }

  static void check_name(const std::string& name, std::set<std::string_view>& former) {
    detail::check_part_name(name, former);
    if (!name.starts_with(detail::preprocessor_prefix)) return;
    throw ConfigError{detail::compose(
        "the part \"{}\" cannot be in a checkpoint: names that begin with \"{}\" are those of what datasets were "
        "changed by, which checkpoints hold by themselves: give it another name",
        detail::printable(name), detail::preprocessor_prefix)};
  }

  void note_environment() const {
    detail::note_environment(worker_->environment());
    for (const StatePart& part : parts_) {
      if (part.has_options_) detail::note_options(part.name_, part.take_().values, worker_->environment());
    }
  }

  void resume() {
    const std::string& path = worker_->resumes_from();
    if (path.empty()) return;
    const auto& held = worker_->context().held_slots;
    if (!held.empty() && worker_->has_saved_) return;  // they are an earlier TrainState's by now
    std::optional<detail::HeldState> memory;
    if (!held.empty()) memory.emplace(*worker_, worker_->link(), held);
    const Checkpoint checkpoint = memory ? memory->checkpoint() : Checkpoint::open(path);
    std::string missing;
    worker_->barrier();  // weights may be shared: nobody looks at them while they are put back
    const auto begin = Clock::now();
    for (const StatePart& part : parts_) {
      if (!put_back(part, checkpoint)) missing += (missing.empty() ? "" : ", ") + part.name_;
    }
    const auto end = Clock::now();
    worker_->barrier();
    const Manifest& manifest = checkpoint.manifest();
    WorkerPage& page = worker_->page();
    page.steps.store(manifest.step, std::memory_order_relaxed);
    if (worker_->rank() == 0) page.samples.store(manifest.samples, std::memory_order_relaxed);
    worker_->num_reports_ = manifest.report + 1;
    resumed_epoch_ = manifest.epoch;
    epoch_ = manifest.epoch - 1;
    is_resumed_ = true;
    pace_.note_put_back(end - begin, end);
    if (worker_->rank() != 0) return;
    if (!missing.empty()) {
      worker_->warn(detail::compose("the checkpoint {} has nothing for: {}; they stay as the program has made them",
                                    path, missing));
    }
    if (const std::string text = detail::difference_of_options(worker_->environment(), manifest.environment);
        !text.empty()) {
      worker_->warn(
          detail::compose("the program makes its optimizers with other options than the run was started with "
                          "({}), but goes on with those that {} holds: change them after the TrainState is made",
                          text, path));
    }
    compare_preprocessors(checkpoint);
    if (manifest.world_size != worker_->world_size()) return;  // which changes bits by itself
    worker_->resumed_environment_ = manifest.environment;
    worker_->warn_of_environment(worker_->environment_);
  }

  // What workers have learned themselves is, with another number of them, another by roundings: then those of the
  // Trainer's datasets alone are compared.
  void compare_preprocessors(const Checkpoint& checkpoint) const {
    const bool has_as_many = checkpoint.manifest().world_size == worker_->world_size();
    for (const NamedState& now : worker_->preprocessors_.states()) {
      const auto then = checkpoint.load(now.name, 0);
      if (!then || detail::fingerprint_of(*then) == detail::fingerprint_of(now.state)) continue;
      if (!has_as_many && !differs_in_trainer(now.name, *then)) continue;
      worker_->warn(detail::compose(
          "what the preprocessors of the dataset \"{}\" have learned is not what {} holds, so that the model is given "
          "other numbers than before: let them learn from the same samples, or put back what they had learned "
          "(Checkpoint::load_preprocessor()) before transform()",
          now.name.substr(detail::preprocessor_prefix.size()), worker_->resumes_from()));
    }
  }

  [[nodiscard]] bool differs_in_trainer(std::string_view part, const State& then) const {
    const Datasets& datasets = worker_->context().datasets;
    return std::any_of(datasets.begin(), datasets.end(), [&](const NamedDataset& one) {
      return detail::preprocessor_part(one.name) == part &&
             detail::DatasetPreprocessors{one.dataset}.had_learned_other(then);
    });
  }

  // Returns false if there is nothing for this rank. Of what ranks have gathered for themselves, fewer of them take in
  // what those that are gone had, and of more of them the new ones begin with nothing: together they have all of it.
  [[nodiscard]] bool put_back(const StatePart& part, const Checkpoint& checkpoint) const {
    const int num_before = checkpoint.manifest().world_size;
    const auto state = checkpoint.load(part.name_, worker_->rank());
    if (!state) {
      if (part.reset_ && worker_->rank() >= num_before) part.reset_();
      return false;
    }
    put(part, part.put_, *state);
    if (!state->is_own || !part.merge_) return true;
    for (int gone = worker_->rank() + worker_->world_size(); gone < num_before; gone += worker_->world_size()) {
      if (const auto other = checkpoint.load(part.name_, gone)) put(part, part.merge_, *other);
    }
    return true;
  }

  void put(const StatePart& part, const std::function<void(const State&)>& to, const State& state) const {
    try {
      to(state);
    } catch (const ConfigError& error) {
      throw ConfigError{detail::compose("the part \"{}\" of the TrainState does not fit the checkpoint {}: {}",
                                        part.name_, worker_->resumes_from(), error.what())};
    }
  }

  [[nodiscard]] std::int64_t next_epoch() const {
    for (const StatePart& part : parts_) {
      if (part.next_epoch_) return part.next_epoch_();
    }
    return epoch_ + 1;
  }

  // One checkpoint of the step that ends with it, and of the report: with the step alone, the report would be lost to
  // whoever goes on from there. So it would with a copy to memory.
  void report(const Metrics& metrics) {
    is_reporting_ = true;
    worker_->end_step();
    is_reporting_ = false;
    worker_->report(metrics);
    save(true);
    if (must_leave_) throw detail::Leave{};
    copy_if_due();
  }

  void end_step() {
    const detail::Wishes wishes = agreed_wishes();
    must_leave_ = wishes.stop && agrees_to_leave();
    must_copy_ = wishes.snapshot && !must_leave_;
    must_resize_ = wishes.resize && !must_leave_;
    if (wishes.checkpoint) pace_.note_checkpoint(Clock::now());
    if (is_reporting_) return;
    if (must_complete_epoch()) must_copy_ = must_resize_ = false;
    const std::uint64_t interval = worker_->context().checkpoint_every_steps;
    const bool is_due = interval != 0 && worker_->steps() % interval == 0;
    if (must_leave_ || is_due || wishes.checkpoint) save(false);
    if (must_leave_) throw detail::Leave{};
    copy_if_due();
  }

  // Nobody could say how much of the epoch under way a copy has seen.
  [[nodiscard]] bool must_complete_epoch() const {
    return is_in_epochs_ && std::none_of(parts_.begin(), parts_.end(),
                                         [](const StatePart& part) { return static_cast<bool>(part.next_epoch_); });
  }

  // What any rank wants at the end of this step. It comes with the gradients, if there are any.
  [[nodiscard]] detail::Wishes agreed_wishes() {
    if (const auto heard = worker_->control().end_step()) return *heard;
    auto numbers = worker_->wishes().numbers<std::int32_t>();
    worker_->do_all_reduce(buffer_of(numbers), ReduceOp::max);
    return detail::Wishes::of_anyone<std::int32_t>(numbers);
  }

  // Whether a wish to stop is one to leave, or the program's own.
  [[nodiscard]] bool agrees_to_leave() {
    std::int32_t leaves = worker_->page().leave_requested.load(std::memory_order_relaxed) ? 1 : 0;
    worker_->do_all_reduce(buffer_of_value(leaves), ReduceOp::max);
    return leaves != 0;
  }

  // Rank 0 decides for all when the state is copied or saved next: one step later, because all have to know.
  void wish() {
    if (worker_->rank() != 0) return;
    const auto now = Clock::now();
    worker_->control().wish({.snapshot = files_.empty() && pace_.wants_copy(now) && has_room(),
                             .checkpoint = pace_.wants_checkpoint(now),
                             .resize = worker_->page().resize_requested.load(std::memory_order_relaxed)});
  }

  void copy_if_due() {
    const bool is_left = std::exchange(must_resize_, false);
    if (is_left && !files_.empty()) save(false);  // they are not in copies
    const bool is_needed = is_left && files_.empty();
    if (std::exchange(must_copy_, false) || is_needed) {
      const Handed handed = hand_over(SnapshotKind::memory, false, !is_needed);
      if (handed.slot != detail::SavedMessage::no_slot) pace_.note_copy(handed.cost, Clock::now());
    }
    if (is_left) throw detail::Leave{};
    wish();
  }

  void save(bool is_report) {
    const Handed handed = hand_over(SnapshotKind::checkpoint, is_report);
    pace_.note_save(handed.cost, Clock::now());
    const bool is_saved = handed.slot != detail::SavedMessage::no_slot;
    if (is_saved && worker_->context().waits_for_checkpoints) worker_->link().await_snapshot(handed.slot);
  }

  struct Handed {
    int slot = 0;
    Clock::duration cost{};  // of all that the step waits for, the making of memory for the first copies included
  };

  // Copies this rank's part of the state to memory that outlives the worker, and hands it over. If there is no such
  // memory, a checkpoint fails as one does that cannot be written. may_lack_room: so does a copy, for which what was
  // copied before counts then; and the first time all find out what copies need, and rank 0 whether there is room,
  // before anybody takes it.
  Handed hand_over(SnapshotKind kind, bool is_report, bool may_lack_room = false) {
    const auto begin = Clock::now();
    std::vector<NamedState> states;
    for (const StatePart& part : parts_) states.push_back({.name = part.name_, .state = part.take_()});
    for (NamedState& one : worker_->preprocessors_.states()) states.push_back(std::move(one));
    // Where several processes look after the workers, each is to have what all ranks have.
    const bool is_first = worker_->rank() == 0 || !worker_->link().sees_snapshots_of(worker_->rank() - 1);
    std::vector<FileImage> images =
        file_images(states, worker_->rank(), worker_->rank() == 0 || (may_lack_room && is_first));
    files_.add_images(images);
    detail::SavedMessage save{.attempt = worker_->attempt(),
                              .step = worker_->steps(),
                              .samples = worker_->page().samples.load(std::memory_order_relaxed),
                              .epoch = next_epoch(),
                              .report = worker_->num_reports_ - 1,
                              .is_report = is_report,
                              .is_memory = kind == SnapshotKind::memory,
                              .environment = worker_->rank() == 0 ? worker_->environment() : NamedValues{}};
    worker_->has_saved_ = true;
    const std::uint64_t size = detail::place_files(save, images);
    if (may_lack_room && part_bytes_ == 0) {
      part_bytes_ = agreed_size(size);
      other_bytes_ = bytes_of_other_parts(images);
      agree_on_room();
      return {.slot = detail::SavedMessage::no_slot, .cost = Clock::now() - begin};
    }
    if (may_lack_room) part_bytes_ = std::max(part_bytes_, size);
    Snapshot snapshot;
    try {
      snapshot = worker_->link().take_snapshot(size, kind);
    } catch (const CollectiveError&) {
      throw;
    } catch (const Error& error) {
      if (save.is_memory && !may_lack_room) throw;
      go_without(std::move(save), error.what());
      return {.slot = detail::SavedMessage::no_slot, .cost = Clock::now() - begin};
    }
    save.slot = snapshot.slot;
    try {
      for (std::size_t at = 0; at < images.size(); ++at) images[at].fill(snapshot.bytes.data() + save.files[at].offset);
      const std::vector<std::byte> message = detail::encode_saved(save);
      detail::write_head(snapshot.bytes, message);
      worker_->link().post(message);
    } catch (const DataError& error) {
      worker_->link().drop_snapshot(snapshot.slot);
      if (save.is_memory) throw;
      go_without(std::move(save), error.what());  // a file of the user's has changed meanwhile
      return {.slot = detail::SavedMessage::no_slot, .cost = Clock::now() - begin};
    } catch (...) {
      worker_->link().drop_snapshot(snapshot.slot);
      throw;
    }
    return {.slot = snapshot.slot, .cost = Clock::now() - begin};
  }

  // The largest of all ranks' parts.
  [[nodiscard]] std::uint64_t agreed_size(std::uint64_t size) {
    auto largest = static_cast<std::int64_t>(size);
    worker_->do_all_reduce(buffer_of_value(largest), ReduceOp::max);
    return static_cast<std::uint64_t>(largest);
  }

  // Whether one process looks after all workers.
  [[nodiscard]] bool sees_all() const {
    return worker_->link().sees_snapshots_of(0) && worker_->link().sees_snapshots_of(worker_->world_size() - 1);
  }

  // How much a restart takes of what ranks of other processes have, for this one.
  [[nodiscard]] std::uint64_t bytes_of_other_parts(const std::vector<FileImage>& images) {
    if (sees_all()) return 0;
    std::int64_t own = 0;
    for (const FileImage& image : images) own += image.is_part ? static_cast<std::int64_t>(image.size) : 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(worker_->world_size()));
    worker_->do_all_gather(buffer_of_value(own), buffer_of(all));
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < worker_->world_size(); ++rank) {
      if (worker_->link().sees_snapshots_of(rank)) continue;
      bytes += static_cast<std::uint64_t>(all[static_cast<std::size_t>(rank)]);
    }
    return bytes;
  }

  // Why copies would not leave enough memory of this host for all else; empty if they do. Where other processes of the
  // host look after workers as well, they are taken to need as much, and to have as much, as this one. What a restart
  // receives takes the place of a copy, which has to be larger then.
  [[nodiscard]] std::string lack_of_room() const {
    std::uint64_t num_own = 0;
    for (int rank = 0; rank < worker_->world_size(); ++rank) num_own += worker_->link().sees_snapshots_of(rank) ? 1 : 0;
    const std::uint64_t larger = std::max(other_bytes_, part_bytes_);
    const std::uint64_t received = larger - part_bytes_;
    const std::uint64_t for_copies = worker_->link().snapshot_memory(SnapshotKind::memory, part_bytes_);
    const std::uint64_t for_received =
        std::min(received, worker_->link().snapshot_memory(SnapshotKind::memory, larger) - for_copies);
    const auto num_local = static_cast<std::uint64_t>(worker_->local_world_size());
    return detail::lack_of_room({.copies = part_bytes_ * num_snapshots * num_local,
                                 .received = received * num_local / num_own,
                                 .there = (for_copies + for_received) * num_local / num_own},
                                worker_->local_world_size(), worker_->context().has_restarts, detail::memory_free());
  }

  // Before the first copy, where several processes look after the workers: rank 0 knows only of its own host.
  void agree_on_room() {
    if (sees_all()) return;
    const std::string lack = lack_of_room();
    std::int32_t lacks_anywhere = lack.empty() ? 0 : 1;
    worker_->do_all_reduce(buffer_of_value(lacks_anywhere), ReduceOp::max);
    if (lacks_anywhere == 0) return;
    if (!lack.empty() && worker_->local_rank() == 0) warn_of_room(detail::compose("{}: {}", worker_->host(), lack));
    pace_.end_copies();
  }

  // Whether copies leave enough memory for all else. Rank 0 says so for all: where one alone made none, those of the
  // others would take their time, and none would be whole.
  [[nodiscard]] bool has_room() {
    if (part_bytes_ <= checked_bytes_) return true;
    const std::string lack = lack_of_room();
    checked_bytes_ = part_bytes_;
    if (lack.empty()) return true;
    warn_of_room(lack);
    pace_.end_copies();
    return false;
  }

  void warn_of_room(std::string_view why) {
    if (std::exchange(has_lacked_room_, true)) return;
    worker_->warn(detail::compose(
        "the state is not copied to memory, so that a restart, or a run that is told to end where no step ends, goes "
        "on from the last checkpoint: {}",
        why));
  }

  // The others have copied their parts, which the supervisor waits for this one to complete.
  void go_without(detail::SavedMessage save, std::string_view why) {
    if (save.is_memory) {
      warn_of_room(why);
    } else {
      save.failure = why;
    }
    save.slot = detail::SavedMessage::no_slot;
    save.files.clear();
    worker_->link().post(detail::encode_saved(save));
    // What the others' copies cost is not known here.
    if (save.is_memory && worker_->rank() == 0) pace_.end_copies();
  }

  Worker* worker_;
  std::vector<StatePart> parts_;
  detail::UserFiles files_{};
  std::int64_t epoch_ = -1;  // that is under way
  std::int64_t resumed_epoch_ = 0;
  bool is_resumed_ = false;
  bool is_in_epochs_ = false;
  bool is_reporting_ = false;
  bool must_leave_ = false;
  bool must_resize_ = false;
  bool must_copy_ = false;  // to memory, as soon as what belongs to the step is done
  bool has_lacked_room_ = false;
  std::uint64_t part_bytes_ = 0;     // of a copy of a rank's part, the largest
  std::uint64_t other_bytes_ = 0;    // that a restart receives of other processes
  std::uint64_t checked_bytes_ = 0;  // for which there was room
  detail::SnapshotPace pace_;
};

inline void Worker::report(const Metrics& metrics, TrainState& state) { state.report(metrics); }

}  // namespace railyard::inline v0_1
