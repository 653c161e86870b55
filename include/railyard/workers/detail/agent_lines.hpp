// SPDX-License-Identifier: MIT
// The leader's ends of the connections to all processes that follow. Workers room.
#pragma once

#include "railyard/workers/detail/agent_wire.hpp"
#include "railyard/workers/detail/event.hpp"
#include "railyard/workers/detail/secure_connection.hpp"

#include "railyard/core/deadline.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/signals.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Moves what goes both ways between the leader and the others, on a thread of its own: nobody else touches the
/// connections, so that no order waits for a network and none is lost in between. All members may be called from any
/// thread. Processes are counted as the launcher does; the leader is number 0 and has no line.
class AgentLines {
 public:
  static constexpr std::size_t usual_chunk_bytes = std::size_t{1} << 20U;

  /// Is something that a process has said, or nothing but that it is lost.
  struct Item {
    int process = 0;
    Frame frame{};
    std::string loss{};  ///< why it is lost; empty if it is not
  };

  /// connections: of the processes 1, 2, ...; nothing for one that has not come, which is lost then, as `absence` says.
  /// silence_limit: after which one that says nothing is lost. chunk_bytes: how
  /// much of a snapshot comes in one message, between which others have their turn. answer_limit: how long an answer is
  /// waited for while nothing of it comes and its process tells of no progress; 0: four times the limit of silence, for
  /// storage that is started anew is away for longer than a process may be.
  AgentLines(std::vector<std::optional<SecureConnection>> connections, std::chrono::nanoseconds silence_limit,
             const std::function<std::string(int process)>& absence, std::size_t chunk_bytes = usual_chunk_bytes,
             std::chrono::nanoseconds answer_limit = {})
      : silence_limit_(silence_limit),
        chunk_bytes_(chunk_bytes),
        answer_limit_(answer_limit.count() > 0
                          ? answer_limit
                          : 4 * std::min<std::chrono::nanoseconds>(silence_limit, longest_silence)) {
    for (auto& connection : connections) {
      const int process = static_cast<int>(lines_.size()) + 1;
      lines_.push_back(connection ? Line{std::move(*connection)} : Line{absence(process)});
    }
    const BlockSignals block{deferrable_signals()};
    thread_ = std::thread{[this] { run(); }};
  }
  /// All have come.
  AgentLines(std::vector<SecureConnection> connections, std::chrono::nanoseconds silence_limit,
             std::size_t chunk_bytes = usual_chunk_bytes, std::chrono::nanoseconds answer_limit = {})
      : AgentLines({std::make_move_iterator(connections.begin()), std::make_move_iterator(connections.end())},
                   silence_limit, {}, chunk_bytes, answer_limit) {}
  AgentLines(const AgentLines&) = delete;
  AgentLines& operator=(const AgentLines&) = delete;
  /// Sends what is queued, for some seconds at most, and hangs up.
  ~AgentLines() {
    {
      const std::lock_guard lock{mutex_};
      is_ending_ = true;
    }
    wake_.ring();
    thread_.join();
  }

  /// Can be read from while take() has something to return.
  [[nodiscard]] int event_fd() const noexcept { return news_.fd(); }
  [[nodiscard]] std::string peer(int process) const {
    const std::lock_guard lock{mutex_};
    return line(process).peer;
  }

  /// A process that is lost has come back, by this connection.
  void replace(int process, SecureConnection connection) {
    {
      const std::lock_guard lock{mutex_};
      Line& one = line(process);
      one.peer = connection.peer();
      one.next.emplace(std::move(connection));
      one.outgoing.clear();
      one.pages.clear();
      one.loss.clear();
    }
    wake_.ring();
  }

  /// Queues a message; for a process that is lost, does nothing.
  void post(int process, Order order, std::span<const std::byte> payload = {}) {
    {
      const std::lock_guard lock{mutex_};
      Line& to = line(process);
      if (!to.loss.empty()) return;
      to.outgoing.push_back({static_cast<std::uint8_t>(order), {payload.begin(), payload.end()}});
    }
    wake_.ring();
  }
  void post_to_all(Order order, std::span<const std::byte> payload = {}) {
    for (int process = 1; process < num_processes(); ++process) post(process, order, payload);
  }

  /// Returns what has been said first of all that has not been taken, or nothing.
  [[nodiscard]] std::optional<Item> take() {
    const std::lock_guard lock{mutex_};
    if (items_.empty()) {
      news_.clear();
      return std::nullopt;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  /// Waits for it.
  [[nodiscard]] std::optional<Item> take(const Deadline& deadline) {
    while (true) {
      if (auto item = take()) return item;
      if (!wait_for(news_.fd(), POLLIN, deadline)) return std::nullopt;
    }
  }

  /// Copies what the process has last shown of a worker's page; pages begin anew with a start of workers.
  void show_page(int process, int rank, WorkerPage& page) const {
    const std::lock_guard lock{mutex_};
    const std::vector<PageValues>& values = line(process).pages;
    if (static_cast<std::size_t>(rank) < values.size()) values[static_cast<std::size_t>(rank)].show_on(page);
  }
  void forget_pages() {
    const std::lock_guard lock{mutex_};
    for (Line& one : lines_) one.pages.clear();
  }

  /// Returns so many bytes, from `begin` on, of a snapshot that is another process's. All of them are under way at
  /// once: who asks for little at a time needs little memory here and there. Throws: Error if the process is lost, or
  /// cannot give them.
  [[nodiscard]] std::vector<std::byte> fetch(int process, SlotOrder of, std::uint64_t begin, std::uint64_t size_bytes) {
    const std::uint64_t number = expect(process, (size_bytes + chunk_bytes_ - 1) / chunk_bytes_);
    for (std::uint64_t done = 0; done < size_bytes; done += chunk_bytes_) {
      const FetchOrder order{.number = number,
                             .of = of,
                             .begin = begin + done,
                             .size_bytes = std::min<std::uint64_t>(chunk_bytes_, size_bytes - done)};
      post(process, Order::fetch, std::as_bytes(std::span{&order, 1}));
    }
    std::vector<std::byte> bytes = await_answer(number, "a part of the state was lost");
    if (bytes.size() == size_bytes) return bytes;
    throw Error{
        compose("{} has sent {} bytes of a part of the state instead of {}: it is another release, or its "
                "memory was overwritten",
                peer(process), bytes.size(), size_bytes)};
  }

  /// Sends a request, or another order that is answered likewise, and returns its number. The answer has to be awaited.
  [[nodiscard]] std::uint64_t send_request(int process, std::span<const std::byte> request,
                                           Order order = Order::request) {
    const std::uint64_t number = expect(process, 1);
    WireWriter writer;
    writer.put(number);
    writer.put_rest(request);
    post(process, order, writer.bytes());
    return number;
  }
  /// Throws: Error if the process is lost, or does not answer as it was asked to; it begins with `what`, then.
  /// LateAnswerError if it is heard of, but makes no progress; it is told that nobody waits any longer.
  [[nodiscard]] std::vector<std::byte> await_answer(std::uint64_t number, std::string_view what) {
    std::unique_lock lock{mutex_};
    Answer& expected = answers_.at(number);
    const Line& from = line(expected.process);
    const auto is_lost = [&] { return !from.loss.empty() || from.num_losses != expected.num_losses; };
    while (!expected.is_over() && !is_lost() && Clock::now() - expected.progressed_at < answer_limit_) {
      answered_.wait_until(lock, expected.progressed_at + answer_limit_);
    }
    Answer answer = std::move(expected);
    answers_.erase(number);  // what still comes is dropped
    if (answer.complaint) throw Error{*answer.complaint};
    if (answer.is_over()) return std::move(answer.bytes);
    if (from.loss.empty() && from.num_losses == answer.num_losses) {
      const LateAnswerError error{
          compose("{}: {} has made no progress for {}", what, from.peer, Deadline::after(answer_limit_).budget_text())};
      lock.unlock();
      post(answer.process, Order::give_up, std::as_bytes(std::span{&number, 1}));
      throw error;
    }
    throw Error{compose("{}: {}", what, from.loss.empty() ? from.peer : from.loss)};
  }

  /// Why the process is lost; empty if it is not.
  [[nodiscard]] std::string loss(int process) const {
    const std::lock_guard lock{mutex_};
    return line(process).loss;
  }
  /// How often it has been lost.
  [[nodiscard]] int num_losses(int process) const {
    const std::lock_guard lock{mutex_};
    return line(process).num_losses;
  }
  [[nodiscard]] int num_processes() const noexcept { return static_cast<int>(lines_.size()) + 1; }

 private:
  using Clock = Deadline::Clock;
  static constexpr std::chrono::hours longest_silence{24};  // so that four times as much is a time

  struct Line {
    explicit Line(SecureConnection one) : connection(std::move(one)), peer(connection->peer()) {}
    explicit Line(std::string why) : peer(why), loss(std::move(why)), num_losses(1) {}
    std::optional<SecureConnection> connection{};  // of the thread alone; nothing before the process has come
    std::optional<SecureConnection> next{};        // that takes its place
    std::string peer;
    Clock::time_point last_heard = Clock::now();
    Clock::time_point next_sign = Clock::now();  // of this process's life
    std::vector<Frame> outgoing{};
    std::vector<PageValues> pages{};
    std::string loss{};
    int num_losses = 0;
  };
  struct Answer {
    int process = 0;
    Clock::time_point progressed_at = Clock::now();
    int num_losses = 0;              // of the process, so far: it may come back before its loss is seen here
    std::uint64_t num_pieces = 0;    // that have not come
    std::vector<std::byte> bytes{};  // of those that have: they come in the order in which they were asked for
    std::optional<std::string> complaint{};

    [[nodiscard]] bool is_over() const noexcept { return num_pieces == 0 || complaint; }
  };

  [[nodiscard]] Line& line(int process) { return lines_[static_cast<std::size_t>(process - 1)]; }
  [[nodiscard]] const Line& line(int process) const { return lines_[static_cast<std::size_t>(process - 1)]; }

  // Returns the number by which the answer will be known.
  [[nodiscard]] std::uint64_t expect(int process, std::uint64_t num_pieces) {
    const std::lock_guard lock{mutex_};
    answers_[++num_questions_] = {.process = process, .num_losses = line(process).num_losses, .num_pieces = num_pieces};
    return num_questions_;
  }

  void run() {
    std::vector<pollfd> watched(lines_.size() + 1);
    std::optional<Deadline> end;
    while (true) {
      bool is_all_sent = true;
      bool has_received = false;  // what poll() does not show
      {
        const std::lock_guard lock{mutex_};
        if (is_ending_ && !end) end = Deadline::after(std::chrono::seconds{5});
        watched.back() = {.fd = wake_.fd(), .events = POLLIN, .revents = 0};
        for (std::size_t at = 0; at < lines_.size(); ++at) {
          Line& one = lines_[at];
          take_next(one);
          move_outgoing(one);
          const bool has_more = one.loss.empty() && one.connection->unsent_bytes() > 0;
          is_all_sent = is_all_sent && !has_more;
          has_received = has_received || (one.loss.empty() && one.connection->has_received());
          watched[at] = {.fd = one.loss.empty() ? one.connection->fd() : -1,
                         .events = static_cast<short>(has_more ? POLLIN | POLLOUT : POLLIN),
                         .revents = 0};
        }
      }
      if (end && (is_all_sent || end->expired())) return;
      constexpr int most_ms = 200;
      ::poll(watched.data(), watched.size(), has_received ? 0 : most_ms);
      if (watched.back().revents != 0) wake_.clear();
      for (std::size_t at = 0; at < lines_.size(); ++at) attend(at, watched[at]);
    }
  }

  // With the lock, as what follows.
  static void take_next(Line& one) {
    if (!one.next) return;
    one.connection.emplace(std::move(*one.next));
    one.next.reset();
    one.last_heard = Clock::now();
  }

  void move_outgoing(Line& one) const {
    if (!one.loss.empty()) return;
    if (const auto now = Clock::now(); now >= one.next_sign) {
      one.next_sign = now + sign_interval(silence_limit_);
      one.connection->post(static_cast<std::uint8_t>(Order::alive), {});
    }
    for (const Frame& frame : std::exchange(one.outgoing, {})) one.connection->post(frame.type, {frame.payload});
  }

  void attend(std::size_t at, const pollfd& watched) {
    Line& one = lines_[at];
    if (watched.fd < 0) return;
    try {
      one.connection->flush();
      // That there is room for what is sent says nothing of the process.
      if ((watched.revents & ~POLLOUT) != 0 || one.connection->has_received()) {
        one.last_heard = Clock::now();
        for (int taken = 0; taken < 64; ++taken) {  // the others are to have their turn
          std::optional<Frame> frame = one.connection->try_receive();
          if (!frame) break;
          sort(static_cast<int>(at) + 1, std::move(*frame));
        }
      } else if (const auto quiet = Clock::now() - one.last_heard; quiet > silence_limit_) {
        lose(at, compose("{} has said nothing for {:.1f} s: it is stopped, or its host or the network between is down",
                         one.connection->peer(), std::chrono::duration<double>(quiet).count()));
      }
    } catch (const std::exception& error) {
      lose(at, error.what());
    }
  }

  void sort(int process, Frame frame) {
    const auto news = static_cast<News>(frame.type);
    const std::lock_guard lock{mutex_};
    if (news == News::pages) {
      WireReader reader{frame.payload};
      std::vector<PageValues> pages(frame.payload.size() / sizeof(PageValues));
      for (PageValues& page : pages) page = reader.take<PageValues>();
      line(process).pages = std::move(pages);
    } else if (news == News::fetched || news == News::answered) {
      take_answer(true, frame.payload);
    } else if (news == News::not_fetched || news == News::not_answered) {
      take_answer(false, frame.payload);
    } else if (news == News::progress) {
      const auto found = answers_.find(WireReader{frame.payload}.take<std::uint64_t>());
      if (found != answers_.end()) found->second.progressed_at = Clock::now();
    } else {
      items_.push_back({.process = process, .frame = std::move(frame)});
      news_.ring();
    }
  }

  void take_answer(bool is_there, std::span<const std::byte> payload) {
    WireReader reader{payload};
    const auto found = answers_.find(reader.take<std::uint64_t>());
    if (found == answers_.end() || found->second.is_over()) return;  // it was given up
    Answer& answer = found->second;
    answer.progressed_at = Clock::now();
    const auto rest = reader.take_rest();
    if (is_there) {
      answer.bytes.insert(answer.bytes.end(), rest.begin(), rest.end());
      --answer.num_pieces;
    } else {
      answer.complaint.emplace(reinterpret_cast<const char*>(rest.data()), rest.size());
    }
    if (answer.is_over()) answered_.notify_all();
  }

  void lose(std::size_t at, std::string why) {
    lines_[at].connection->close();
    const std::lock_guard lock{mutex_};
    lines_[at].loss = why;
    ++lines_[at].num_losses;
    items_.push_back({.process = static_cast<int>(at) + 1, .loss = std::move(why)});
    answered_.notify_all();
    news_.ring();
  }

  std::chrono::nanoseconds silence_limit_;
  std::size_t chunk_bytes_;
  std::chrono::nanoseconds answer_limit_;
  Event wake_{};  // for the thread: something is to be sent
  Event news_{};
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<Line> lines_{};
  std::deque<Item> items_{};
  std::map<std::uint64_t, Answer> answers_{};  // that are expected, by number
  std::uint64_t num_questions_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
