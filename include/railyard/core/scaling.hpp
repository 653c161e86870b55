// SPDX-License-Identifier: MIT
// The concept of how workers come to be, and the two ends between a worker and its supervisor. Core room.
#pragma once

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/demangled.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/store.hpp"
#include "railyard/core/world.hpp"

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <variant>
#include <vector>

#include <cxxabi.h>

namespace railyard::inline v0_1 {

/// Is a page that a worker writes and its supervisor reads while both run; in shared memory if they are two processes.
/// The times are of the monotonic clock, in nanoseconds.
struct WorkerPage {
  std::atomic<std::uint64_t> samples{0};          ///< samples this rank has been given, in all
  std::atomic<std::uint64_t> steps{0};            ///< steps that have ended, those of earlier attempts included
  std::atomic<std::int64_t> epoch{-1};            ///< the epoch it is in, -1 before the first
  std::atomic<std::uint64_t> epoch_size{0};       ///< samples of one epoch, all ranks together; 0 if unknown
  std::atomic<std::uint64_t> epoch_done{0};       ///< samples of this epoch given to all ranks together so far
  std::atomic<std::uint64_t> collectives{0};      ///< collectives begun
  std::atomic<std::int64_t> waiting_since_ns{0};  ///< when the one it is in was begun, 0 while in none
  std::atomic<std::int64_t> stepped_at_ns{0};     ///< when the last step of this attempt ended, 0 before the first
  std::atomic<bool> stop_requested{false};        ///< written by the supervisor
  std::atomic<bool> leave_requested{false};       ///< likewise: save what must not be lost, and return
  std::atomic<bool> resize_requested{false};      ///< likewise: copy it, and return; another number of workers goes on
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// Is memory that a worker fills for its supervisor.
struct Snapshot {
  int slot = -1;
  std::span<std::byte> bytes{};
};

/// Says what a snapshot is for: those of one kind never wait for those of the other.
enum class SnapshotKind : std::uint8_t {
  checkpoint,  ///< to be written
  memory,      ///< to go on from if a worker is lost, and replaced by the next one
};

/// How many snapshots of each kind each worker may have at once.
inline constexpr int num_snapshots = 2;
/// Of both kinds together: slots count from 0 to this.
inline constexpr int num_snapshot_slots = 2 * num_snapshots;

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
  /// What the supervisor has told every worker of this start.
  [[nodiscard]] virtual std::string_view briefing() const noexcept = 0;

  /// Returns memory which the supervisor sees as well, and keeps if this worker dies. It is the worker's until a
  /// message has told of it, then the supervisor's. Waits while all of the kind are the supervisor's; for a checkpoint
  /// also where memory has room for one and not for one more, until all are given back. The first 8 bytes are 0.
  /// Throws: CollectiveError if the group ends meanwhile, Error if the memory cannot be had.
  [[nodiscard]] virtual Snapshot take_snapshot(std::size_t size_bytes, SnapshotKind kind) = 0;
  /// How many bytes of memory there are already, since an earlier start perhaps, for snapshots of the kind of all
  /// workers that this one's supervisor has on this host, if each is to have so many.
  [[nodiscard]] virtual std::size_t snapshot_memory(SnapshotKind kind, std::size_t size_bytes) const noexcept = 0;
  /// Gives back a snapshot that no message has told of.
  virtual void drop_snapshot(int slot) noexcept = 0;
  /// Waits until the supervisor has given the slot back. Throws: CollectiveError if the group ends meanwhile.
  virtual void await_snapshot(int slot) = 0;
  /// Reads what a rank of an earlier start has put into a snapshot that the supervisor holds, from `begin` on. Throws:
  /// Error if there is less.
  virtual void read_snapshot(int rank, int slot, std::size_t begin, std::span<std::byte> to) = 0;
  /// Whether that finds snapshots of the rank: where several processes look after workers, each has those of its own.
  [[nodiscard]] virtual bool sees_snapshots_of([[maybe_unused]] int rank) const noexcept { return true; }

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

/// Reads from the snapshots of a process's own workers, whose ranks are counted among all: as WorkerGroup::snapshot().
using SnapshotReader =
    std::function<std::span<const std::byte>(int rank, int slot, std::size_t begin, std::size_t size_bytes)>;
/// Answers what the process that leads asks of another one that looks after workers, on a thread of its own there.
/// snapshot throws Error once that process is to end.
using RequestHandler =
    std::function<std::vector<std::byte>(std::span<const std::byte> request, const SnapshotReader& snapshot)>;
/// Says that such an answer is not waited for any longer: the request may be carried out yet.
class LateAnswerError final : public Error {
 public:
  using Error::Error;
};

/// Says how a worker ended.
struct WorkerExit {
  enum class Kind : std::uint8_t {
    returned,   ///< its body returned
    threw,      ///< an exception left its body; message is what() of it
    exited,     ///< it called exit() or the like before its body returned; code is the status
    signalled,  ///< a signal ended it; code is the signal, message its likely reason
    lost,       ///< its host, or the process that looks after it there, is gone; message says which
  };
  Kind kind = Kind::returned;
  int code = 0;
  std::string message{};
  std::vector<int> blamed{};     ///< the ranks that its CollectiveError blames
  bool is_consequence = false;   ///< a CollectiveError: most likely another rank failed before
  bool is_config_error = false;  ///< a ConfigError: the same call would throw it again
};

namespace detail {

// LibTorch puts a backtrace of C++ frames after its message: nothing that helps, and longer than all the rest.
[[nodiscard]] inline std::string without_backtrace(std::string_view message) {
  return std::string{message.substr(0, message.find("\nException raised from"))};
}

[[nodiscard]] inline std::string text_of(const std::exception_ptr& exception, int depth = 0);

// Also tells of the exceptions that std::throw_with_nested has put below this one.
[[nodiscard]] inline std::string text_of(const std::exception& error, int depth) {
  const char* what = error.what();
  std::string text = what == nullptr ? std::string{} : without_backtrace(what);
  if (text.empty()) text = demangled(typeid(error));
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  constexpr int most = 16;
  if (nested != nullptr && nested->nested_ptr() && depth < most) {
    text += "; because: " + text_of(nested->nested_ptr(), depth + 1);
  }
  return text;
}

/// Returns what an exception of any type says.
[[nodiscard]] inline std::string text_of(const std::exception_ptr& exception, int depth) {
  if (!exception) return "its thread was ended by pthread_exit() or by a cancellation";
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return text_of(error, depth);
  } catch (const std::string& text) {
    return text.empty() ? "an empty std::string" : text;
  } catch (const char* text) {
    return text == nullptr || *text == 0 ? "an empty const char*" : text;
  } catch (int number) {
    return std::to_string(number);
  } catch (long number) {
    return std::to_string(number);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return "an exception of type " + (type == nullptr ? std::string{"unknown to C++"} : demangled(*type));
  }
}

}  // namespace detail

/// Returns how a worker ended whose body threw the exception; none if its thread was unwound without one.
[[nodiscard]] inline WorkerExit exit_of(const std::exception_ptr& exception) {
  WorkerExit exit{.kind = WorkerExit::Kind::threw, .message = detail::text_of(exception)};
  if (!exception) return exit;
  try {
    std::rethrow_exception(exception);
  } catch (const CollectiveError& error) {
    exit.blamed = error.blamed();
    exit.is_consequence = true;
  } catch (const ConfigError&) {
    exit.is_config_error = true;
  } catch (...) {  // its text is all there is to it
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

  /// Waits for the next event, or returns nothing at the deadline. After one ExitEvent per rank there are only signals,
  /// which are not waited for.
  [[nodiscard]] virtual std::optional<GroupEvent> next(const Deadline& deadline) = 0;
  /// Sets stop_requested on every worker's page.
  virtual void request_stop() = 0;
  /// Sets leave_requested as well.
  virtual void request_leave() = 0;
  /// Sets resize_requested on every worker's page.
  virtual void request_resize() = 0;
  /// Runs the on_abort handler of every worker that is still there.
  virtual void abort(std::string_view reason) = 0;
  /// Ends every worker that is still there by force. Threads cannot be: the program ends with a message that names
  /// them.
  virtual void kill() = 0;
  /// From now on a worker that dies, and has not said that it would, takes all others with it by force, as soon as that
  /// is known, until it is told otherwise. Where workers cannot be ended by force, nothing comes of it.
  virtual void die_together([[maybe_unused]] bool they_do) {}
  /// Whether workers can be ended by force, and the program lives on.
  [[nodiscard]] virtual bool can_kill() const noexcept = 0;
  [[nodiscard]] virtual const WorkerPage& page(int rank) const = 0;
  /// Returns, by rank, the calls that its body is in at this moment, the innermost first, one a line; empty for a rank
  /// that has ended or does not answer in time.
  [[nodiscard]] virtual std::vector<std::string> stacks(const Deadline& deadline) = 0;

  /// Returns so many bytes, from `begin` on, of what the rank has put into its snapshot. Where it is another host's
  /// they are fetched, and stay until the next call: so much memory is needed. On any thread, one at a time. Throws:
  /// Error if they are lost.
  [[nodiscard]] virtual std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                            std::size_t size_bytes) = 0;
  /// Takes a snapshot over that a message has told of: it stays as it is, restarts included, until it is given back.
  virtual void hold_snapshot(int rank, int slot) noexcept = 0;
  /// Gives a snapshot back to its worker. May be called on any thread.
  virtual void release_snapshot(int rank, int slot) noexcept = 0;
  /// Returns the begin of a snapshot that was given back and is still there, where no worker fills it; nothing
  /// otherwise, or if it is not known. Its first bytes are 0 if one has begun to since. Only after one ExitEvent per
  /// rank.
  [[nodiscard]] virtual std::span<const std::byte> left_snapshot([[maybe_unused]] int rank, [[maybe_unused]] int slot,
                                                                 [[maybe_unused]] std::size_t size_bytes) {
    return {};
  }

  /// Which process looks after the rank; 0 is this one.
  [[nodiscard]] virtual int process_of([[maybe_unused]] int rank) const { return 0; }
  /// Returns what it is called where it was started, and where it is, for messages.
  [[nodiscard]] virtual std::string name_of_process(int process) const { return "process " + std::to_string(process); }
  /// Sends a request to another of these processes, and returns what waits for the answer of its RequestHandler, and
  /// has to be called. One request of each process at a time; on any thread. Waiting throws: Error if the process is
  /// lost, or what its handler has thrown; LateAnswerError if that has read nothing from a snapshot for too long.
  [[nodiscard]] virtual std::function<std::vector<std::byte>()> send_request(
      int process, [[maybe_unused]] std::span<const std::byte> request) {
    throw Error{"there is no process " + std::to_string(process) + " to send a request to: this one is alone"};
  }

  /// Whether every worker sees the snapshots of all ranks: see WorkerLink::read_snapshot().
  [[nodiscard]] virtual bool shares_snapshots() const noexcept = 0;
  /// Whether as many workers as before, started again, find these snapshots, which the supervisor holds of each rank:
  /// every worker those of the ranks of its own process at least. Only after one ExitEvent per rank.
  [[nodiscard]] virtual bool keeps_snapshots([[maybe_unused]] std::span<const std::uint8_t> slots) {
    return shares_snapshots();
  }
  /// Whether the process that looks after the rank is the one that has done so since the last start.
  [[nodiscard]] virtual bool has_snapshots_of([[maybe_unused]] int rank) const { return true; }

  /// Starts workers anew, at most as many as at first, each with a new page and none of the messages and keys of
  /// before. Only after one ExitEvent per rank. Throws: as Scaling::start.
  virtual void restart(int num_workers, std::string_view briefing) = 0;
  /// Whether restart() would have to fork this process once more: not while other threads of it are at work.
  [[nodiscard]] virtual bool forks_to_restart() const = 0;

  /// Says which hosts, or processes that look after workers there, have been lost with workers of the last start; empty
  /// if none.
  [[nodiscard]] virtual std::string lost_hosts() const { return {}; }
};

/// Says what to start.
struct GroupPlan {
  int num_workers = 1;
  std::chrono::nanoseconds silence_limit = std::chrono::seconds{30};
  std::string briefing{};  ///< for every worker, at most max_briefing_bytes
  int most_workers = 0;    ///< how many a restart may ask for, if more than num_workers
  /// Called before this process is forked, when its other threads have to rest, and again right after, in this process,
  /// also when the fork has failed. May be empty.
  std::function<void(bool begins)> on_fork{};
};

inline constexpr std::size_t max_briefing_bytes = 8192;

/// Is how workers come to be.
///
/// Laws, each of them checked by the tests:
///  1. start() returns once every worker has been created; each runs body with its own link. World::rank counts them
///  from 0.
///  2. Every worker that was started yields exactly one ExitEvent, however it ends.
///  3. Messages of one rank arrive in order and before its ExitEvent.
///  4. If the supervisor ends, by whatever cause, so do the workers.
///  5. restart() makes workers as start() has, from the program as it was when start() was called.
///  6. The destructor of the group leaves no process, thread, descriptor, shared memory or handler of a signal behind.
template <class S>
concept Scaling = std::default_initializable<S> && requires(S& scaling, const GroupPlan& plan, const WorkerBody& body) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::reach } -> std::convertible_to<Reach>;
  { S::copies_function } -> std::convertible_to<bool>;  // does each worker need a copy made by its copy constructor?
  { scaling.start(plan, body) } -> std::same_as<std::unique_ptr<WorkerGroup>>;
};

}  // namespace railyard::inline v0_1
