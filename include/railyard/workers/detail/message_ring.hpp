// SPDX-License-Identifier: MIT
// A ring of bytes in shared memory that carries one worker's messages to its supervisor. Workers room.
#pragma once

#include "railyard/core/detail/system.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

inline constexpr std::size_t max_message_bytes = std::size_t{1} << 20U;
inline constexpr std::size_t ring_bytes = std::size_t{1} << 21U;

/// Wakes the supervisor, but only while it sleeps: a stream of messages costs one system call per nap, not per message.
struct Bell {
  std::atomic<std::uint32_t> armed{0};

  void ring_if_armed(int event_fd) noexcept {
    if (armed.load() != 0 && armed.exchange(0) != 0) ring(event_fd);
  }
  static void ring(int event_fd) noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_fd, &one, sizeof one);
  }
};

/// Says what a record of the ring is. skip: nothing, up to the ring's beginning.
enum class RecordKind : std::uint32_t { message, exit, skip };

/// Holds the ring's positions, which only grow. Whoever dies in the middle of a write has not moved head: the record
/// is absent, and everything before it is there.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> head{0};  ///< written by the worker
  alignas(64) std::atomic<std::uint64_t> tail{0};  ///< written by the supervisor
  alignas(64) std::atomic<std::uint32_t> writer_waits{0};
};

struct Record {
  RecordKind kind = RecordKind::message;
  std::vector<std::byte> bytes{};
};

/// Views a ring. One thread writes at a time and one thread reads.
class MessageRing {
 public:
  MessageRing(RingState& state, std::byte* bytes) noexcept : state_(&state), bytes_(bytes) {}

  /// Appends a record, or returns false if there is no room.
  [[nodiscard]] bool try_write(RecordKind kind, std::span<const std::byte> payload) noexcept {
    std::uint64_t head = state_->head.load(std::memory_order_relaxed);
    const std::uint64_t tail = state_->tail.load();
    const std::uint64_t to_end = ring_bytes - head % ring_bytes;
    if (head == tail && to_end < ring_bytes - rewind_above && to_end + room_of(payload.size()) <= ring_bytes) {
      put(head, Header{.size = static_cast<std::uint32_t>(to_end), .kind = RecordKind::skip});
      head += to_end;  // touches few pages while the reader keeps up
    }
    if (head - tail + room_of(payload.size()) > ring_bytes) return false;
    put(head, Header{.size = static_cast<std::uint32_t>(payload.size()), .kind = kind});
    copy_in(head + sizeof(Header), payload);
    state_->head.store(head + room_of(payload.size()));
    return true;
  }

  /// Sleeps until the reader has taken something, for at most the given time. The reader must have been told before.
  void wait_for_room(std::size_t payload_bytes, std::chrono::nanoseconds at_most) noexcept {
    state_->writer_waits.store(1);
    const std::uint64_t used = state_->head.load(std::memory_order_relaxed) - state_->tail.load();
    if (used + room_of(payload_bytes) <= ring_bytes) return;
    futex_wait(state_->writer_waits, 1, at_most);
  }

  /// Takes the oldest record, if there is one.
  [[nodiscard]] std::optional<Record> read() {
    const std::uint64_t head = state_->head.load();
    std::uint64_t tail = state_->tail.load(std::memory_order_relaxed);
    while (tail != head) {
      const Header header = header_at(tail);
      if (header.kind == RecordKind::skip && tail % ring_bytes + header.size == ring_bytes) {
        tail += header.size;
        continue;
      }
      if (header.size > max_message_bytes || header.kind >= RecordKind::skip) break;  // the worker has run wild
      Record record{.kind = header.kind, .bytes = std::vector<std::byte>(header.size)};
      copy_out(tail + sizeof(Header), record.bytes);
      release(tail + room_of(header.size));
      return record;
    }
    if (tail != state_->tail.load(std::memory_order_relaxed) || tail != head) release(head);
    return std::nullopt;
  }

  [[nodiscard]] bool has_records() const noexcept {
    return state_->head.load() != state_->tail.load(std::memory_order_relaxed);
  }

 private:
  struct Header {
    std::uint32_t size = 0;
    RecordKind kind = RecordKind::message;
  };
  static constexpr std::uint64_t rewind_above = 32U << 10U;

  static constexpr std::uint64_t room_of(std::size_t payload) noexcept {
    return (sizeof(Header) + payload + 7U) / 8U * 8U;
  }

  // Headers are aligned to 8 bytes and never wrap.
  void put(std::uint64_t at, Header header) noexcept { std::memcpy(bytes_ + at % ring_bytes, &header, sizeof header); }
  [[nodiscard]] Header header_at(std::uint64_t at) const noexcept {
    Header header;
    std::memcpy(&header, bytes_ + at % ring_bytes, sizeof header);
    return header;
  }

  void copy_in(std::uint64_t at, std::span<const std::byte> payload) noexcept {
    if (payload.empty()) return;
    const std::size_t first = std::min<std::size_t>(payload.size(), ring_bytes - at % ring_bytes);
    std::memcpy(bytes_ + at % ring_bytes, payload.data(), first);
    if (first < payload.size()) std::memcpy(bytes_, payload.data() + first, payload.size() - first);
  }
  void copy_out(std::uint64_t at, std::span<std::byte> payload) const noexcept {
    if (payload.empty()) return;
    const std::size_t first = std::min<std::size_t>(payload.size(), ring_bytes - at % ring_bytes);
    std::memcpy(payload.data(), bytes_ + at % ring_bytes, first);
    if (first < payload.size()) std::memcpy(payload.data() + first, bytes_, payload.size() - first);
  }

  void release(std::uint64_t tail) noexcept {
    state_->tail.store(tail);
    if (state_->writer_waits.load() == 0) return;
    state_->writer_waits.store(0);
    futex_wake(state_->writer_waits);
  }

  RingState* state_;
  std::byte* bytes_;
};

}  // namespace detail
}  // namespace railyard::inline v0_1
