// SPDX-License-Identifier: MIT
// Messages on lines whose ends have proven themselves. Collectives room.
#pragma once

#include "railyard/collectives/detail/mesh_lines.hpp"

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/detail/system.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/rank_connector.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <poll.h>

namespace railyard::inline v0_1 {
namespace detail {

/// Moves messages on one line in both directions. Each end says what it is ready to receive before it is sent, or while
/// it is: whoever sends knows in the end that the other one is in the same operation. What comes out of its turn is
/// left where it is: it takes no memory, whoever sends it.
class ProvenLine {
 public:
  explicit ProvenLine(std::unique_ptr<RankLine> line) : line_(std::move(line)) {}

  [[nodiscard]] int fd() const noexcept { return line_->fd(); }
  void hang_up() noexcept { line_->hang_up(); }

  void send(std::uint64_t slot, const std::byte* from, std::size_t size_bytes) {
    outgoing_.push_back({.head = {.kind = Head::data, .slot = slot}, .from = from, .size_bytes = size_bytes});
    awaited_.push_back(slot);
  }
  void receive(std::uint64_t slot, std::byte* to, std::size_t size_bytes) {
    outgoing_.push_back({.head = {.kind = Head::ready, .slot = slot}});
    incoming_.push_back({.slot = slot, .to = to, .size_bytes = size_bytes});
  }

  /// Sends and takes what can be at once. Returns true if nothing is left to do. Throws: Error if the line is lost.
  [[nodiscard]] bool advance() {
    send_some();
    while (wants_bytes() && take_some()) {
    }
    return !has_to_send() && !wants_bytes();
  }

  /// What to wait for before the next advance(), as poll() has it.
  [[nodiscard]] short events() const noexcept {
    const bool reads = wants_bytes() && !is_out_of_turn_;
    return static_cast<short>((has_to_send() ? POLLOUT : 0) | (reads ? POLLIN : POLLRDHUP));
  }
  /// Takes what poll() has said. Throws: Error if the line has ended, and what is left of it is of no use.
  void look_at(short events) const {
    if (is_out_of_turn_ && (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      throw Error{compose("{} has closed the connection in another operation", line_->peer())};
    }
  }
  /// Has the other end gone?
  [[nodiscard]] bool is_closed() const noexcept {
    pollfd one{.fd = fd(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }

 private:
  struct Head {
    static constexpr std::uint64_t data = 1;
    static constexpr std::uint64_t ready = 2;
    std::uint64_t kind = 0;
    std::uint64_t slot = 0;
  };
  struct Outgoing {
    Head head{};
    const std::byte* from = nullptr;
    std::size_t size_bytes = 0;
  };
  struct Incoming {
    std::uint64_t slot = 0;
    std::byte* to = nullptr;
    std::size_t size_bytes = 0;
    bool has_begun = false;
  };

  // Up to this size a copy costs less than a call of the system.
  static constexpr std::size_t small_bytes = 8192;

  [[nodiscard]] bool has_to_send() const noexcept {
    return sent_ < packed_.size() || rest_bytes_ > 0 || !outgoing_.empty();
  }
  [[nodiscard]] bool wants_bytes() const noexcept { return !incoming_.empty() || !awaited_.empty(); }

  void send_some() {
    while (has_to_send()) {
      if (sent_ < packed_.size()) {
        const std::size_t sent = line_->send(packed_.data() + sent_, packed_.size() - sent_);
        if (sent == 0) return;
        sent_ += sent;
      } else if (rest_bytes_ > 0) {
        const std::size_t sent = line_->send(rest_, rest_bytes_);
        if (sent == 0) return;
        rest_ += sent;
        rest_bytes_ -= sent;
      } else {
        pack();
      }
    }
  }

  // Puts together what is small, up to and with the beginning of what is not.
  void pack() {
    packed_.clear();
    sent_ = 0;
    while (!outgoing_.empty() && rest_bytes_ == 0 && packed_.size() < small_bytes) {
      const Outgoing& one = outgoing_.front();
      append(reinterpret_cast<const std::byte*>(&one.head), sizeof one.head);
      const std::size_t begin = std::min(one.size_bytes, small_bytes);
      append(one.from, begin);
      if (begin < one.size_bytes) {
        rest_ = one.from + begin;
        rest_bytes_ = one.size_bytes - begin;
      }
      outgoing_.pop_front();
    }
  }
  void append(const std::byte* bytes, std::size_t size) { packed_.insert(packed_.end(), bytes, bytes + size); }

  // Returns false if nothing more can be taken now.
  [[nodiscard]] bool take_some() {
    if (!incoming_.empty() && incoming_.front().has_begun) return take_payload();
    if (num_held_ - taken_ < sizeof(Head) && !hold_more()) return false;
    if (num_held_ - taken_ < sizeof(Head)) return true;
    Head head;
    std::memcpy(&head, held_.data() + taken_, sizeof head);
    const bool is_next = head.kind == Head::ready  ? !awaited_.empty() && awaited_.front() == head.slot
                         : head.kind == Head::data ? !incoming_.empty() && incoming_.front().slot == head.slot
                                                   : false;
    is_out_of_turn_ = !is_next;
    if (!is_next) return false;
    taken_ += sizeof head;
    if (head.kind == Head::ready) {
      awaited_.pop_front();
    } else {
      incoming_.front().has_begun = true;
    }
    return true;
  }

  [[nodiscard]] bool take_payload() {
    Incoming& one = incoming_.front();
    if (taken_ == num_held_ && one.size_bytes >= held_.size()) {
      const std::size_t got = line_->receive(one.to, one.size_bytes);
      one.to += got;
      one.size_bytes -= got;
      if (got == 0) return false;
    } else {
      if (taken_ == num_held_ && !hold_more()) return false;
      const std::size_t count = std::min(one.size_bytes, num_held_ - taken_);
      std::memcpy(one.to, held_.data() + taken_, count);
      taken_ += count;
      one.to += count;
      one.size_bytes -= count;
    }
    if (one.size_bytes == 0) incoming_.pop_front();
    return true;
  }

  [[nodiscard]] bool hold_more() {
    std::copy(held_.begin() + static_cast<std::ptrdiff_t>(taken_),
              held_.begin() + static_cast<std::ptrdiff_t>(num_held_), held_.begin());
    num_held_ -= std::exchange(taken_, 0);
    const std::size_t got = line_->receive(held_.data() + num_held_, held_.size() - num_held_);
    num_held_ += got;
    return got > 0;
  }

  std::unique_ptr<RankLine> line_;
  std::deque<Outgoing> outgoing_{};
  std::vector<std::byte> packed_{};  // what is sent first of all
  std::size_t sent_ = 0;             // of packed_
  const std::byte* rest_ = nullptr;  // what is sent next
  std::size_t rest_bytes_ = 0;
  std::deque<std::uint64_t> awaited_{};  // slots for which the other end is not ready yet
  std::deque<Incoming> incoming_{};
  std::array<std::byte, small_bytes> held_{};  // what has come and was not asked for yet
  std::size_t taken_ = 0;
  std::size_t num_held_ = 0;
  bool is_out_of_turn_ = false;
};

/// Is the lines to all other ranks. Needs no thread: the lines move while somebody waits.
class ProvenLines final : public MeshLines {
 public:
  /// lines: by rank, nullptr for this one.
  explicit ProvenLines(std::vector<std::unique_ptr<RankLine>> lines) {
    for (auto& line : lines) {
      lines_.push_back(line ? std::make_unique<ProvenLine>(std::move(line)) : nullptr);
    }
  }

  [[nodiscard]] std::unique_ptr<Transfer> start(const void* from, std::size_t /*from_bytes*/, void* to,
                                                std::size_t /*to_bytes*/) override {
    return std::make_unique<ProvenTransfer>(*this, static_cast<const std::byte*>(from), static_cast<std::byte*>(to));
  }
  [[nodiscard]] bool is_closed(int rank) override { return line(rank).is_closed(); }
  void close() noexcept override {
    for (const auto& line : lines_) {
      if (line) line->hang_up();
    }
  }

 private:
  class ProvenTransfer final : public Transfer {
   public:
    ProvenTransfer(ProvenLines& lines, const std::byte* from, std::byte* to) : lines_(&lines), from_(from), to_(to) {}

    void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
      busy(peer).send(slot, from_ + offset, size_bytes);
    }
    void receive(int peer, std::uint64_t slot, std::size_t offset, std::size_t size_bytes) override {
      busy(peer).receive(slot, to_ + offset, size_bytes);
    }

    [[nodiscard]] bool wait(Time wake) override {
      while (true) {
        busy_.erase(std::remove_if(busy_.begin(), busy_.end(), [](ProvenLine* line) { return line->advance(); }),
                    busy_.end());
        if (busy_.empty()) return true;
        if (Deadline::Clock::now() >= wake) return false;
        polled_.clear();
        for (const ProvenLine* line : busy_) polled_.push_back({line->fd(), line->events(), 0});
        const timespec time = to_timespec(wake - Deadline::Clock::now());
        ::ppoll(polled_.data(), polled_.size(), &time, nullptr);
        for (std::size_t at = 0; at < busy_.size(); ++at) busy_[at]->look_at(polled_[at].revents);
      }
    }

   private:
    ProvenLine& busy(int peer) {
      ProvenLine& line = lines_->line(peer);
      if (std::find(busy_.begin(), busy_.end(), &line) == busy_.end()) busy_.push_back(&line);
      return line;
    }

    ProvenLines* lines_;
    const std::byte* from_;
    std::byte* to_;
    std::vector<ProvenLine*> busy_{};
    std::vector<pollfd> polled_{};
  };

  [[nodiscard]] ProvenLine& line(int rank) { return *lines_[static_cast<std::size_t>(rank)]; }

  std::vector<std::unique_ptr<ProvenLine>> lines_{};
};

}  // namespace detail
}  // namespace railyard::inline v0_1
