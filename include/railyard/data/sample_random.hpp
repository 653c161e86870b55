// SPDX-License-Identifier: MIT
// Random numbers that belong to one sample of one epoch, whoever computes it and when. Data room.
#pragma once

#include "railyard/data/shuffle.hpp"

#include "railyard/core/version.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace railyard::inline v0_1 {

namespace detail {

// What everything random in one pass over a dataset is a function of.
struct EpochKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;

  // The seed of one use in this epoch, such as that of an operation.
  [[nodiscard]] constexpr std::uint64_t derive(std::uint64_t use) const noexcept {
    return derive_seed(derive_seed(seed, epoch), use);
  }
  // The seed of an order in this epoch, from the seed that the user gave to the operation.
  [[nodiscard]] constexpr std::uint64_t order_seed(std::uint64_t seed_of_operation) const noexcept {
    return derive_seed(derive(~std::uint64_t{0}), seed_of_operation);  // a use that no operation has
  }
};

// The seed of one sample in one use.
[[nodiscard]] constexpr std::uint64_t seed_of_sample(std::uint64_t seed, std::uint64_t id,
                                                     std::uint64_t sibling) noexcept {
  const std::uint64_t of_id = derive_seed(seed, id);
  return sibling == 0 ? of_id : derive_seed(of_id, sibling);
}

}  // namespace detail

/// Draws the random numbers of one sample in one operation: a function of the seed, the epoch and the sample's id
/// alone (behind flat_map() of its number among those made of one sample, too), so that an augmentation is the same for
/// any number of workers and threads. Serves the distributions of <random> as a generator too, whose results however
/// differ between standard libraries.
class SampleRandom {
 public:
  using result_type = std::uint64_t;

  explicit SampleRandom(std::uint64_t seed) noexcept : state_(seed) {}

  [[nodiscard]] static constexpr result_type min() noexcept { return 0; }
  [[nodiscard]] static constexpr result_type max() noexcept { return std::numeric_limits<result_type>::max(); }
  [[nodiscard]] result_type operator()() noexcept { return detail::mix_bits(state_++); }

  /// Draws a whole number below limit, which is above 0, each equally often.
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) noexcept { return detail::Draws{(*this)()}.below(limit); }
  /// Draws a number from [from, to), evenly.
  [[nodiscard]] double uniform(double from = 0, double to = 1) noexcept {
    return from + (to - from) * static_cast<double>((*this)() >> 11U) * 0x1p-53;
  }
  /// Draws a number of the normal distribution.
  [[nodiscard]] double normal(double mean = 0, double deviation = 1) noexcept {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // Box and Muller, 1958
    return mean + deviation * radius * std::cos(2 * std::numbers::pi * uniform());
  }
  /// Is true in so many of all cases.
  [[nodiscard]] bool chance(double probability) noexcept { return uniform() < probability; }

 private:
  std::uint64_t state_;
};

}  // namespace railyard::inline v0_1
