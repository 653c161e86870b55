// SPDX-License-Identifier: MIT
// What two cores can do at best. Large buffers: the sum of both into both, each rank one half, without any waiting. A
// few bytes: one line of cache each way.
#include "contestants.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>

namespace bench {
namespace {

[[gnu::always_inline]] inline void sum_into_both(float* __restrict one, float* __restrict other, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) one[i] = other[i] = one[i] + other[i];
}

using Sum = void (*)(float*, float*, std::size_t);

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void sum_512(float* one, float* other, std::size_t count) {
  sum_into_both(one, other, count);
}
__attribute__((target("avx2"))) void sum_256(float* one, float* other, std::size_t count) {
  sum_into_both(one, other, count);
}
#endif
void sum_128(float* one, float* other, std::size_t count) { sum_into_both(one, other, count); }

Sum widest_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_512;
  if (__builtin_cpu_supports("avx2")) return sum_256;
#endif
  return sum_128;
}

// One line by which a rank shows a few values to the other.
struct alignas(128) Line {
  std::atomic<std::uint64_t> step{0};
  std::array<float, 8> values{};
};

class LimitMember : public Member {
 public:
  LimitMember(float* space, std::size_t distance, int rank)
      : lines_(reinterpret_cast<Line*>(space)),
        data_(space + lines_bytes / sizeof(float)),
        distance_(distance),
        rank_(rank) {}

  float* buffer(std::size_t count) override {
    if (count <= 8) return own_.data();
    if (count > distance_ || count % 32 != 0) throw std::runtime_error{"no such buffer"};
    return data_ + static_cast<std::size_t>(rank_) * distance_;
  }

  void all_reduce(float* data, std::size_t count) override {
    if (count <= 8) return swap(data, count);
    const std::size_t half = count / 2;
    float* begin = data_ + static_cast<std::size_t>(rank_) * half;
    sum_(begin, begin + distance_, half);
  }

 private:
  // Each rank has two lines in turn: it comes back to the first when the other has read it and shown its second.
  void swap(float* data, std::size_t count) {
    ++step_;
    Line& own = lines_[rank_ * 2 + static_cast<int>(step_ % 2)];
    std::copy_n(data, count, own.values.begin());
    own.step.store(step_, std::memory_order_release);
    Line& other = lines_[(1 - rank_) * 2 + static_cast<int>(step_ % 2)];
    while (other.step.load(std::memory_order_acquire) < step_) {
    }
    for (std::size_t i = 0; i < count; ++i) data[i] += other.values[i];
  }

  static constexpr std::size_t lines_bytes = 4096;
  Line* lines_;
  float* data_;
  std::size_t distance_;
  int rank_;
  std::uint64_t step_ = 0;
  std::array<float, 8> own_{};
  Sum sum_ = widest_sum();
};

}  // namespace

std::unique_ptr<Member> join_limit(float* space, std::size_t distance, int rank) {
  return std::make_unique<LimitMember>(space, distance, rank);
}

}  // namespace bench
