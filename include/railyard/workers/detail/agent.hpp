// SPDX-License-Identifier: MIT
// What a process does that follows: makes and ends workers as the leader orders, and passes on what becomes of them.
// Workers room.
#pragma once

#include "railyard/workers/detail/agent_request.hpp"
#include "railyard/workers/detail/agent_wire.hpp"
#include "railyard/workers/detail/secure_connection.hpp"
#include "railyard/workers/processes.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Follows one leader. Used by one thread.
class Agent {
 public:
  /// leader must outlive it. silence_limit: after which a leader that takes nothing counts as lost. end_patience: how
  /// long the end waits for a request that is being answered, which is left behind then: storage may hold it up for
  /// ever.
  Agent(SecureConnection& leader, const WorkerBody& body, std::chrono::nanoseconds silence_limit,
        RequestHandler on_request = {}, std::chrono::nanoseconds end_patience = std::chrono::seconds{5})
      : leader_(&leader),
        body_(&body),
        silence_limit_(silence_limit),
        on_request_(std::move(on_request)),
        end_patience_(end_patience) {}
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() { end(); }

  /// The leader counts as lost as well where it says nothing at all for so long.
  void expect_word_within(std::chrono::nanoseconds time) { first_word_ = Deadline::after(time); }

  /// What the leader has last asked to remember; empty if it has not.
  [[nodiscard]] const std::string& noted() const noexcept { return noted_; }
  /// Which processes make the workers of the last start, as in a StartOrder; empty before the first one.
  [[nodiscard]] const std::string& parts() const noexcept { return parts_; }
  /// The most steps that any worker of this process has ended in the last start.
  [[nodiscard]] std::uint64_t num_steps() const {
    std::uint64_t most = 0;
    for (int rank = 0; local_ && rank < num_workers_; ++rank) {
      most = std::max(most, local_->page(rank).steps.load(std::memory_order_relaxed));
    }
    return most;
  }

  /// Carries out orders until the leader tells a text, and returns that. No worker is left then.
  /// Throws: ConnectionError if the leader is lost; ConfigError or Error if it does not let the run begin, as it throws
  /// itself. The workers have been killed.
  [[nodiscard]] std::string run() {
    std::optional<std::string> told;
    while (!told) {
      pass_on_events();
      show_pages();
      if (request_ && request_->is_over()) give_answer();
      while (auto frame = leader_->try_receive()) {
        heard_at_ = Clock::now();
        carry_out(*frame, told);
        if (told) break;
      }
      check_that_leader_lives();
    }
    end();
    return std::move(*told);
  }

 private:
  using Clock = Deadline::Clock;
  static constexpr std::chrono::milliseconds page_interval{200};
  static constexpr std::size_t max_unsent_bytes = std::size_t{64} << 20U;

  void say(News news, std::initializer_list<ConstBytes> pieces = {}) {
    leader_->post(static_cast<std::uint8_t>(news), pieces);
  }

  // Waits for events, an order, or the time for the next pages; passes on what events there are.
  void pass_on_events() {
    const std::size_t unsent = leader_->unsent_bytes();
    const bool is_all_sent = leader_->flush();
    if (is_all_sent || leader_->unsent_bytes() < unsent) listened_at_ = Clock::now();
    Clock::duration wait = std::max<Clock::duration>(next_pages_ - Clock::now(), {});
    if (request_) wait = std::min<Clock::duration>(wait, std::chrono::milliseconds{5});  // it is looked for
    Deadline deadline = Deadline::after(leader_->has_received() ? Clock::duration{} : wait);
    if (!local_ || num_alive_ == 0 || !is_all_sent) {
      const auto events = static_cast<short>(is_all_sent ? POLLIN : POLLIN | POLLOUT);
      [[maybe_unused]] const bool is_ready = wait_for(leader_->fd(), events, deadline);
      deadline = Deadline::after(std::chrono::nanoseconds{0});
    }
    while (local_ && leader_->unsent_bytes() < max_unsent_bytes) {
      const auto event = local_->next(deadline);
      if (!event) return;
      if (std::holds_alternative<ExitEvent>(*event)) --num_alive_;
      if (num_alive_ == 0) show_pages_now();  // as they were in the end, before the leader hears of it
      say(News::event, {encode_event(*event)});
      deadline = Deadline::after(std::chrono::nanoseconds{0});  // what there is goes first
    }
  }

  void show_pages() {
    if (Clock::now() >= next_pages_) show_pages_now();
  }
  void show_pages_now() {
    next_pages_ = Clock::now() + page_interval;
    std::vector<PageValues> pages;
    for (int rank = 0; local_ && rank < num_workers_; ++rank) pages.push_back(PageValues::of(local_->page(rank)));
    say(News::pages, {std::as_bytes(std::span{pages})});
    tell_progress();
  }

  void tell_progress() {
    if (!request_) return;
    const std::uint64_t num_reads = request_->num_reads();
    if (std::exchange(num_told_reads_, num_reads) == num_reads) return;
    const std::uint64_t number = request_->number();
    say(News::progress, {std::as_bytes(std::span{&number, 1})});
  }

  // A process that is stopped still takes, for a while, what its kernel has room for: signs of life are more than that.
  void check_that_leader_lives() {
    const bool listens = Clock::now() - listened_at_ < silence_limit_;
    const bool is_mute = heard_at_ ? Clock::now() - *heard_at_ >= silence_limit_ : first_word_.expired();
    if (listens && !is_mute) return;
    const Deadline limit = listens && !heard_at_ ? first_word_ : Deadline::after(silence_limit_);
    throw ConnectionError{ConnectionError::Cause::failed,
                          compose("{}, which leads the run, has {} nothing for {}: it is stopped, or its host or the "
                                  "network between is down",
                                  leader_->peer(), listens ? "said" : "taken", limit.budget_text())};
  }

  void carry_out(const Frame& frame, std::optional<std::string>& told) {
    switch (static_cast<Order>(frame.type)) {
      case Order::tell:
        told.emplace(frame.text());
        return;
      case Order::start:
        return start(StartOrder::decode(frame.payload));
      case Order::stacks:
        return tell_stacks(WireReader{frame.payload}.take<std::int64_t>());
      case Order::fetch:
        return fetch(WireReader{frame.payload}.take<FetchOrder>());
      case Order::request:
        return begin_request(frame.payload);
      case Order::alive:
        return;
      case Order::note:
        noted_ = frame.text();
        return;
      case Order::refuse:
        return be_refused(WireReader{frame.payload});
      case Order::give_up:
        if (request_ && request_->number() == WireReader{frame.payload}.take<std::uint64_t>()) end_request();
        return;
      case Order::keeps:
        return tell_what_is_kept(frame.payload);
      default:
        if (local_) command(static_cast<Order>(frame.type), frame);
    }
  }

  void command(Order order, const Frame& frame) {
    const auto slot = [&frame] { return WireReader{frame.payload}.take<SlotOrder>(); };
    switch (order) {
      case Order::stop:
        return local_->request_stop();
      case Order::leave:
        return local_->request_leave();
      case Order::resize:
        return local_->request_resize();
      case Order::abort:
        return local_->abort(frame.text());
      case Order::kill:
        return local_->kill();
      case Order::hold:
        return local_->hold_snapshot(slot().rank, slot().slot);
      case Order::release:
        return local_->release_snapshot(slot().rank, slot().slot);
      default:
        throw ConnectionError{ConnectionError::Cause::failed, compose("{} orders what is not known here (number {})",
                                                                      leader_->peer(), static_cast<int>(frame.type))};
    }
  }

  [[noreturn]] static void be_refused(WireReader reader) {
    const bool is_setting = reader.take<std::uint8_t>() != 0;
    const std::string why = reader.take_text();
    if (is_setting) throw ConfigError{why};
    throw Error{why};
  }

  void start(const StartOrder& order) {
    const std::uint32_t generation = order.layout.generation;
    parts_ = order.parts;
    try {
      // Those of a start in which another process has had no part.
      end_workers(local_.get(), num_alive_, [this](const GroupEvent& event) {
        if (std::holds_alternative<ExitEvent>(event)) --num_alive_;
        if (std::holds_alternative<SignalEvent>(event)) say(News::event, {encode_event(event)});
      });
      num_workers_ = order.layout.num_workers;
      first_rank_ = order.layout.first_rank;
      const std::string briefing = brief(order.layout, order.briefing);
      if (local_ && !is_memory_read_ && num_workers_ <= most_workers_) {
        local_->restart(num_workers_, briefing);
      } else {
        const GroupPlan plan{.num_workers = num_workers_,
                             .silence_limit = std::chrono::nanoseconds{order.silence_limit_ns},
                             .briefing = briefing};
        local_.reset();
        local_ = std::make_unique<ProcessGroup>(plan, *body_);
        local_->watch_also(leader_->fd());
        is_memory_read_ = false;
        most_workers_ = num_workers_;
      }
      num_alive_ = num_workers_;
      say(News::started, {std::as_bytes(std::span{&generation, 1})});
    } catch (const std::exception& error) {
      local_.reset();
      num_alive_ = 0;
      WireWriter writer;
      writer.put(generation);
      writer.put(static_cast<std::uint8_t>(dynamic_cast<const ConfigError*>(&error) != nullptr));
      writer.put_text(error.what());
      say(News::refused, {writer.bytes()});
    }
  }

  void tell_stacks(std::int64_t at_most_ns) {
    WireWriter writer;
    if (local_) {
      const auto stacks = local_->stacks(Deadline::after(std::chrono::nanoseconds{at_most_ns}));
      for (const std::string& text : stacks) writer.put_text(text);
    }
    say(News::stacks, {writer.bytes()});
  }

  void fetch(const FetchOrder& order) {
    const auto number = std::as_bytes(std::span{&order.number, 1});
    try {
      say(News::fetched, {number, snapshot(order.of.rank, order.of.slot, order.begin, order.size_bytes)});
    } catch (const std::exception& error) {
      say(News::not_fetched, {number, text_bytes(error.what())});
    }
  }

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin, std::size_t size_bytes) {
    if (!local_ || rank < 0 || rank >= num_workers_) throw Error{"no such worker is here"};
    return local_->memory()->filled_snapshot(rank, slot, begin + size_bytes).subspan(begin);
  }

  void tell_what_is_kept(std::span<const std::byte> payload) {
    WireReader reader{payload};
    const auto number = reader.take<std::uint64_t>();
    std::string lack = lack_of_memory();
    while (lack.empty() && !reader.is_empty()) {
      const auto of = reader.take<SlotOrder>();
      if (of.rank < 0 || of.rank >= num_workers_ || of.slot < 0 || of.slot >= num_snapshot_slots ||
          local_->memory()->owner(of.rank, of.slot).load() != SnapshotOwners::supervisor) {
        lack = compose("snapshot {} of rank {} of this process is not held", of.slot, of.rank);
      }
    }
    say(lack.empty() ? News::answered : News::not_answered, {std::as_bytes(std::span{&number, 1}), text_bytes(lack)});
  }
  // Why the next workers will not have the memory of those before; empty if they will.
  [[nodiscard]] std::string lack_of_memory() const {
    if (!local_) return "this process has made no workers";
    if (is_memory_read_) return "a request that was given up may read from their memory yet";
    const bool is_busy = request_ && !request_->is_over();
    if (is_busy && local_->forks_to_restart()) return "this process has to be forked, and answers a request";
    return {};
  }

  // On a thread of its own: this one goes on to be heard of.
  void begin_request(std::span<const std::byte> payload) {
    end_request();
    WireReader reader{payload};
    const auto number = reader.take<std::uint64_t>();
    const auto rest = reader.take_rest();
    try {
      request_ = std::make_unique<AgentRequest>(number, std::vector(rest.begin(), rest.end()), on_request_,
                                                local_ ? local_->memory() : nullptr, first_rank_);
    } catch (const std::exception& error) {  // no thread can be had
      refuse_request(number, error);
    }
  }

  void give_answer() {
    const auto request = std::move(request_);
    const std::uint64_t number = request->number();
    try {
      say(News::answered, {std::as_bytes(std::span{&number, 1}), request->take_answer()});
    } catch (const std::exception& error) {
      refuse_request(number, error);
    }
  }
  void refuse_request(std::uint64_t number, const std::exception& error) {
    say(News::not_answered, {std::as_bytes(std::span{&number, 1}), text_bytes(error.what())});
  }

  // Nobody waits for its answer.
  void end_request(std::chrono::nanoseconds patience = std::chrono::nanoseconds{0}) noexcept {
    const auto request = std::move(request_);
    if (request && !request->give_up(patience)) is_memory_read_ = true;
  }

  // The workers first: nothing that the request does keeps them.
  void end() noexcept {
    local_.reset();
    end_request(end_patience_);
  }

  SecureConnection* leader_;
  const WorkerBody* body_;
  std::chrono::nanoseconds silence_limit_;
  RequestHandler on_request_;
  std::chrono::nanoseconds end_patience_;
  std::unique_ptr<ProcessGroup> local_{};
  int num_workers_ = 0;
  int first_rank_ = 0;    // of theirs, among all
  int most_workers_ = 0;  // that the group can make
  int num_alive_ = 0;
  Clock::time_point next_pages_ = Clock::now();
  Clock::time_point listened_at_ = Clock::now();
  Deadline first_word_ = Deadline::never();      // until then it is waited for
  std::optional<Clock::time_point> heard_at_{};  // once the leader has said anything: it gives signs of life then
  std::string noted_{};
  std::string parts_{};
  std::unique_ptr<AgentRequest> request_{};  // until its answer is given
  std::uint64_t num_told_reads_ = 0;         // of its handler
  bool is_memory_read_ = false;              // the group's, by a request that was left behind
};

}  // namespace detail
}  // namespace railyard::inline v0_1
