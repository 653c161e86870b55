// SPDX-License-Identifier: MIT
// The concept of a metric whose parts are sums, so that it can be put together over any number of workers. Core room.
#pragma once

#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/core/stateful.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace railyard::inline v0_1 {

/// Collects samples in sums and tells a value of them.
///
/// Laws: replacing sums() by their sum, element by element, over metrics made alike gives the metric of all their
/// samples, and so does merge(). Where the sums are counts, that is exact up to 2^53, whoever has seen which samples.
template <class M>
concept SummedMetric = Stateful<M> && requires(M& metric, const M& other) {
  { metric.sums() } -> std::convertible_to<std::span<double>>;
  { other.sums() } -> std::convertible_to<std::span<const double>>;
  { other.value() } -> std::convertible_to<double>;
  metric.merge(other);
  metric.reset();
};

namespace detail {

/// Throws: ConfigError if two metrics were not made alike.
inline void add_sums(std::span<double> to, std::span<const double> sums, std::string_view what) {
  if (to.size() != sums.size()) {
    throw ConfigError{
        compose("a {} of {} sums cannot take in one of {}: make both of the same size", what, to.size(), sums.size())};
  }
  for (std::size_t at = 0; at < sums.size(); ++at) to[at] += sums[at];
}

/// Returns the sums of a metric of that name as a state, each rank's own. They must stay where they are while it is
/// read.
[[nodiscard]] inline State state_of_sums(std::span<const double> sums, std::string_view what) {
  State state;
  state.values.set("metric", std::string{what});
  state.is_own = true;
  state.tensors.push_back({.name = "sums",
                           .dtype = Dtype::f64,
                           .shape = {static_cast<std::int64_t>(sums.size())},
                           .read = [sums](std::int64_t begin, std::int64_t end, std::byte* to) {
                             std::memcpy(to, sums.data() + begin,
                                         static_cast<std::size_t>(end - begin) * sizeof(double));
                           }});
  return state;
}
/// Throws: DataError if the state is another metric's, or has another number of sums.
inline void load_sums(std::span<double> sums, const State& state, std::string_view what) {
  const Value* metric = state.values.find("metric");  // older checkpoints do not say it
  if (metric != nullptr && metric->as<std::string>() != what) {
    throw DataError{
        compose("the state of {} was given to {}: load what one like it has saved", metric->as<std::string>(), what)};
  }
  const StateTensor* saved = state.find_tensor("sums");
  if (saved == nullptr || saved->dtype != Dtype::f64 || saved->count() != static_cast<std::int64_t>(sums.size())) {
    throw DataError{compose("a {} has {} sums and was given a state of {}: load what one of the same size has saved",
                            what, sums.size(), saved == nullptr ? 0 : saved->count())};
  }
  saved->read(0, saved->count(), reinterpret_cast<std::byte*>(sums.data()));
}

/// Returns 0 for a part of nothing, as scikit-learn does.
[[nodiscard]] inline double ratio_of(double part, double whole) noexcept { return whole == 0 ? 0 : part / whole; }

}  // namespace detail
}  // namespace railyard::inline v0_1
