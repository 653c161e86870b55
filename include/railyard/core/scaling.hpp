// SPDX-License-Identifier: MIT
// The concept of how workers come to be, and the two ends between a worker and its supervisor. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {

/// Is a page that a worker writes and its supervisor reads while both run; in shared memory if they are two processes.
/// The times are of the monotonic clock, in nanoseconds.
struct WorkerPage {
  std::atomic<std::uint64_t> samples{0};          ///< samples this rank has been given, in all
  std::atomic<std::int64_t> epoch{-1};            ///< the epoch it is in, -1 before the first
  std::atomic<std::uint64_t> epoch_size{0};       ///< samples of one epoch, all ranks together; 0 if unknown
  std::atomic<std::uint64_t> epoch_done{0};       ///< samples of this epoch given to all ranks together so far
  std::atomic<std::uint64_t> collectives{0};      ///< collectives begun
  std::atomic<std::int64_t> waiting_since_ns{0};  ///< when the one it is in was begun, 0 while in none
  std::atomic<bool> stop_requested{false};        ///< written by the supervisor
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// Is the worker's end: all that a training function's surroundings need, however the worker came to be.
class WorkerLink {
 public:
  WorkerLink() = default;
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;
  virtual ~WorkerLink() = default;

  [[nodiscard]] virtual const World& world() const noexcept = 0;
  [[nodiscard]] virtual Store& store() noexcept = 0;
  [[nodiscard]] virtual WorkerPage& page() noexcept = 0;

  /// Hands a message to the supervisor: in order, in about a microsecond, and not lost if this worker dies right after.
  /// Waits only while the supervisor is megabytes behind. Throws: ConfigError if the message is larger than 1 MiB.
  virtual void post(std::span<const std::byte> message) = 0;

  /// Sets what is run, at most once and on another thread, when the group is to end: it must end every wait of this
  /// worker. Runs at once if the group is already ending. An empty function takes it away, and does not return while
  /// the former one is running.
  virtual void on_abort(std::function<void(std::string_view reason)> handler) = 0;
};

/// Is what a worker runs. Called by every worker, by several at once where workers are threads.
using WorkerBody = std::function<void(WorkerLink&)>;

/// Says how a worker ended.
struct WorkerExit {
  enum class Kind : std::uint8_t {
    returned,   ///< its body returned
    threw,      ///< an exception left its body; message is what() of it
    exited,     ///< it called exit() or the like before its body returned; code is the status
    signalled,  ///< a signal ended it; code is the signal, message its likely reason
  };
  Kind kind = Kind::returned;
  int code = 0;
  std::string message{};
  std::vector<int> blamed{};    ///< the ranks that its CollectiveError blames
  bool is_consequence = false;  ///< a CollectiveError: most likely another rank failed before
};

/// Returns how a worker ended whose body threw the exception.
[[nodiscard]] inline WorkerExit exit_of(const std::exception_ptr& exception) {
  WorkerExit exit{.kind = WorkerExit::Kind::threw};
  try {
    std::rethrow_exception(exception);
  } catch (const CollectiveError& error) {
    exit.message = error.what();
    exit.blamed = error.blamed();
    exit.is_consequence = true;
  } catch (const std::exception& error) {
    exit.message = error.what();
  } catch (...) {
    exit.message = "an exception that is not derived from std::exception";
  }
  return exit;
}

/// A worker has posted a message.
struct MessageEvent {
  int rank = 0;
  std::vector<std::byte> bytes{};
};
/// A worker has written a line to standard output or standard error; without the line feed.
struct OutputEvent {
  int rank = 0;
  bool is_error = false;
  std::string line{};
};
/// A worker has ended. All its messages and output lines came before.
struct ExitEvent {
  int rank = 0;
  WorkerExit exit{};
};
/// A worker has shown no sign of life for longer than GroupPlan::silence_limit; reported once.
struct SilenceEvent {
  int rank = 0;
  std::string message{};  ///< since when, and what the system says about it (stopped, in uninterruptible sleep)
};
/// SIGINT, SIGTERM or SIGHUP has reached the supervisor.
struct SignalEvent {
  int signal = 0;
};
/// The group as a whole is broken, such as by the loss of the process that starts workers. ExitEvents still follow.
struct BrokenEvent {
  std::string message{};
};
using GroupEvent = std::variant<MessageEvent, OutputEvent, ExitEvent, SilenceEvent, SignalEvent, BrokenEvent>;

/// Is the supervisor's end of a running group. Used by the thread that started it.
class WorkerGroup {
 public:
  WorkerGroup() = default;
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  /// Leaves nothing behind: whatever still runs is killed and reaped, handlers of signals are put back.
  virtual ~WorkerGroup() = default;

  /// Waits for the next event, or returns nothing at the deadline. After one ExitEvent per rank there are no more.
  [[nodiscard]] virtual std::optional<GroupEvent> next(const Deadline& deadline) = 0;
  /// Sets stop_requested on every worker's page.
  virtual void request_stop() = 0;
  /// Runs the on_abort handler of every worker that is still there.
  virtual void abort(std::string_view reason) = 0;
  /// Ends every worker that is still there by force. Threads cannot be: the program ends with a message that names
  /// them.
  virtual void kill() = 0;
  [[nodiscard]] virtual const WorkerPage& page(int rank) const = 0;
};

/// Says what to start.
struct GroupPlan {
  int num_workers = 1;
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
};

/// Is how workers come to be.
///
/// Laws, each of them checked by the tests:
///  1. start() returns once every worker has been created; each runs body with its own link. World::rank counts them
///  from 0.
///  2. Every worker that was started yields exactly one ExitEvent, however it ends.
///  3. Messages of one rank arrive in order and before its ExitEvent.
///  4. If the supervisor ends, by whatever cause, so do the workers.
///  5. The destructor of the group leaves no process, thread, descriptor, shared memory or handler of a signal behind.
template <class S>
concept Scaling = std::default_initializable<S> && requires(S& scaling, const GroupPlan& plan, const WorkerBody& body) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::reach } -> std::convertible_to<Reach>;
  { S::copies_function } -> std::convertible_to<bool>;  // does each worker need a copy made by its copy constructor?
  { scaling.start(plan, body) } -> std::same_as<std::unique_ptr<WorkerGroup>>;
};

}  // namespace railyard::inline v0_1
