// SPDX-License-Identifier: MIT
// Finds what a program leaves unordered on the fake device. The fakes may do one thing after the other where a real
// device does both at once; this looks at what streams and events promise alone, so that a missing wait is always
// found.
//
// Each stream has a clock that counts what was put on it and what it has waited for; the host has one of what it knows
// to be done. Two uses of the same memory, one of them a write, must be ordered by these clocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include <unistd.h>

namespace fake {

// By stream: how much of what was put on it is known to be done.
using OrderClock = std::vector<std::uint64_t>;

class Order {
 public:
  // That of this process: what a forked child inherits is nobody's.
  [[nodiscard]] static Order& of_process() {
    // Never destroyed: streams go on until the process ends.
    static auto& mutex = *new std::mutex;
    static auto& orders = *new std::map<pid_t, Order*>;
    const std::lock_guard lock{mutex};
    Order*& order = orders[::getpid()];
    if (order == nullptr) order = new Order;
    return *order;
  }

  // Something is put on a stream that uses memory.
  void use(std::size_t stream, const void* memory, std::size_t size_bytes, bool is_write) {
    const std::lock_guard lock{mutex_};
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t end = begin + size_bytes;
    OrderClock& now = begin_on(stream);
    for (auto at = uses_.begin(); at != uses_.end() && at->first < end;) {
      const Use& earlier = at->second;
      const bool overlaps = earlier.end > begin;
      const bool is_known = earlier.stream == stream || at_most(earlier.number, now, earlier.stream);
      if (overlaps && (is_write || earlier.is_write) && !is_known) tell(earlier, stream, is_write);
      const bool is_inside = at->first >= begin && earlier.end <= end;
      const bool says_no_more = is_write || (!earlier.is_write && earlier.stream == stream);
      at = is_inside && says_no_more ? uses_.erase(at) : std::next(at);
    }
    if (size_bytes > 0) uses_.emplace(begin, Use{end, stream, now[stream], is_write});
  }

  // The memory is another's from here on.
  void release(const void* memory, std::size_t size_bytes) {
    const std::lock_guard lock{mutex_};
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    for (auto at = uses_.lower_bound(begin); at != uses_.end() && at->first < begin + size_bytes;) at = uses_.erase(at);
  }

  // What an event stands for that is recorded on a stream now.
  [[nodiscard]] OrderClock record(std::size_t stream) {
    const std::lock_guard lock{mutex_};
    return begin_on(stream);
  }
  // What is put on the stream from here on comes after it.
  void wait(std::size_t stream, const OrderClock& event) {
    const std::lock_guard lock{mutex_};
    merge(clock_of(stream), event);
  }
  // The host knows that it is done.
  void know(const OrderClock& event) {
    const std::lock_guard lock{mutex_};
    merge(host_, event);
  }

  [[nodiscard]] unsigned long num_races() const noexcept { return num_races_; }

 private:
  struct Use {
    std::uintptr_t end = 0;
    std::size_t stream = 0;
    std::uint64_t number = 0;
    bool is_write = false;
  };

  static void merge(OrderClock& into, const OrderClock& other) {
    into.resize(std::max(into.size(), other.size()));
    for (std::size_t at = 0; at < other.size(); ++at) into[at] = std::max(into[at], other[at]);
  }
  [[nodiscard]] static bool at_most(std::uint64_t number, const OrderClock& clock, std::size_t stream) {
    return stream < clock.size() && number <= clock[stream];
  }
  OrderClock& clock_of(std::size_t stream) {
    clocks_.resize(std::max(clocks_.size(), stream + 1));
    clocks_[stream].resize(std::max(clocks_[stream].size(), stream + 1));
    return clocks_[stream];
  }
  // Whatever the host puts there comes after what it knows to be done.
  OrderClock& begin_on(std::size_t stream) {
    OrderClock& clock = clock_of(stream);
    merge(clock, host_);
    ++clock[stream];
    return clock;
  }

  // Ends the process, unless RAILYARD_FAKE_CUDA_RACES=count has them counted.
  void tell(const Use& earlier, std::size_t stream, bool is_write) {
    ++num_races_;
    const char* const wish = std::getenv("RAILYARD_FAKE_CUDA_RACES");
    if (wish != nullptr && std::strcmp(wish, "count") == 0) return;
    std::fprintf(stderr, "fake CUDA: stream %zu %s memory that stream %zu %s, and has not waited for that\n", stream,
                 is_write ? "writes to" : "reads", earlier.stream, earlier.is_write ? "writes to" : "reads");
    std::abort();
  }

  std::mutex mutex_;
  std::multimap<std::uintptr_t, Use> uses_;  // by where they begin
  std::vector<OrderClock> clocks_;           // by stream
  OrderClock host_;
  unsigned long num_races_ = 0;
};

}  // namespace fake
