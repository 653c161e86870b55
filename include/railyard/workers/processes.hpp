// SPDX-License-Identifier: MIT
// Workers that are forked processes of this host: captures just work, and a crash stays where it happens. Workers room.
#pragma once

#include "railyard/workers/detail/death_watch.hpp"
#include "railyard/workers/detail/exit_reason.hpp"
#include "railyard/workers/detail/held_locks.hpp"
#include "railyard/workers/detail/inbox.hpp"
#include "railyard/workers/detail/line_splitter.hpp"
#include "railyard/workers/detail/silence_watch.hpp"
#include "railyard/workers/detail/zygote.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/cuda_driver.hpp"
#include "railyard/core/scaling.hpp"

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Checks, before anything starts, that this process may fork and has descriptors enough; raises its own limit.
inline void prepare_to_fork(int num_workers) {
  refuse_to_fork_after_cuda();
  prepare_descriptors(num_workers, 5 + num_snapshot_slots);
}

/// Is the group of Processes.
class ProcessGroup final : public WorkerGroup {
 public:
  ProcessGroup(const GroupPlan& plan, const WorkerBody& body)
      : owned_memory_(std::make_shared<GroupMemory>(plan.num_workers, plan.briefing, plan.most_workers)),
        memory_(*owned_memory_),
        inbox_(memory_),
        body_(body),
        silence_limit_(plan.silence_limit),
        on_fork_(plan.on_fork) {
    setup_.memory = &memory_;
    setup_.body = &body_;
    setup_.event_fd = inbox_.event_fd();
    setup_.host = host_name();
    setup_.heartbeat = heartbeat_interval(plan.silence_limit);
    // A stream that another thread is reading stays locked for as long as it waits for input.
    setup_.flushes_all = ::ftrylockfile(stdin) == 0;
    if (setup_.flushes_all) ::funlockfile(stdin);
    fork_zygote();
    start_workers();
  }

  ~ProcessGroup() override { end_all(); }

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override {
    while (true) {
      if (auto event = inbox_.pop()) return event;
      if (num_over_ == workers_.size()) return inbox_.pop_signal();
      const bool is_last_look = deadline.expired() || is_readable(also_watched_);
      collect(is_last_look ? std::chrono::nanoseconds{0} : deadline.remaining());
      if (is_last_look) return inbox_.pop();
    }
  }

  /// Makes next() return early, and perhaps without an event, whenever that descriptor can be read from.
  void watch_also(int descriptor) noexcept { also_watched_ = descriptor; }

  void request_stop() override { memory_.request_stop(); }
  void request_leave() override { memory_.request_leave(); }
  void request_resize() override { memory_.request_resize(); }
  void abort(std::string_view reason) override { memory_.abort(reason); }

  void kill() override {
    was_killed_ = true;
    for (const Process& worker : workers_) {
      if (worker.pid != 0 && !worker.is_over) kill_process(worker);
    }
    [[maybe_unused]] const bool sent = channel_.send(ZygoteRequest{.kind = ZygoteRequest::Kind::kill});
  }

  void die_together(bool they_do) override {
    watch_.reset();
    dies_together_ = they_do;
    if (they_do) watch_.emplace(memory_, inbox_.event_fd());
  }

  [[nodiscard]] bool can_kill() const noexcept override { return true; }

  [[nodiscard]] const WorkerPage& page(int rank) const override { return memory_.rank(rank).page; }

  [[nodiscard]] std::vector<std::string> stacks(const Deadline& deadline) override {
    std::vector<std::string> stacks(workers_.size());
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      memory_.rank(rank).stacks_wanted.fetch_add(1);
      nudge(memory_.rank(rank).agent);
    }
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      const RankBlock& block = memory_.rank(rank);
      const std::uint32_t wanted = block.stacks_wanted.load();
      while (block.stacks_told.load() != wanted && !at(rank).is_over && !deadline.expired()) {
        futex_wait(block.stacks_told, block.stacks_told.load(),
                   std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{20}));
      }
      if (block.stacks_told.load() == wanted) {
        stacks[static_cast<std::size_t>(rank)].assign(block.stack,
                                                      std::min<std::size_t>(block.stack_size, sizeof block.stack));
      }
    }
    return stacks;
  }

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override {
    return memory_.snapshot(rank, slot, begin + size_bytes).subspan(begin);
  }
  /// For whoever reads snapshots, and may do so for longer than the group lives.
  [[nodiscard]] std::shared_ptr<GroupMemory> memory() const noexcept { return owned_memory_; }
  void hold_snapshot(int rank, int slot) noexcept override { memory_.hold_snapshot(rank, slot); }
  void release_snapshot(int rank, int slot) noexcept override { memory_.release_snapshot(rank, slot); }
  [[nodiscard]] std::span<const std::byte> left_snapshot(int rank, int slot, std::size_t size_bytes) override {
    return memory_.left_snapshot(rank, slot, size_bytes);
  }
  [[nodiscard]] bool shares_snapshots() const noexcept override { return true; }

  void restart(int num_workers, std::string_view briefing) override {
    watch_.reset();
    const bool needs_zygote = forks_to_restart();
    if (needs_zygote) end_all();
    inbox_.reset();
    memory_.reset(num_workers, briefing);
    if (needs_zygote) fork_zygote();
    start_workers();
    if (dies_together_) watch_.emplace(memory_, inbox_.event_fd());
  }

  [[nodiscard]] bool forks_to_restart() const override {
    return is_zygote_lost_ || is_zygote_deaf_ || zygote_ <= 0 || is_readable(zygote_fd_.get());
  }

 private:
  struct Stream {
    Descriptor reader{};
    LineSplitter lines{};
  };
  struct Process {
    pid_t pid = 0;
    Descriptor pidfd{};
    Stream out{};
    Stream err{};
    bool is_over = false;
    bool is_first_to_die = false;  // and has taken the others along
  };

  // Lets the other threads of this process rest while it lives: in this process alone, for the forked one never
  // returns.
  class Rest {
   public:
    explicit Rest(const std::function<void(bool)>& on_fork) : on_fork_(&on_fork) {
      if (*on_fork_) (*on_fork_)(true);
    }
    Rest(const Rest&) = delete;
    Rest& operator=(const Rest&) = delete;
    ~Rest() {
      if (*on_fork_) (*on_fork_)(false);
    }

   private:
    const std::function<void(bool)>* on_fork_;
  };

  // A lock that another thread holds at the moment of the fork would stay held in the zygote and in all workers, for
  // the thread that could give it back is not there. malloc and stdio see to their own; of other locks of the
  // libraries, such as those of setenv(), localtime() and getpwnam(), only a further try gets rid.
  void fork_zygote() {
    const std::int64_t begin_ns = monotonic_ns();
    const Deadline deadline = Deadline::after(std::chrono::seconds{10});
    int tries = 0;
    do {
      fork_once();
      ++tries;
      // Counted after the fork: some libraries, such as OpenBLAS, end their threads before one.
      if (!has_other_threads()) return;
      const std::chrono::nanoseconds patience{20'000'000 + (monotonic_ns() - begin_ns) / 8};  // more on a slow machine
      if (is_free_of_locks(patience)) return;
      end_all();
    } while (tries < 3 || !deadline.expired());
    throw Error{compose(
        "start: in each of {} forks of this process another thread of it held a lock of the C library, as setenv(), "
        "localtime(), rand(), getpwnam(), gethostbyname(), popen(), dl_iterate_phdr() and the functions of the locale "
        "take one, and no worker could be made without that lock: let such threads rest while fit() starts, or call "
        "fit() before they begin",
        tries)};
  }

  // Has the zygote prove it. One that does not answer has met such a lock itself.
  [[nodiscard]] bool is_free_of_locks(std::chrono::nanoseconds patience) {
    [[maybe_unused]] const bool sent =
        channel_.send(ZygoteRequest{.kind = ZygoteRequest::Kind::prove, .patience = patience});
    pollfd answer{.fd = channel_.fd(), .events = POLLIN, .revents = 0};
    int num_ready = -1;
    while ((num_ready = ::poll(&answer, 1, 10'000)) < 0 && errno == EINTR) {
    }
    if (num_ready == 0) return false;
    ZygoteReply reply;
    std::vector<Descriptor> fds;
    if (channel_.receive(reply, fds, MSG_DONTWAIT) == Channel::Outcome::packet) return reply.error == 0;
    end_all();
    throw_lost();
  }

  void fork_once() {
    const Rest rest{on_fork_};
    is_zygote_lost_ = is_zygote_deaf_ = false;
    auto ends = Channel::make_pair();
    flush_streams(setup_.flushes_all);  // what is unwritten now would be written by every child as well
    ::sigaction(SIGCHLD, nullptr, &setup_.child_action);
    sigset_t all;
    ::sigfillset(&all);
    const pid_t supervisor = ::getpid();
    const BlockSignals block{all};  // a handler must not run in the child before it is reset there
    setup_.signal_mask = block.before();
    zygote_ = ::fork();
    if (zygote_ < 0) throw_system("start: forking the process that starts workers", errno);
    if (zygote_ == 0) {
      try {
        inbox_.forget_in_child();
        ends.first.close();
        Zygote{setup_, std::move(ends.second), supervisor}.run();
      } catch (...) {
        ::_exit(71);
      }
    }
    channel_ = std::move(ends.first);
    zygote_fd_ = Descriptor{open_pidfd(zygote_)};
  }

  void start_workers() {
    silence_ = SilenceWatch{memory_.num_workers(), silence_limit_, monotonic_ns()};
    workers_.clear();
    workers_.resize(static_cast<std::size_t>(memory_.num_workers()));
    num_over_ = 0;
    was_killed_ = false;
    try {
      spawn_all();
    } catch (...) {
      end_all();
      throw;
    }
  }

  void spawn_all() {
    const int num_workers = memory_.num_workers();
    constexpr int most_under_way = 16;  // the sockets hold that many packets without anybody waiting
    int answered = 0;
    for (int rank = 0; rank < num_workers; ++rank) {
      ask_for(rank);
      if (rank - answered + 1 >= most_under_way) answered += await_answer();
    }
    while (answered < num_workers) answered += await_answer();
  }

  void ask_for(int rank) {
    const std::string what = compose("start: a pipe for the output of rank {}/{}", rank, memory_.num_workers());
    auto out = make_pipe(0, what);
    auto err = make_pipe(0, what);
    for (const auto* reader : {&out.first, &err.first}) ::fcntl(reader->get(), F_SETFL, O_NONBLOCK);
    const std::array<int, 2> writers{out.second.get(), err.second.get()};
    if (!channel_.send(ZygoteRequest{.kind = ZygoteRequest::Kind::spawn, .rank = rank}, writers)) throw_lost();
    Process& worker = at(rank);
    worker.out.reader = std::move(out.first);
    worker.err.reader = std::move(err.first);
  }

  // Returns 1 for a worker that has been made, 0 for the news that one has already ended.
  int await_answer() {
    std::array<pollfd, 2> watched{{{.fd = channel_.fd(), .events = POLLIN, .revents = 0},
                                   {.fd = zygote_fd_.get(), .events = POLLIN, .revents = 0}}};
    while (::poll(watched.data(), watched.size(), 60'000) < 0 && errno == EINTR) {
    }
    if (watched[0].revents == 0) throw_lost();
    const bool is_answer = take_reply();
    if (is_zygote_lost_) throw_lost();
    return is_answer ? 1 : 0;
  }

  [[noreturn]] static void throw_lost() {
    throw Error{
        "start: the process that starts workers has been killed or does not answer: see whether memory or the "
        "number of processes is short, and start again"};
  }

  // Returns whether it was the answer to a request for a worker. Throws: Error if that could not be made.
  bool take_reply() {
    ZygoteReply reply;
    std::vector<Descriptor> fds;
    const auto outcome = channel_.receive(reply, fds, MSG_DONTWAIT);
    if (outcome == Channel::Outcome::closed) lose_zygote();
    if (outcome != Channel::Outcome::packet) return false;
    is_zygote_deaf_ = false;
    if (reply.kind == ZygoteReply::Kind::exited) {
      if (at(reply.rank).pid != reply.pid) return false;  // of an earlier start
      finish(reply.rank, exit_of_status(reply.rank, reply.status));
      return false;
    }
    if (reply.error != 0) {
      throw_system(compose("start: forking rank {}/{}", reply.rank, memory_.num_workers()), reply.error);
    }
    at(reply.rank).pid = reply.pid;
    if (!fds.empty()) at(reply.rank).pidfd = std::move(fds.front());
    return true;
  }

  void collect(std::chrono::nanoseconds at_most) {
    inbox_.drain_all();
    look_for_silence();
    std::vector<pollfd> watched = descriptors();
    if (inbox_.has_events()) at_most = std::chrono::nanoseconds{0};
    inbox_.wait(watched, std::min(at_most, silence_.until_look(monotonic_ns())));
    look_for_deaths();
    std::size_t index = 3;
    for (int rank = 0; rank < memory_.num_workers(); ++rank, index += 3) {
      if (at(rank).is_over) continue;
      if (watched[index].revents != 0) read_output(rank, false);
      if (watched[index + 1].revents != 0) read_output(rank, true);
      if (watched[index + 2].revents != 0) finish_orphan(rank);
    }
    if (watched[0].revents != 0) {
      do {
        take_reply();
      } while (!is_zygote_lost_ && is_readable(channel_.fd()));
    } else if (watched[1].revents != 0) {
      lose_zygote();
    }
  }

  // Two for the zygote, the one to be watched also, then three for every rank; poll passes over negative ones.
  [[nodiscard]] std::vector<pollfd> descriptors() const {
    std::vector<pollfd> watched;
    watched.reserve(3 * workers_.size() + 5);
    const auto add = [&](int fd) { watched.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
    add(is_zygote_lost_ ? -1 : channel_.fd());
    add(is_zygote_lost_ ? -1 : zygote_fd_.get());
    add(also_watched_);
    for (const Process& worker : workers_) {
      add(worker.out.reader.get());
      add(worker.err.reader.get());
      add(is_zygote_lost_ && !worker.is_over ? worker.pidfd.get() : -1);
    }
    return watched;
  }

  static bool is_readable(int fd) noexcept {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return fd >= 0 && ::poll(&one, 1, 0) > 0;
  }

  // Reads once and returns how much; at the end of the stream, lets go of it.
  std::size_t read_output(int rank, bool is_error) {
    Stream& stream = is_error ? at(rank).err : at(rank).out;
    if (!stream.reader.is_open()) return 0;
    std::array<char, 16384> bytes;
    const ssize_t got = ::read(stream.reader.get(), bytes.data(), bytes.size());
    if (got == 0) stream.reader.reset();
    if (got <= 0) return 0;
    stream.lines.append({bytes.data(), static_cast<std::size_t>(got)}, [&](std::string line) {
      inbox_.push(OutputEvent{.rank = rank, .is_error = is_error, .line = std::move(line)});
    });
    return static_cast<std::size_t>(got);
  }

  // Takes what was in the pipe when the worker ended and no more: a child of it may hold the other end and go on
  // writing.
  void finish_output(int rank, bool is_error) {
    Stream& stream = is_error ? at(rank).err : at(rank).out;
    if (stream.reader.is_open()) {
      const int capacity = ::fcntl(stream.reader.get(), F_GETPIPE_SZ);
      std::size_t left = capacity > 0 ? static_cast<std::size_t>(capacity) : std::size_t{1} << 16U;
      for (std::size_t got = 1; got > 0 && left > 0; left -= std::min(left, got)) got = read_output(rank, is_error);
    }
    stream.lines.finish([&](std::string line) {
      inbox_.push(OutputEvent{.rank = rank, .is_error = is_error, .line = std::move(line)});
    });
    stream.reader.reset();
  }

  void finish(int rank, WorkerExit exit) {
    Process& worker = at(rank);
    if (worker.is_over) return;
    worker.is_over = true;
    ++num_over_;
    inbox_.drain(rank);
    finish_output(rank, false);
    finish_output(rank, true);
    worker.pidfd.reset();
    if (const auto& told = inbox_.exit_of_rank(rank)) exit = *told;
    inbox_.push(ExitEvent{.rank = rank, .exit = std::move(exit)});
  }

  [[nodiscard]] WorkerExit exit_of_status(int rank, int status) const {
    if (!WIFSIGNALED(status)) return {.kind = WorkerExit::Kind::exited, .code = WEXITSTATUS(status)};
    const int signal = WTERMSIG(status);
    WorkerExit exit{.kind = WorkerExit::Kind::signalled, .code = signal};
    const bool is_first = workers_[static_cast<std::size_t>(rank)].is_first_to_die;
    exit.is_consequence = was_killed_ && signal == SIGKILL && !is_first;
    exit.message = exit.is_consequence ? "killed by its supervisor, because the group had to end and it did not"
                                       : explain_signal(signal, WCOREDUMP(status), oom_);
    return exit;
  }

  // Who dies is heard of before it is gone, which takes long where it has much memory.
  void look_for_deaths() {
    if (!dies_together_ || was_killed_) return;
    bool has_begun = false;
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      if (at(rank).is_over || !RankBlock::is_death(memory_.rank(rank).life.load())) continue;
      has_begun = at(rank).is_first_to_die = true;
    }
    if (has_begun) kill();
  }

  void look_for_silence() {
    const std::int64_t now = monotonic_ns();
    if (silence_.until_look(now).count() > 0) return;
    const auto heartbeat = [&](int rank) { return memory_.rank(rank).heartbeat.load(); };
    silence_.look(now, heartbeat, [&](int rank, std::chrono::nanoseconds quiet) {
      const Process& worker = at(rank);
      if (worker.is_over || finish_untold(rank)) return;
      const auto seconds = static_cast<double>(quiet.count()) / 1e9;
      inbox_.push(SilenceEvent{
          .rank = rank,
          .message = compose("rank {}/{} (process {}) has shown no sign of life for {:.1f} s: {}", rank,
                             workers_.size(), worker.pid, seconds, describe_state(process_state(worker.pid)))});
    });
    for (int rank = 0; is_zygote_deaf_ && rank < memory_.num_workers(); ++rank) {
      if (!at(rank).is_over) finish_untold(rank);
    }
  }

  // Takes note of the end of a worker that the zygote ought to have told of and has not, most likely because it is
  // stopped. Returns false if the worker lives or has been reaped, or if it is for the zygote to say how it ended.
  bool finish_untold(int rank) {
    if (process_state(at(rank).pid) != 'Z') return false;
    inbox_.drain(rank);
    const char zygote = process_state(zygote_);
    if (!inbox_.exit_of_rank(rank)) {
      if (!is_stop(zygote)) return false;
      if (!was_killed_) {
        inbox_.push(BrokenEvent{
            .message = compose("rank {}/{} (process {}) has ended, and how is not known, for the process that starts "
                               "the workers (process {}) does not say: {}",
                               rank, workers_.size(), at(rank).pid, zygote_, describe_state(zygote))});
      }
    }
    is_zygote_deaf_ = true;
    finish_orphan(rank);
    return true;
  }

  // Without the zygote the workers die, by the signal they have asked for; their descendants do not, unless they are
  // ended here.
  void lose_zygote() {
    if (std::exchange(is_zygote_lost_, true)) return;
    inbox_.push(BrokenEvent{.message = compose("the process that starts the workers (process {}) has been killed; "
                                               "the workers end with it",
                                               zygote_)});
    for (int rank = 0; rank < memory_.num_workers(); ++rank) {
      const Process& worker = at(rank);
      if (worker.is_over) continue;
      if (worker.pid != 0) kill_process(worker);
      if (!worker.pidfd.is_open()) finish_orphan(rank);
    }
  }

  static void kill_process(const Process& worker) noexcept {
    if (worker.pidfd.is_open()) signal_pidfd(worker.pidfd.get(), SIGKILL);
    ::kill(-worker.pid, SIGKILL);  // the number is taken for as long as anybody is in the process group
  }

  void finish_orphan(int rank) {
    const pid_t pid = at(rank).pid;
    if (pid != 0) ::kill(-pid, SIGKILL);
    WorkerExit exit{.kind = WorkerExit::Kind::signalled, .code = SIGKILL};
    exit.message = is_zygote_lost_ ? "killed, because the process that starts the workers was lost"
                                   : "ended while the process that starts the workers was stopped";
    exit.is_consequence = true;
    finish(rank, std::move(exit));
  }

  void end_all() noexcept {
    if (zygote_ <= 0) return;
    ::shutdown(channel_.fd(), SHUT_RDWR);  // unlike close, it is seen even if somebody else holds the descriptor
    ::kill(zygote_, SIGCONT);              // one that somebody has stopped shall end what it has started
    const bool leaves_orphans = !wait_for_zygote(std::chrono::seconds{5}) || is_zygote_lost_;
    if (leaves_orphans) {
      for (const Process& worker : workers_) {
        if (worker.pid != 0 && !worker.is_over) kill_process(worker);
      }
      ::kill(zygote_, SIGKILL);
    }
    while (::waitpid(zygote_, nullptr, 0) < 0 && errno == EINTR) {
    }
    zygote_ = -1;
    if (leaves_orphans) reap_orphans();
  }

  // Without a zygote, its descendants become children of PID 1 or of a subreaper: perhaps of this process.
  void reap_orphans() const noexcept {
    const Deadline deadline = Deadline::after(std::chrono::seconds{1});
    for (const Process& worker : workers_) {
      while (worker.pid != 0 && !deadline.expired()) {
        const pid_t reaped = ::waitpid(-worker.pid, nullptr, WNOHANG);
        if (reaped < 0) break;
        if (reaped == 0) ::poll(nullptr, 0, 1);  // killed, and on its way
      }
    }
  }

  // Returns whether it has ended, or whether there is no way to know.
  [[nodiscard]] bool wait_for_zygote(std::chrono::nanoseconds at_most) const noexcept {
    if (!zygote_fd_.is_open()) return true;
    const Deadline deadline = Deadline::after(at_most);
    while (true) {
      pollfd ended{.fd = zygote_fd_.get(), .events = POLLIN, .revents = 0};
      const timespec time = to_timespec(deadline.remaining());
      const int ready = ::ppoll(&ended, 1, &time, nullptr);
      if (ready >= 0 || errno != EINTR) return ready > 0;
    }
  }

  [[nodiscard]] Process& at(int rank) { return workers_[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<GroupMemory> owned_memory_;
  GroupMemory& memory_;
  Inbox inbox_;
  WorkerBody body_;
  std::chrono::nanoseconds silence_limit_;
  std::function<void(bool begins)> on_fork_;
  SilenceWatch silence_{0, {}, 0};
  OomCounter oom_;
  WorkerSetup setup_{};
  std::vector<Process> workers_{};
  Channel channel_{Descriptor{}};
  pid_t zygote_ = -1;
  Descriptor zygote_fd_;
  int also_watched_ = -1;
  std::size_t num_over_ = 0;
  bool is_zygote_lost_ = false;
  bool is_zygote_deaf_ = false;  // it lives, and does not say which workers have ended
  bool was_killed_ = false;
  bool dies_together_ = false;
  std::optional<DeathWatch> watch_{};
};

/// Kills the workers of a group of which so many are alive, and returns when none is. take: called with each event of
/// the group, and counts its exits. Throws: Error if they do not end.
template <class Take>
void end_workers(ProcessGroup* group, const int& num_alive, const Take& take) {
  if (num_alive > 0) group->kill();
  const Deadline deadline = Deadline::after(std::chrono::seconds{10});
  while (num_alive > 0) {
    auto event = group->next(deadline);
    if (!event && deadline.expired()) throw Error{"start: workers of this process have been killed and do not end"};
    if (event) take(std::move(*event));
  }
}

}  // namespace detail

/// Runs the workers as forked processes of this host. They see everything that the caller has built, as it was when
/// start() was called; what they write to it stays with them. Whoever ends, by whatever cause, nothing is left behind.
class Processes {
 public:
  static constexpr std::string_view name = "Processes";
  static constexpr Reach reach = Reach::host;
  static constexpr bool copies_function = false;

  /// Throws: ConfigError if the plan or the limits of this process do not allow it, Error if the system cannot do it.
  /// Cost: two to three milliseconds per process if LibTorch is loaded.
  [[nodiscard]] std::unique_ptr<WorkerGroup> start(const GroupPlan& plan, const WorkerBody& body) {
    detail::check_plan(plan, body);
    detail::prepare_to_fork(std::max(plan.num_workers, plan.most_workers));
    return std::make_unique<detail::ProcessGroup>(plan, body);
  }
};
static_assert(Scaling<Processes>);

}  // namespace railyard::inline v0_1
