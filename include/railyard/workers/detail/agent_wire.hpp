// SPDX-License-Identifier: MIT
// What the process that leads and those that follow say to each other. Workers room.
#pragma once

#include "railyard/workers/detail/worker_link.hpp"

#include "railyard/core/detail/system.hpp"
#include "railyard/core/detail/wire.hpp"
#include "railyard/core/scaling.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace railyard::inline v0_1 {
namespace detail {

/// Names what the leader sends. Ranks in its messages count the workers of the process they go to.
enum class Order : std::uint8_t {
  tell = 1,      ///< a text for the program
  start = 2,     ///< workers, as a StartOrder says
  stop = 3,      ///< these set the flags on the workers' pages
  leave = 4,     //
  resize = 5,    //
  abort = 6,     ///< a reason
  kill = 7,      //
  stacks = 8,    ///< answered by News::stacks
  fetch = 9,     ///< a FetchOrder for a piece of a snapshot, answered by News::fetched or News::not_fetched
  hold = 10,     ///< rank and slot of a snapshot
  release = 11,  ///< likewise
  request = 12,  ///< a number, and what the RequestHandler is given; answered by News::answered or News::not_answered
  give_up = 13,  ///< the number of a request whose answer is not waited for any longer
  keeps = 14,    ///< a number, and SlotOrders: whether workers that are started again find them; answered likewise
  alive = 20,    ///< nothing: a sign of life
  note = 21,     ///< a text to be remembered, for whoever leads when the leader is lost
  refuse = 22    ///< whether a setting is to blame, and why: the processes do not make a run
};

/// How often a leader gives a sign of life to who may take it for lost after so long a silence.
[[nodiscard]] inline std::chrono::nanoseconds sign_interval(std::chrono::nanoseconds silence_limit) noexcept {
  return std::min<std::chrono::nanoseconds>(silence_limit / 4, std::chrono::seconds{1});
}

/// Names what a follower sends.
enum class News : std::uint8_t {
  started = 64,       ///< the workers exist: of which generation
  refused = 65,       ///< they cannot be made: of which generation, whether a setting is to blame, and why
  event = 66,         ///< a GroupEvent
  pages = 67,         ///< of all its workers; also the sign that it is alive
  stacks = 68,        ///< one text for each worker
  fetched = 69,       ///< the number of the order, and so many bytes
  not_fetched = 70,   ///< the number of the order, and why
  answered = 71,      ///< the number of the request or question, and the answer
  not_answered = 72,  ///< the number of the request or question, and why
  progress = 73,      ///< the number of the request, whose handler has read from a snapshot
};

/// Says where a process's workers stand among all.
struct GroupLayout {
  std::uint32_t generation = 0;  ///< counts the starts of the workers
  std::int32_t first_rank = 0;
  std::int32_t num_workers = 1;  ///< of this process
  std::int32_t world_size = 1;
  std::int32_t first_local_rank = 0;
  std::int32_t local_size = 1;  ///< workers of this host
  std::int32_t node = 0;
  std::int32_t num_nodes = 1;

  friend bool operator==(const GroupLayout&, const GroupLayout&) noexcept = default;
};

/// Puts the layout before the briefing: a worker learns of both in one piece.
[[nodiscard]] inline std::string brief(const GroupLayout& layout, std::string_view briefing) {
  WireWriter writer;
  writer.put(layout);
  writer.put_rest(std::as_bytes(std::span{briefing}));
  return writer.text();
}

struct StartOrder {
  GroupLayout layout{};
  std::int64_t silence_limit_ns = 0;
  std::string briefing{};
  std::string parts{};  ///< of each process, as the leader counts them: '1' if it makes any of these workers, else '0'

  [[nodiscard]] std::vector<std::byte> encode() const {
    WireWriter writer;
    writer.put(layout);
    writer.put(silence_limit_ns);
    writer.put_text(briefing);
    writer.put_text(parts);
    return writer.bytes();
  }
  [[nodiscard]] static StartOrder decode(std::span<const std::byte> bytes) {
    WireReader reader{bytes};
    StartOrder order{.layout = reader.take<GroupLayout>()};
    order.silence_limit_ns = reader.take<std::int64_t>();
    order.briefing = reader.take_text();
    order.parts = reader.take_text();
    return order;
  }
};

struct SlotOrder {
  std::int32_t rank = 0;
  std::int32_t slot = 0;
};

struct FetchOrder {
  std::uint64_t number = 0;
  SlotOrder of{};
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = 0;
};

/// Is what a WorkerPage shows.
struct PageValues {
  std::uint64_t samples = 0;
  std::uint64_t steps = 0;
  std::int64_t epoch = -1;
  std::uint64_t epoch_size = 0;
  std::uint64_t epoch_done = 0;
  std::uint64_t collectives = 0;
  std::int64_t stepped_for_ns = -1;  ///< since its last step ended; -1 before the first
  std::int64_t waiting_for_ns = -1;  ///< clocks of two hosts have nothing in common; -1 while it does not wait

  [[nodiscard]] static PageValues of(const WorkerPage& page) noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    const std::int64_t since = page.waiting_since_ns.load(relaxed);
    const std::int64_t stepped = page.stepped_at_ns.load(relaxed);
    return {.samples = page.samples.load(relaxed),
            .steps = page.steps.load(relaxed),
            .epoch = page.epoch.load(relaxed),
            .epoch_size = page.epoch_size.load(relaxed),
            .epoch_done = page.epoch_done.load(relaxed),
            .collectives = page.collectives.load(relaxed),
            .stepped_for_ns = stepped == 0 ? -1 : monotonic_ns() - stepped,
            .waiting_for_ns = since == 0 ? -1 : monotonic_ns() - since};
  }
  void show_on(WorkerPage& page) const noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    page.samples.store(samples, relaxed);
    page.steps.store(steps, relaxed);
    page.epoch.store(epoch, relaxed);
    page.epoch_size.store(epoch_size, relaxed);
    page.epoch_done.store(epoch_done, relaxed);
    page.collectives.store(collectives, relaxed);
    page.stepped_at_ns.store(stepped_for_ns < 0 ? 0 : monotonic_ns() - stepped_for_ns, relaxed);
    page.waiting_since_ns.store(waiting_for_ns < 0 ? 0 : monotonic_ns() - waiting_for_ns, relaxed);
  }
};

[[nodiscard]] inline std::vector<std::byte> encode_event(const GroupEvent& event) {
  WireWriter writer;
  writer.put(static_cast<std::uint8_t>(event.index()));
  std::visit(
      [&writer](const auto& one) {
        using Kind = std::remove_cvref_t<decltype(one)>;
        if constexpr (requires { one.rank; }) writer.put(static_cast<std::int32_t>(one.rank));
        if constexpr (std::is_same_v<Kind, MessageEvent>) writer.put_rest(one.bytes);
        if constexpr (std::is_same_v<Kind, OutputEvent>) {
          writer.put(static_cast<std::uint8_t>(one.is_error));
          writer.put_text(one.line);
        }
        if constexpr (std::is_same_v<Kind, ExitEvent>) writer.put_rest(encode_exit(one.exit));
        if constexpr (std::is_same_v<Kind, SignalEvent>) writer.put(static_cast<std::int32_t>(one.signal));
        if constexpr (requires { one.message; }) writer.put_text(one.message);
      },
      event);
  return writer.bytes();
}

/// first_rank: of the process from which the event comes. Throws: DataError if it is none, or not of its workers.
[[nodiscard]] inline GroupEvent decode_event(std::span<const std::byte> bytes, const GroupLayout& layout) {
  WireReader reader{bytes};
  const auto index = reader.take<std::uint8_t>();
  const auto take_rank = [&] {
    const auto rank = reader.take<std::int32_t>();
    if (rank < 0 || rank >= layout.num_workers) {
      throw DataError{compose("it tells of its worker {}, and has {}", rank, layout.num_workers)};
    }
    return layout.first_rank + rank;
  };
  switch (index) {
    case 0: {
      MessageEvent event{.rank = take_rank()};
      const auto rest = reader.take_rest();
      event.bytes.assign(rest.begin(), rest.end());
      return event;
    }
    case 1: {
      OutputEvent event{.rank = take_rank(), .is_error = reader.take<std::uint8_t>() != 0};
      event.line = reader.take_text();
      return event;
    }
    case 2: {
      ExitEvent event{.rank = take_rank()};
      event.exit = decode_exit(reader.take_rest());
      return event;
    }
    case 3: {
      SilenceEvent event{.rank = take_rank()};
      event.message = reader.take_text();
      return event;
    }
    case 4:
      return SignalEvent{.signal = reader.take<std::int32_t>()};
    case 5:
      return BrokenEvent{.message = reader.take_text()};
    default:
      throw DataError{compose("it tells of an event of the unknown kind {}", static_cast<int>(index))};
  }
}

/// Whether what encode_event() has written is a SignalEvent, which is of the process and not of its workers.
[[nodiscard]] inline bool is_signal(std::span<const std::byte> bytes) {
  return !bytes.empty() && bytes.front() == std::byte{4};
}

static_assert(std::is_same_v<std::variant_alternative_t<4, GroupEvent>, SignalEvent>);
static_assert(std::is_same_v<std::variant_alternative_t<5, GroupEvent>, BrokenEvent>);

}  // namespace detail
}  // namespace railyard::inline v0_1
