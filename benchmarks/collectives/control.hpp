// SPDX-License-Identifier: MIT
// What the driver of the benchmark `collectives` and the ranks of every contestant share: orders, answers, and the loop
// that measures. It is one code for all, so that nobody is measured in another way than the rest.
#pragma once

#include "railyard/core/detail/system.hpp"

#include <sched.h>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace bench {

constexpr int max_ranks = 8;
constexpr std::size_t max_samples = 512;

// Samples are timed one by one; with more than one call each, the sample is a batch, and its buffer is rewritten within
// the timed part: for buffers that cost nothing to rewrite.
struct Order {
  std::uint64_t bytes = 0;
  std::uint32_t samples = 0;  // none: go home
  std::uint32_t calls = 1;
};

// Lies in memory that the driver and the ranks of one group map.
struct Control {
  int size = 0;
  int cpu[max_ranks] = {};
  bool has_core_each = true;
  Order order{};
  alignas(64) std::atomic<std::uint32_t> turn{0};     // a futex: moves with every order
  alignas(64) std::atomic<std::uint32_t> answers{0};  // a futex: how many answers to all orders so far
  alignas(64) std::atomic<std::uint32_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> phase{0};
  alignas(64) std::atomic<bool> has_failed{false};
  char failure[1024] = {};
  double seconds[max_ranks][max_samples] = {};
};

// Is one rank of a contestant. buffer() takes back the buffer before.
class Member {
 public:
  Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  virtual ~Member() = default;
  virtual float* buffer(std::size_t count) = 0;
  virtual void all_reduce(float* data, std::size_t count) = 0;
};

inline void pin(const Control& control, int rank) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<std::size_t>(control.cpu[rank]), &cpus);
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) throw std::runtime_error{"sched_setaffinity failed"};
}

inline void barrier(Control& control) {
  const std::uint32_t phase = control.phase.load(std::memory_order_acquire);
  if (control.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(control.size)) {
    control.arrived.store(0);
    control.phase.fetch_add(1, std::memory_order_release);
    return;
  }
  int patience = control.has_core_each ? 20'000 : 0;
  while (control.phase.load(std::memory_order_acquire) == phase) {
    if (patience-- > 0) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      sched_yield();
    }
  }
}

// Every element is looked at: a contestant that is fast because it is wrong must not count.
inline void verify(Control& control, int rank, Member& member, float* data, std::size_t count) {
  std::fill_n(data, count, static_cast<float>(rank + 1));
  barrier(control);
  member.all_reduce(data, count);
  barrier(control);
  const auto sum = static_cast<float>(control.size * (control.size + 1) / 2);
  const auto wrong = std::find_if(data, data + count, [sum](float value) { return value != sum; });
  if (wrong != data + count) {
    throw std::runtime_error{fmt::format("element {} of {} is {} and should be {}", wrong - data, count, *wrong, sum)};
  }
}

inline void take_turn(Control& control, int rank, Member& member, float* data) {
  const Order order = control.order;
  const std::size_t count = order.bytes / sizeof(float);
  const auto value = static_cast<float>(rank + 1);
  verify(control, rank, member, data, count);
  for (std::uint32_t sample = 0; sample < order.samples; ++sample) {
    std::fill_n(data, count, value);
    barrier(control);
    const std::int64_t begin = railyard::detail::monotonic_ns();
    member.all_reduce(data, count);
    for (std::uint32_t call = 1; call < order.calls; ++call) {
      std::fill_n(data, count, value);
      member.all_reduce(data, count);
    }
    const std::int64_t end = railyard::detail::monotonic_ns();
    control.seconds[rank][sample] = static_cast<double>(end - begin) / 1e9 / order.calls;
    barrier(control);  // nobody writes while another is still being timed
  }
}

// Takes turns until sent home. Sleeps between them, so that the others have the cores to themselves.
inline void serve(Control& control, int rank, Member& member) {
  float* data = nullptr;
  std::uint64_t bytes = 0;
  for (std::uint32_t seen = 0;; ++seen) {
    while (control.turn.load() == seen) {
      railyard::detail::futex_wait(control.turn, seen, std::chrono::hours{1});
    }
    if (control.order.samples == 0) return;
    if (bytes != control.order.bytes) data = member.buffer(control.order.bytes / sizeof(float));
    bytes = control.order.bytes;
    take_turn(control, rank, member, data);
    railyard::detail::nudge(control.answers);
  }
}

// What a rank's process does: joins and serves; what goes wrong is written where the driver reads it.
template <class Join>
int run_rank(Control& control, int rank, const Join& join) {
  try {
    pin(control, rank);
    const auto member = join();
    serve(control, rank, *member);
    return 0;
  } catch (const std::exception& error) {
    if (!control.has_failed.exchange(true)) {
      std::snprintf(control.failure, sizeof control.failure, "rank %d: %s", rank, error.what());
    }
    railyard::detail::nudge(control.answers);
    return 1;
  }
}

}  // namespace bench
