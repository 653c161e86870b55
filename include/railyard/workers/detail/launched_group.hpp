// SPDX-License-Identifier: MIT
// The group of workers that several processes make together, as the one that leads sees it. Workers room.
#pragma once

#include "railyard/workers/detail/agent_lines.hpp"
#include "railyard/workers/detail/agent_wire.hpp"
#include "railyard/workers/detail/launched_members.hpp"
#include "railyard/workers/processes.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Is the group of Launched where there are several processes. The leader's own workers are its children; those of the
/// others are known by what their processes say.
class LaunchedGroup final : public WorkerGroup {
 public:
  /// Is called with each generation of workers before they are made: what earlier ones have left is of no use.
  using Renew = std::function<void(std::uint32_t generation)>;

  /// members and lines must outlive the group; of the members, the leader is the first. Those that are lost make no
  /// workers. generation: of the first workers.
  LaunchedGroup(const GroupPlan& plan, const WorkerBody& body, LaunchedMembers& members, AgentLines& lines,
                std::uint32_t generation, Renew renew)
      : members_(&members), lines_(&lines), renew_(std::move(renew)), silence_limit_(plan.silence_limit) {
    layouts_ = lay_out(present_workers(), members.hosts);
    if (const std::string losses = losses_of([](int) { return true; }); !losses.empty()) {
      layouts_ = lay_out(deal(present_workers(), plan.num_workers), members.hosts);
      if (world_size() < plan.num_workers) throw HostLostError{compose("start: {}", losses)};
    }
    generation_ = generation;
    signals_.resize(layouts_.size());
    begin();
    const GroupPlan own{.num_workers = layouts_.front().num_workers,
                        .silence_limit = plan.silence_limit,
                        .briefing = brief(sent_layout(0), plan.briefing),
                        .most_workers = members.workers.front(),
                        .on_fork = plan.on_fork};
    local_ = std::make_unique<ProcessGroup>(own, body);
    num_local_alive_ = own.num_workers;
    local_->watch_also(lines_->event_fd());
    order_start(plan.briefing);
  }
  ~LaunchedGroup() override { lines_->post_to_all(Order::kill); }

  [[nodiscard]] std::optional<GroupEvent> next(const Deadline& deadline) override {
    while (true) {
      if (auto event = take_event()) return event;
      if (num_exited_ == world_size()) return pass(local_->next(Deadline::after(std::chrono::nanoseconds{0})), 0);
      if (num_local_alive_ > 0) {
        if (auto event = pass(local_->next(deadline), 0)) return event;
      } else {
        // All of this process have ended: only signals can come here, and nobody waits for them.
        const auto slice = std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::milliseconds{50});
        [[maybe_unused]] const bool is_ready = wait_for(lines_->event_fd(), POLLIN, Deadline::after(slice));
        if (auto event = pass(local_->next(Deadline::after(std::chrono::nanoseconds{0})), 0)) return event;
      }
      if (deadline.expired()) return take_event();
    }
  }

  void request_stop() override {
    local_->request_stop();
    lines_->post_to_all(Order::stop);
  }
  void request_leave() override {
    local_->request_leave();
    lines_->post_to_all(Order::leave);
  }
  void request_resize() override {
    local_->request_resize();
    lines_->post_to_all(Order::resize);
  }
  void abort(std::string_view reason) override {
    local_->abort(reason);
    lines_->post_to_all(Order::abort, std::as_bytes(std::span{reason}));
  }
  void kill() override {
    local_->kill();
    lines_->post_to_all(Order::kill);
  }
  [[nodiscard]] bool can_kill() const noexcept override { return true; }

  [[nodiscard]] const WorkerPage& page(int rank) const override {
    const auto [process, own_rank] = place_of(rank);
    if (process == 0) return local_->page(own_rank);
    lines_->show_page(process, own_rank, *pages_[index(rank)]);
    return *pages_[index(rank)];
  }

  [[nodiscard]] std::vector<std::string> stacks(const Deadline& deadline) override {
    std::vector<std::string> all(index(world_size()));
    const std::int64_t at_most = deadline.remaining().count();
    lines_->post_to_all(Order::stacks, std::as_bytes(std::span{&at_most, 1}));
    put_stacks(all, 0, local_->stacks(deadline));
    int num_asked = 0;
    for (int process = 1; process < num_processes(); ++process) num_asked += lines_->loss(process).empty() ? 1 : 0;
    const Deadline until = Deadline::after(deadline.remaining() + std::chrono::milliseconds{200});
    while (num_asked > 0) {
      auto item = lines_->take(until);
      if (!item) break;
      if (static_cast<News>(item->frame.type) == News::stacks) {
        WireReader reader{item->frame.payload};
        std::vector<std::string> texts;
        while (!reader.is_empty()) texts.push_back(reader.take_text());
        put_stacks(all, item->process, texts);
        --num_asked;
      } else {
        if (!item->loss.empty()) --num_asked;
        note(std::move(*item));
      }
    }
    return all;
  }

  [[nodiscard]] std::span<const std::byte> snapshot(int rank, int slot, std::size_t begin,
                                                    std::size_t size_bytes) override {
    const auto [process, own_rank] = place_of(rank);
    if (process == 0) return local_->snapshot(own_rank, slot, begin, size_bytes);
    return fetched_ = lines_->fetch(process, {own_rank, slot}, begin, size_bytes);
  }
  void hold_snapshot(int rank, int slot) noexcept override {
    const auto [process, own_rank] = place_of(rank);
    if (process == 0) return local_->hold_snapshot(own_rank, slot);
    order(process, Order::hold, {own_rank, slot});
  }
  void release_snapshot(int rank, int slot) noexcept override {
    const auto [process, own_rank] = place_of(rank);
    if (process == 0) return local_->release_snapshot(own_rank, slot);
    order(process, Order::release, {own_rank, slot});
  }
  [[nodiscard]] bool shares_snapshots() const noexcept override { return false; }
  /// All processes are asked at once.
  [[nodiscard]] bool keeps_snapshots(std::span<const std::uint8_t> slots) override {
    if (slots.size() != index(world_size()) || next_layouts(world_size()) != layouts_) return false;
    std::vector<std::uint64_t> questions;
    bool are_kept = true;
    for (int process = 1; process < num_processes(); ++process) {
      const GroupLayout& own = layout(process);
      if (own.num_workers == 0) continue;
      WireWriter writer;
      for (int rank = 0; rank < own.num_workers; ++rank) {
        writer.put(SlotOrder{.rank = rank, .slot = slots[index(own.first_rank + rank)]});
      }
      are_kept = are_kept && has_snapshots_of(own.first_rank);
      questions.push_back(lines_->send_request(process, writer.bytes(), Order::keeps));
    }
    for (const std::uint64_t question : questions) {
      try {
        static_cast<void>(lines_->await_answer(question, "it is not known whether snapshots are kept"));
      } catch (const Error&) {  // then the run goes on from a checkpoint
        are_kept = false;
      }
    }
    return are_kept;
  }
  [[nodiscard]] bool has_snapshots_of(int rank) const override {
    const int process = place_of(rank).process;
    return process == 0 ||
           (lines_->loss(process).empty() && lines_->num_losses(process) == num_losses_[index(process)]);
  }
  [[nodiscard]] int process_of(int rank) const override { return place_of(rank).process; }
  [[nodiscard]] std::string name_of_process(int process) const override {
    return process == 0 ? "the process that leads" : lines_->peer(process);
  }
  [[nodiscard]] std::function<std::vector<std::byte>()> send_request(int process,
                                                                     std::span<const std::byte> request) override {
    return [lines = lines_, number = lines_->send_request(process, request)] {
      return lines->await_answer(number, "a request has no answer");
    };
  }

  /// With fewer workers than before, or without processes that are lost, or with ones that have come back.
  void restart(int num_workers, std::string_view briefing) override {
    end_local();
    const std::vector<int> workers = present_workers();
    const int room = std::accumulate(workers.begin(), workers.end(), 0);
    const std::string losses = losses_of([](int) { return true; });
    if (num_workers > room && !losses.empty()) {
      throw HostLostError{compose("a process that an engine has started can only be started again by it: {}", losses)};
    }
    if (num_workers > room) {
      throw Error{compose("the processes make {} workers together, and {} were asked for", room, num_workers)};
    }
    // Where nothing changes, snapshots may still be read by another thread, which looks up whose they are.
    if (auto next = lay_out(deal(workers, num_workers), members_->hosts); next != layouts_) layouts_ = std::move(next);
    ++generation_;
    begin();
    local_->restart(layouts_.front().num_workers, brief(sent_layout(0), briefing));
    num_local_alive_ = layouts_.front().num_workers;
    order_start(briefing);
  }
  [[nodiscard]] bool forks_to_restart() const override { return local_->forks_to_restart(); }

  [[nodiscard]] std::string lost_hosts() const override {
    return losses_of([this](int process) { return layout(process).num_workers > 0; });
  }

 private:
  struct Place {
    int process = 0;
    int rank = 0;  // among the workers of that process
  };

  static std::size_t index(int number) noexcept { return static_cast<std::size_t>(number); }
  [[nodiscard]] const GroupLayout& layout(int process) const { return layouts_[index(process)]; }
  [[nodiscard]] GroupLayout sent_layout(int process) const {
    GroupLayout one = layout(process);
    one.generation = generation_;
    return one;
  }
  // Those that a restart would make; none if there is no room.
  [[nodiscard]] std::vector<GroupLayout> next_layouts(int num_workers) const {
    std::vector<int> workers = present_workers();
    if (std::accumulate(workers.begin(), workers.end(), 0) < num_workers) return {};
    return lay_out(deal(std::move(workers), num_workers), members_->hosts);
  }
  [[nodiscard]] int world_size() const noexcept { return layouts_.front().world_size; }
  [[nodiscard]] int num_processes() const noexcept { return static_cast<int>(layouts_.size()); }

  // How many each process can make that is not lost.
  [[nodiscard]] std::vector<int> present_workers() const {
    std::vector<int> workers = members_->workers;
    for (int process = 1; process < lines_->num_processes(); ++process) {
      if (!lines_->loss(process).empty()) workers[index(process)] = 0;
    }
    return workers;
  }

  [[nodiscard]] Place place_of(int rank) const {
    for (int process = 0; process < num_processes(); ++process) {
      const int own = rank - layout(process).first_rank;
      if (own >= 0 && own < layout(process).num_workers) return {process, own};
    }
    throw Error{compose("there is no rank {} among {}", rank, world_size())};
  }

  void begin() {
    num_exited_ = 0;
    num_local_alive_ = 0;
    has_exited_.assign(index(world_size()), false);
    std::erase_if(events_, [](const GroupEvent& event) { return !std::holds_alternative<SignalEvent>(event); });
    members_->has_part.clear();
    for (const GroupLayout& one : layouts_) members_->has_part.push_back(one.num_workers > 0);
    num_losses_.assign(layouts_.size(), 0);
    for (int process = 1; process < num_processes(); ++process)
      num_losses_[index(process)] = lines_->num_losses(process);
    lines_->forget_pages();
    while (pages_.size() < index(world_size())) pages_.push_back(std::make_unique<WorkerPage>());
    for (auto& page : pages_) PageValues{}.show_on(*page);
    renew_(generation_);
  }

  // Why processes are lost, of those that counts() takes.
  template <class Counts>
  [[nodiscard]] std::string losses_of(const Counts& counts) const {
    std::vector<std::string> losses;
    for (int process = 1; process < num_processes(); ++process) {
      if (!counts(process)) continue;
      if (std::string loss = lines_->loss(process); !loss.empty()) losses.push_back(std::move(loss));
    }
    return joined(losses, "; ");
  }

  // What a start has left in which another process has had no part.
  void end_local() {
    end_workers(local_.get(), num_local_alive_, [this](GroupEvent one) {
      auto event = pass(std::move(one), 0);
      if (event && std::holds_alternative<SignalEvent>(*event)) events_.push_back(std::move(*event));
    });
  }

  // Returns when every process has made its workers.
  void order_start(std::string_view briefing) {
    std::vector<bool> is_awaited(layouts_.size());
    for (int process = 1; process < num_processes(); ++process) {
      if (layout(process).num_workers == 0) {
        lines_->post(process, Order::kill);  // what a start has left that was given up
        continue;
      }
      const StartOrder order{.layout = sent_layout(process),
                             .silence_limit_ns = silence_limit_.count(),
                             .briefing = std::string{briefing},
                             .parts = parts_text(members_->has_part)};
      lines_->post(process, Order::start, order.encode());
      is_awaited[index(process)] = true;
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds{60});
    while (std::find(is_awaited.begin(), is_awaited.end(), true) != is_awaited.end()) {
      auto item = lines_->take(deadline);
      if (!item) throw Error{"start: another process has not made its workers in 60 s: see what it prints"};
      if (!item->loss.empty()) {
        const bool is_back = lines_->loss(item->process).empty();
        if (!is_back && layout(item->process).num_workers > 0) throw HostLostError{compose("start: {}", item->loss)};
        continue;
      }
      hear_of_start(std::move(*item), is_awaited);
    }
  }

  void hear_of_start(AgentLines::Item item, std::vector<bool>& is_awaited) {
    const auto news = static_cast<News>(item.frame.type);
    if (news == News::started || news == News::refused) {
      WireReader reader{item.frame.payload};
      if (reader.take<std::uint32_t>() != generation_) return;  // of a start that was given up
      is_awaited[index(item.process)] = false;
      if (news == News::started) return;
      const bool is_setting = reader.take<std::uint8_t>() != 0;
      const std::string text = compose("{}: {}", lines_->peer(item.process), reader.take_text());
      if (is_setting) throw ConfigError{text};
      throw Error{text};
    }
    const bool is_of_earlier_workers = is_awaited[index(item.process)] && news == News::event;
    if (!is_of_earlier_workers || is_signal(item.frame.payload)) note(std::move(item));
  }

  void order(int process, Order order, SlotOrder of) noexcept {
    try {
      lines_->post(process, order, std::as_bytes(std::span{&of, 1}));
    } catch (...) {  // no memory for a message of eight bytes: the slot stays taken, and its worker waits for it
    }
  }

  void put_stacks(std::vector<std::string>& all, int process, const std::vector<std::string>& of_process) const {
    const int most = std::min(layout(process).num_workers, static_cast<int>(of_process.size()));
    for (int at = 0; at < most; ++at) all[index(layout(process).first_rank + at)] = of_process[index(at)];
  }

  [[nodiscard]] std::optional<GroupEvent> take_event() {
    while (events_.empty()) {
      auto item = lines_->take();
      if (!item) return std::nullopt;
      note(std::move(*item));
    }
    GroupEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  // Turns what a process has said into events.
  void note(AgentLines::Item item) {
    if (!item.loss.empty()) return lose(item.process, item.loss);
    if (static_cast<News>(item.frame.type) != News::event) return;  // a late answer
    if (layout(item.process).num_workers == 0 && !is_signal(item.frame.payload))
      return;  // of workers that are being ended
    try {
      if (auto event = pass(decode_event(item.frame.payload, layout(item.process)), item.process)) {
        events_.push_back(std::move(*event));
      }
    } catch (const Error& error) {
      events_.push_back(
          BrokenEvent{.message = compose("{} sends nonsense: {}", lines_->peer(item.process), error.what())});
    }
  }

  // Counts exits, and lets of each signal pass one only: the engine sends it to every process.
  [[nodiscard]] std::optional<GroupEvent> pass(std::optional<GroupEvent> event, int process) {
    if (!event) return event;
    if (const auto* exit = std::get_if<ExitEvent>(&*event)) {
      if (has_exited_[index(exit->rank)]) return std::nullopt;
      has_exited_[index(exit->rank)] = true;
      ++num_exited_;
      if (process == 0) --num_local_alive_;
    }
    if (std::holds_alternative<SignalEvent>(*event)) {
      const int seen = *std::max_element(signals_.begin(), signals_.end());
      if (++signals_[index(process)] <= seen) return std::nullopt;
    }
    return event;
  }

  void lose(int process, const std::string& why) {
    for (int at = 0; at < layout(process).num_workers; ++at) {
      const int rank = layout(process).first_rank + at;
      auto event = pass(ExitEvent{.rank = rank, .exit = {.kind = WorkerExit::Kind::lost, .message = why}}, process);
      if (event) events_.push_back(std::move(*event));
    }
  }

  LaunchedMembers* members_;
  std::vector<GroupLayout> layouts_{};  // without the generation, so that those of two starts may be the same
  std::uint32_t generation_ = 0;
  AgentLines* lines_;
  Renew renew_;
  std::chrono::nanoseconds silence_limit_;
  std::unique_ptr<ProcessGroup> local_{};
  std::vector<std::unique_ptr<WorkerPage>> pages_{};  // of all ranks; those of this process's stay unused
  std::deque<GroupEvent> events_{};
  std::vector<bool> has_exited_{};
  std::vector<int> signals_{};     // how many each process has seen
  std::vector<int> num_losses_{};  // of each process, when workers were started last
  int num_exited_ = 0;
  int num_local_alive_ = 0;
  std::vector<std::byte> fetched_{};  // of another process's snapshot, last
};

}  // namespace detail
}  // namespace railyard::inline v0_1
