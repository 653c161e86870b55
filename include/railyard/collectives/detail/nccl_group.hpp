// SPDX-License-Identifier: MIT
// One communicator of NCCL with everything that keeps a wait for it from lasting for ever. Collectives room.
#pragma once

#include "railyard/collectives/detail/nccl_library.hpp"
#include "railyard/collectives/detail/nccl_peers.hpp"
#include "railyard/collectives/detail/notices.hpp"
#include "railyard/collectives/detail/signature.hpp"

#include "railyard/core/backend.hpp"
#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/awake_time.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Returns what to do about a failure that NCCL describes by text, with a space before it.
[[nodiscard]] inline std::string nccl_remedy(std::string_view text) {
  struct Remedy {
    std::string_view symptom;
    std::string_view text;
  };
  static constexpr std::array<Remedy, 10> remedies{{
      {"Duplicate GPU", "two ranks were given one GPU: start no more workers on a host than it has GPUs"},
      {"shared memory", "/dev/shm is too small: give the container more (--shm-size=1g, --ipc=host)"},
      {"/dev/shm", "/dev/shm is too small: give the container more (--shm-size=1g, --ipc=host)"},
      {"peer access", "the GPUs cannot see each other's memory: set NCCL_P2P_DISABLE=1"},
      {"P2P", "the GPUs cannot see each other's memory: set NCCL_P2P_DISABLE=1"},
      {"ersion", "all ranks need the same NCCL, and a driver that is no older than its CUDA"},
      {"interface", "name the network between the hosts by NCCL_SOCKET_IFNAME"},
      {"onnect", "name the network between the hosts by NCCL_SOCKET_IFNAME, and let their firewalls pass it"},
      {"remote", "another rank or the network failed first: see the logs of the others, and NCCL_SOCKET_IFNAME"},
      {"out of memory", "the GPU's memory is full: use smaller batches, or look for another program with nvidia-smi"},
  }};
  for (const Remedy& remedy : remedies) {
    if (text.find(remedy.symptom) != std::string_view::npos) return compose("; {}", remedy.text);
  }
  return "; NCCL_DEBUG=WARN makes NCCL say more";
}

/// Runs body(add) between ncclGroupStart and ncclGroupEnd, where add takes each call's result, and returns the first
/// that is a failure.
template <class Body>
[[nodiscard]] NcclResult in_nccl_group(const NcclLibrary& nccl, const Body& body) {
  NcclResult first = nccl.group_start();
  const auto add = [&first](NcclResult next) {
    if (first == NcclResult::success || first == NcclResult::in_progress) first = next;
  };
  body(add);
  add(nccl.group_end());  // in any case, or later calls of this thread would join the group
  return first;
}

class NcclGroup;
struct GiveEventBack {
  std::shared_ptr<NcclGroup> group{};
  void operator()(void* event) const;
};

/// Is one rank's part of a group. Used by one thread at a time, but for abort().
class NcclGroup : public std::enable_shared_from_this<NcclGroup> {
 public:
  /// Is an event of CUDA, which goes back to the group it was taken from.
  using Event = std::unique_ptr<void, GiveEventBack>;

  /// Is an operation under way, or done: then it has no event.
  struct Operation {
    Signature signature{};
    std::uint64_t number = 0;
    int from = -1;  // of messages; -1 in collectives
    int to = -1;
    Event event{};
  };

  NcclGroup(const NcclLibrary& nccl, const CudaLibrary& cuda, const World& world, int device, Store& store,
            const std::string& prefix)
      : nccl_(nccl),
        cuda_(cuda),
        world_(world),
        device_(device),
        store_(&store),
        prefix_(prefix),
        sent_(static_cast<std::size_t>(world.size)),
        received_(sent_),
        notices_(store, prefix, world) {
    store.expect({ended_key()});
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    abort_communicator();
    for (void* event : events_) cuda_.event_destroy(event);
  }

  /// Sets what is told of a failure of the group, before it is thrown; from any thread.
  void on_failure(std::function<void(std::string_view)> function) { on_failure_ = std::move(function); }

  /// Makes the communicator, together with all ranks. identities: NcclPeers' of all ranks. poll() is called now and
  /// then, and throws where there is nothing to wait for any more. Throws: Error with NCCL's words.
  template <class Poll>
  void join(const NcclUniqueId& id, const std::vector<std::string>& identities, const Deadline& deadline,
            const Poll& poll) {
    peers_.watch(identities);
    const DeviceGuard guard{cuda_, device_};
    NcclConfig config;
    NcclResult result = nccl_.comm_init_rank_config(&comm_, world_.size, id, world_.rank, &config);
    auto next_poll = Clock::now() + look_interval;
    AwakeTime time;
    for (; is_good(result); result = state()) {
      if (result == NcclResult::success && state() == NcclResult::success) {
        is_joined_ = true;
        return;
      }
      if (time.is_over(deadline)) {
        throw Error{
            compose("NCCL had not connected all ranks in {}{}", deadline.budget_text(), nccl_remedy("interface"))};
      }
      if (Clock::now() >= next_poll) {
        poll();
        next_poll = Clock::now() + look_interval;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    require(result);
  }

  /// Throws: Error with NCCL's words and what to do about it, if the result is a failure.
  void require(NcclResult result) const {
    if (!is_good(result)) throw Error{text_of(result)};
  }

  /// Starts an operation on call's stream and returns without waiting for it, but the first time that two ranks meet:
  /// launch(communicator, stream).
  template <class Launch>
  [[nodiscard]] Operation start(const Signature& signature, const Call& call, const Launch& launch) {
    throw_if_lost(signature);
    Operation operation = number(signature);
    const bool is_empty = signature.count == 0 && signature.operation != detail::Operation::barrier;
    if (is_empty) {  // nothing moves, but whoever waits for more can learn of it
      if (skipped_.size() == 8) skipped_.erase(skipped_.begin());
      skipped_.push_back(position(operation));
      return operation;
    }
    try {
      const DeviceGuard guard{cuda_, device_};
      operation.event = take_event();
      NcclResult result = NcclResult::success;
      with_communicator(operation, [&] { result = launch(comm_, call.stream.handle); });
      if (result == NcclResult::in_progress) {  // until then nothing is on the stream
        await(operation, call.deadline, [&] {
          with_communicator(operation, [&] { result = state(); });
          return result != NcclResult::in_progress;
        });
      }
      if (result != NcclResult::success) fail(operation, call.deadline, Notice::Kind::broken, text_of(result));
      cuda_.require(cuda_.event_record(operation.event.get(), call.stream.handle), "cudaEventRecord");
    } catch (const CollectiveError&) {
      throw;
    } catch (const Error& error) {  // CUDA's: as good as a lost device
      fail(operation, call.deadline, Notice::Kind::broken, error.what() + nccl_remedy(error.what()));
    }
    return operation;
  }

  /// Says whether the operation is done. Throws: CollectiveError if it never will be.
  [[nodiscard]] bool is_done(Operation& operation) {
    if (!operation.event) return true;
    int code = cuda_not_ready;
    NcclResult result = NcclResult::success;
    with_communicator(operation, [&] {  // what an abort ends looks done as well: seen under the lock, it is not aborted
      code = cuda_.event_query(operation.event.get());
      if (code == cuda_success) result = state();
    });
    if (code == cuda_not_ready) {
      cuda_.get_last_error();  // or the next that asks CUDA for an error is told of this one
      return false;
    }
    if (code != cuda_success || !is_good(result)) {
      const std::string text = code != cuda_success ? std::string{cuda_.get_error_string(code)} : text_of(result);
      fail(operation, Deadline::never(), Notice::Kind::broken, text);
    }
    operation.event.reset();
    return true;
  }

  void wait(Operation& operation, const Deadline& deadline) {
    if (!operation.event) return;
    try {
      await(operation, deadline, [&] { return is_done(operation); });
    } catch (const CollectiveError&) {
      await_end(operation);
      throw;
    }
    skipped_.clear();
  }

  void give_back(void* event) {
    const std::lock_guard lock{events_mutex_};
    events_.push_back(event);
  }

  void abort(std::string_view reason) noexcept {
    try {
      {
        const std::lock_guard lock{mutex_};
        if (!failure_) failure_ = Verdict{compose("rank {} gave up: {}", world_.rank, reason), {}};
      }
      post({.kind = Notice::Kind::aborted, .position = {}, .text = std::string{reason}});
      abort_communicator();
    } catch (...) {  // out of memory: nothing can be told to anybody
    }
  }

  /// Ends the communicator in order, which the others do at the same time or never: after five seconds, by force.
  /// Returns whether it was in order.
  bool leave() noexcept {
    try {
      const std::lock_guard lock{mutex_};
      if (failure_ || !is_joined_) return false;
      store_->set(left_key(world_.rank), compose("{}", num_collectives_));
      post({.kind = Notice::Kind::left, .position = {.operation = "no operation"}});
      const Deadline deadline = Deadline::after(std::chrono::seconds{5});
      NcclResult result = nccl_.comm_finalize(comm_);
      while (result == NcclResult::in_progress && !deadline.expired()) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
        result = state();
      }
      if (result != NcclResult::success) return false;
      nccl_.comm_destroy(std::exchange(comm_, nullptr));
      return true;
    } catch (const std::exception&) {  // the store is gone: the destructor aborts
      return false;
    }
  }

 private:
  using Clock = Deadline::Clock;
  using Milliseconds = std::chrono::milliseconds;

  // How a wait goes on.
  struct Watch {
    Clock::time_point begin = Clock::now();
    Clock::time_point next_look = begin + look_interval;
    Clock::time_point next_comparison{};
    std::optional<Clock::time_point> peer_left{};
    bool has_announced = false;
  };

  [[nodiscard]] static bool is_good(NcclResult result) noexcept {
    return result == NcclResult::success || result == NcclResult::in_progress;
  }

  [[nodiscard]] std::string ended_key() const { return prefix_ + "ended"; }
  [[nodiscard]] std::string left_key(int rank) const { return compose("{}left/{}", prefix_, rank); }

  [[nodiscard]] NcclResult state() const {
    NcclResult result = NcclResult::success;
    const NcclResult asked = nccl_.comm_get_async_error(comm_, &result);
    return asked == NcclResult::success ? result : asked;
  }

  [[nodiscard]] std::string text_of(NcclResult result) const {
    const char* const last = nccl_.get_last_error(comm_);
    const std::string text = compose("NCCL {} reports: {} ({})", NcclLibrary::version_text(nccl_.version),
                                     nccl_.get_error_string(result), last == nullptr ? "" : last);
    return text + nccl_remedy(text);
  }

  // An aborted operation may write for a moment still: the caller is about to free what it writes to. If it does not
  // end soon the device is lost, and waiting would be for ever.
  void await_end(const Operation& operation) const {
    const Deadline deadline = Deadline::after(std::chrono::seconds{1});
    while (cuda_.event_query(operation.event.get()) == cuda_not_ready && !deadline.expired()) {
      cuda_.get_last_error();
      std::this_thread::sleep_for(std::chrono::microseconds{100});
    }
  }

  // Calls of NCCL are short, since the communicator never blocks: the lock keeps abort() from freeing it meanwhile.
  template <class Body>
  void with_communicator(const Operation& operation, const Body& body) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(describe(operation.signature), *failure_, false);
    body();
  }

  void abort_communicator() noexcept {
    const std::lock_guard lock{mutex_};
    if (comm_ != nullptr) nccl_.comm_abort(std::exchange(comm_, nullptr));
  }

  [[nodiscard]] Event take_event() {
    void* event = nullptr;
    {
      const std::lock_guard lock{events_mutex_};
      if (!events_.empty()) {
        event = events_.back();
        events_.pop_back();
      }
    }
    if (event == nullptr) {
      cuda_.require(cuda_.event_create(&event, cuda_event_disable_timing), "cudaEventCreateWithFlags");
    }
    return Event{event, {shared_from_this()}};
  }
  // Counts the operation: collectives in one row, messages in a row for each direction and peer.
  [[nodiscard]] Operation number(const Signature& signature) {
    Operation operation{.signature = signature};
    const bool sends = signature.operation == detail::Operation::send;
    if (sends || signature.operation == detail::Operation::receive) {
      operation.from = sends ? world_.rank : signature.root;
      operation.to = sends ? signature.root : world_.rank;
      operation.number = ++(sends ? sent_ : received_)[static_cast<std::size_t>(signature.root)];
    } else {
      operation.number = ++num_collectives_;
    }
    return operation;
  }

  [[nodiscard]] static Position position(const Operation& operation) {
    std::string key = operation.from < 0 ? compose("c{}", operation.number)
                                         : compose("m{}-{}-{}", operation.from, operation.to, operation.number);
    return {std::move(key), operation.signature.digest(), describe(operation.signature)};
  }

  template <class Done>
  void await(const Operation& operation, const Deadline& deadline, const Done& done) {
    Watch watch;
    AwakeTime time;
    while (!done()) {
      const auto now = Clock::now();
      if (time.is_over(deadline, now)) fail(operation, deadline, Notice::Kind::late, "the deadline has passed");
      if (now >= watch.next_look) look_around(operation, deadline, watch);
      if (now - watch.begin > std::chrono::microseconds{100}) {  // before, a sleep would cost more than it spares
        const auto nap = std::min<std::chrono::nanoseconds>((now - watch.begin) / 8, std::chrono::milliseconds{1});
        std::this_thread::sleep_for(std::min(nap, time.until_next_look(deadline)));
      }
    }
  }

  // Called now and then when an operation takes long: ends it when it cannot be done any more.
  void look_around(const Operation& operation, const Deadline& deadline, Watch& watch) {
    watch.next_look = Clock::now() + look_interval;
    NcclResult result = NcclResult::success;
    with_communicator(operation, [&] { result = state(); });
    if (!is_good(result)) {
      fail(operation, deadline, Notice::Kind::broken, text_of_current(operation, result));
    }
    std::vector<int> dead;
    for (const int rank : peers_.ended()) {
      if (!notices_.kind_of(rank)) dead.push_back(rank);
    }
    if (!dead.empty()) fail(operation, deadline, Notice::Kind::broken, "a process has ended", dead);
    if (peek(*store_, ended_key())) look_at_ends(operation, deadline, watch);
    if (Clock::now() >= watch.next_comparison) compare_positions(operation, deadline, watch);
  }

  [[nodiscard]] std::string text_of_current(const Operation& operation, NcclResult result) {
    std::string text;
    with_communicator(operation, [&] { text = text_of(result); });
    return text;
  }

  // A rank that has left had done its part of everything before; who waits for more waits in vain. Of messages there is
  // no such count: what a peer has sent before it left is there soon.
  void look_at_ends(const Operation& operation, const Deadline& deadline, Watch& watch) {
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank == world_.rank) continue;
      const auto kind = notices_.kind_of(rank);
      if (!kind) continue;
      if (*kind != Notice::Kind::left) fail(operation, deadline, Notice::Kind::broken, "the group was lost");
      const bool is_message = operation.from >= 0;
      if (is_message && operation.from != rank && operation.to != rank) continue;
      if (is_message && !watch.peer_left) watch.peer_left = Clock::now();
      const bool is_over = is_message ? Clock::now() - *watch.peer_left > std::chrono::seconds{1}
                                      : num_collectives_of(rank) < operation.number;
      if (is_over) fail(operation, deadline, Notice::Kind::broken, compose("rank {} left the group before", rank));
    }
  }

  [[nodiscard]] std::uint64_t num_collectives_of(int rank) {
    std::uint64_t number = 0;
    if (const auto text = peek(*store_, left_key(rank))) {
      std::from_chars(text->data(), text->data() + text->size(), number);
    }
    return number;
  }

  // The first comparison comes early and each later one after twice the time, in this operation and the next slow
  // ones: a group whose ranks often wait for each other leaves no more than a few announcements in the store.
  void compare_positions(const Operation& operation, const Deadline& deadline, Watch& watch) {
    const Position here = position(operation);
    if (!std::exchange(watch.has_announced, true)) {
      for (const auto& skipped : std::exchange(skipped_, {})) notices_.announce(skipped);
      notices_.announce(here);
      until_comparison_ = std::min<Milliseconds>(until_comparison_ * 2, std::chrono::minutes{1});
    }
    if (const auto difference = notices_.find_difference(here)) {
      fail(operation, deadline, Notice::Kind::differs, difference->text, difference->blamed);
    }
    watch.next_comparison = Clock::now() + until_comparison_;
  }

  // Ends the group for this rank: tells the others, ends what is on the device, and finds out why.
  [[noreturn]] void fail(const Operation& operation, const Deadline& deadline, Notice::Kind kind,
                         const std::string& text, std::vector<int> culprits = {}) {
    const Position here = position(operation);
    {
      const std::lock_guard lock{mutex_};
      if (failure_) throw_failure(here.operation, *failure_, false);  // abort() came first, and its reason is better
    }
    const Notice notice{.kind = kind, .position = here, .culprits = std::move(culprits), .text = text};
    post(notice);
    abort_communicator();
    auto verdict = notices_.judge(notice, text, deadline.budget_text(), patience);
    if (on_failure_) on_failure_(verdict.text);
    const std::lock_guard lock{mutex_};
    if (!failure_) failure_ = std::move(verdict);
    throw_failure(here.operation, *failure_, false);
  }

  void post(const Notice& notice) noexcept {
    const std::lock_guard lock{post_mutex_};
    notices_.post(notice);
    try {
      store_->set(ended_key(), "");
    } catch (const std::exception&) {  // another rank has set it; or the store is gone, and they wait for the deadline
    }
  }

  void throw_if_lost(const Signature& signature) {
    const std::lock_guard lock{mutex_};
    if (failure_) throw_failure(describe(signature), *failure_, true);
  }

  [[noreturn]] void throw_failure(const std::string& operation, const Verdict& verdict, bool is_later) const {
    throw CollectiveError{operation, world_.rank, verdict.blamed,
                          compose("{} (host {}, cuda:{}): {}{}", place_text(operation, world_.rank, world_.size),
                                  host_name(), device_, is_later ? "the group was lost before: " : "", verdict.text)};
  }

  // How long a rank that has failed waits for the others' notices.
  static constexpr Milliseconds patience{250};
  // How often a rank that waits looks whether the others are still there.
  static constexpr Milliseconds look_interval{100};

  NcclLibrary nccl_;
  CudaLibrary cuda_;
  World world_;
  int device_;
  Store* store_;
  std::string prefix_;
  NcclPeers peers_{};
  NcclComm* comm_ = nullptr;
  bool is_joined_ = false;
  std::uint64_t num_collectives_ = 0;
  std::vector<std::uint64_t> sent_;      // messages, by receiver
  std::vector<std::uint64_t> received_;  // messages, by sender
  std::vector<Position> skipped_{};
  Milliseconds until_comparison_{100};
  Notices notices_;
  std::mutex post_mutex_;
  std::mutex mutex_;                  // of the communicator and the failure
  std::optional<Verdict> failure_{};  // set once, and never changed after
  std::mutex events_mutex_;
  std::vector<void*> events_{};
  std::function<void(std::string_view)> on_failure_{};
};

inline void GiveEventBack::operator()(void* event) const { group->give_back(event); }

}  // namespace detail
}  // namespace railyard::inline v0_1
