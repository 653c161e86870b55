// SPDX-License-Identifier: MIT
// Finds weights that are no longer the same on all ranks, by a look at a part of them in each step. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"
#include "railyard/torch/tensor.hpp"

#include "railyard/callbacks/detail/number.hpp"
#include "railyard/core/detail/compose.hpp"
#include "railyard/core/error.hpp"
#include "railyard/train/worker.hpp"

#include <ATen/core/ivalue.h>  // first: clang 14 rejects the rest of LibTorch 1.13 without it

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace railyard::inline v0_1 {

namespace detail {

// Averaged gradients are equal on all ranks, bit for bit, and so weights stay equal that nothing but optimizers of
// equal settings writes to. Equal bits are not asked for: processors of two kinds, and loops that are cut for other
// numbers of threads, may round an update otherwise, and such differences grow only as the square root of the steps.
// So ranks compare one number that rounding hardly moves, made of each weight's size and of its projection on fixed
// pseudo-random numbers: any change of direction moves that by about as much as it is of the size. A sum would not do:
// of what is drawn around zero it is nearly nothing, whatever is done to the elements.
//
// In which turn is looked at what is a function of the step, and what is told rides on the step's first exchange.
// Weights that an optimizer keeps once per host are looked at as all others: hosts may part. Buffers are not: those
// that are to be equal are made so after each exchange.
class WeightWatch {
 public:
  // A step costs some operations for each weight and sample, so to look at one of so many costs far below 1% of it.
  // Thousands of small weights take more turns.
  static constexpr std::int64_t most_turns = 64;
  // More of them would add up to more rounding, and cost more to gather.
  static constexpr std::size_t most_parts = 64;
  // Roundings of single precision move the number by some 1e-7 at first and 1e-5 after very many steps. One step of
  // Adam with a rate of 1e-5 on one rank alone moves it by 5e-4, where weights are of the size 0.02.
  static constexpr double tolerance = 1e-4;

  // Whether ranks have seen other weights. Each has added the cosine and the sine of its number to the sums: they are
  // the longest together when all numbers are the same. Squares of the numbers themselves would cancel among many
  // ranks. The difference of one rank to the others counts as much among many as among two.
  [[nodiscard]] static bool are_apart(double cosines, double sines, std::size_t num_ranks) noexcept {
    const auto count = static_cast<double>(num_ranks);
    const double length = std::hypot(cosines, sines);
    const double rounding = count * count * count * 4e-16;  // at most, of sums in any order
    return (count - length) * (count + length) > (count - 1) * tolerance * tolerance + rounding;
  }

  // Divides the weights of all models among turns. What was seen of others counts no more.
  void reset(const std::vector<GradientSlot>& slots) {
    number_ = 0;
    seen_.clear();
    turns_.clear();
    std::int64_t count = 0;
    for (const GradientSlot& slot : slots) count += count_of(slot);
    const auto num_cut_short = static_cast<std::int64_t>(slots.size() / most_parts) + 1;  // of turns, by most_parts
    const std::int64_t num_turns = std::max(most_turns - num_cut_short, most_turns / 2);
    const std::int64_t most_elements = std::max(least_elements, (count + num_turns - 1) / num_turns);
    std::int64_t room = 0;
    for (std::size_t index = 0; index < slots.size(); ++index) {
      const std::int64_t end = count_of(slots[index]);
      for (std::int64_t begin = 0; begin < end;) {
        if (room == 0 || turns_.back().size() == most_parts) {
          turns_.emplace_back();
          room = most_elements;
        }
        const std::int64_t size = std::min(room, end - begin);
        turns_.back().push_back({index, begin, begin + size});
        begin += size;
        room -= size;
      }
    }
  }

  // Looks at the weights whose turn it is, before anything is done with them in the step.
  void look(const std::vector<GradientSlot>& slots, std::uint64_t step) {
    number_ = 0;
    seen_.clear();
    if (turns_.empty()) return;
    turn_ = step % turns_.size();
    round_ = static_cast<std::uint32_t>(step / turns_.size());
    for (const Part& part : turns_[turn_]) {
      const GradientSlot& slot = slots[part.index];
      const bool is_there = count_of(slot) >= part.end;  // whoever has moved or converted it will be told so
      const at::Tensor& weights = slot.parameter;
      if (!is_there) {
        seen_.emplace_back();
      } else {
        seen_.push_back(weights.is_complex() ? look_at(as_real(weights.detach()), part) : look_at(weights, part));
      }
      number_ += seen_.back().number();
    }
  }

  // What this rank has seen in this step.
  [[nodiscard]] double number() const noexcept { return number_; }

  // All ranks call it when they have seen other weights. Throws: Error, so that a run with failures left goes on from
  // weights that were equal, on all ranks.
  [[noreturn]] void refuse(Worker& worker, const std::vector<GradientSlot>& slots, std::uint64_t step) const {
    std::vector<double> mine;
    for (const Sight& seen : seen_) mine.insert(mine.end(), {seen.number(), seen.sum / seen.count, seen.size()});
    const auto all = gather_values(worker, mine);
    const auto size = static_cast<std::size_t>(worker.world_size());
    Difference most;
    std::size_t which = 0;
    for (std::size_t at = 0; at < seen_.size(); ++at) {
      std::vector<double> numbers;
      for (std::size_t rank = 0; rank < size; ++rank) numbers.push_back(all[rank * mine.size() + 3 * at]);
      const Difference difference = difference_of(numbers);
      if (difference.distance <= most.distance) continue;
      most = difference;
      which = at;
    }
    const auto told = [&](std::size_t rank) {
      const double* const of_rank = &all[rank * mine.size() + 3 * which];
      return compose("{:.9g} (root mean square {:.9g})", of_rank[1], of_rank[2]);
    };
    const Part& part = turns_[turn_][which];
    throw Error{compose(
        "backward() on rank {}/{}: when step {} began, the parameter \"{}\" had other values on rank {} than on rank "
        "{}: its elements {} to {} have the mean {} there and {} here. All ranks get the same gradients, so in the "
        "last {} steps something has written to it on some ranks alone, such as an assignment in place, or their "
        "optimizers have other settings: do the same on all ranks, or set ModelOptions::compare_weights to false if "
        "weights are meant to differ",
        worker.rank(), worker.world_size(), step, slots[part.index].name, most.rank, most.other, part.begin,
        part.end - 1, told(most.rank), told(most.other), turns_.size())};
  }

 private:
  static constexpr std::int64_t least_elements = 256;

  // Elements begin to end of a slot's parameter, as real numbers.
  struct Part {
    std::size_t index = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  // What is seen of a part.
  struct Sight {
    double projection = 0;
    double squares = 0;
    double sum = 0;
    double count = 1;
    double digits = 1;  // a half type's last digit is worth more

    [[nodiscard]] double size() const { return std::sqrt(squares / count); }

    // Moves by the relative difference of what it is made of; of what vanishes, which does so otherwise with another
    // rounding, by the difference to `least`. It is 0 where all elements are.
    [[nodiscard]] double number() const {
      constexpr double least = 1e-4;
      constexpr double not_finite = 100;
      if (!is_finite(squares)) return not_finite;
      return (projection / (std::sqrt(count) * (size() + least)) + std::log1p(size() / least)) * digits;
    }
  };

  struct Difference {
    double distance = 0;
    std::size_t rank = 0;
    std::size_t other = 0;
  };

  // The rank whose number is farthest from that of the rank which has most of the others near it.
  [[nodiscard]] static Difference difference_of(const std::vector<double>& numbers) {
    Difference found;
    double least = 0;
    for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
      double total = 0;
      for (const double number : numbers) total += std::abs(number - numbers[rank]);
      if (rank > 0 && total >= least) continue;
      least = total;
      found.other = rank;
    }
    for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
      const double distance = std::abs(numbers[rank] - numbers[found.other]);
      if (distance <= found.distance) continue;
      found.distance = distance;
      found.rank = rank;
    }
    return found;
  }

  // Elements of a slot that ranks can compare at next to no cost.
  [[nodiscard]] static std::int64_t count_of(const GradientSlot& slot) {
    const at::Tensor& parameter = slot.parameter;
    if (!parameter.is_cpu() || parameter.layout() != c10::kStrided) return 0;
    switch (c10::toRealValueType(parameter.scalar_type())) {
      case at::ScalarType::Float:
      case at::ScalarType::Double:
      case at::ScalarType::Half:
      case at::ScalarType::BFloat16:
        return slot.real_count();
      default:
        return 0;
    }
  }

  [[nodiscard]] Sight look_at(const at::Tensor& numbers, const Part& part) const {
    switch (numbers.scalar_type()) {
      case at::ScalarType::Float:
        return look_at<float>(numbers, part);
      case at::ScalarType::Double:
        return look_at<double>(numbers, part);
      case at::ScalarType::Half:
        return look_at<at::Half>(numbers, part);
      case at::ScalarType::BFloat16:
        return look_at<at::BFloat16>(numbers, part);
      default:
        return {};
    }
  }

  // Source: G. Marsaglia, Xorshift RNGs, 2003. Shifts alone: this is done for each element.
  static void advance(std::uint32_t& state) noexcept {
    state ^= state << 13U;
    state ^= state >> 17U;
    state ^= state << 5U;
  }

  // A pseudo-random number that is never 0.
  [[nodiscard]] static std::uint32_t hash_of(std::uint32_t number) noexcept {
    number = (number ^ (number >> 16U)) * 0x9e3779b1U;
    number = (number ^ (number >> 15U)) * 0x85ebca77U;
    return std::max(number ^ (number >> 16U), 1U);
  }

  // What an element is multiplied by: between 1 and 2, or between -2 and -1, so that two elements that change places
  // are told apart as well.
  [[nodiscard]] static double factor_of(std::uint32_t state) noexcept {
    constexpr std::uint32_t one = 0x3f800000;              // as a float
    constexpr std::uint32_t sign_and_digits = 0x807fffff;  // of a float
    return static_cast<double>(std::bit_cast<float>(one | (state & sign_and_digits)));
  }

  template <class T>
  [[nodiscard]] Sight look_at(const at::Tensor& numbers, const Part& part) const {
    constexpr std::size_t num_lanes = 4;  // which do not wait for each other
    std::array<double, num_lanes> projections{};
    std::array<double, num_lanes> squares{};
    std::array<double, num_lanes> sums{};
    std::array<std::uint32_t, num_lanes> states{};
    const std::uint32_t seed = hash_of(hash_of(static_cast<std::uint32_t>(part.index)) + round_);
    for (std::uint32_t lane = 0; lane < num_lanes; ++lane) states[lane] = hash_of(seed + lane);
    const T* data = numbers.template data_ptr<T>();
    const auto add = [&](std::size_t lane, const T& element) {
      const auto value = static_cast<double>(element);
      advance(states[lane]);
      projections[lane] += value * factor_of(states[lane]);
      squares[lane] += value * value;
      sums[lane] += value;
    };
    std::int64_t at = part.begin;
    if (numbers.is_non_overlapping_and_dense()) {  // in the order of memory, which is the same on all ranks
      for (; at + static_cast<std::int64_t>(num_lanes) <= part.end; at += num_lanes) {
        for (std::size_t lane = 0; lane < num_lanes; ++lane) add(lane, data[at + static_cast<std::int64_t>(lane)]);
      }
      for (; at < part.end; ++at) add(0, data[at]);
    } else {
      for (; at < part.end; ++at) add(0, data[offset_of(numbers, at, numbers.dim())]);
    }
    const auto total = [](const std::array<double, num_lanes>& of) { return (of[0] + of[1]) + (of[2] + of[3]); };
    return {.projection = total(projections),
            .squares = total(squares),
            .sum = total(sums),
            .count = static_cast<double>(part.end - part.begin),
            .digits = sizeof(T) == 2 ? 1.0 / 64 : 1.0};
  }

  std::vector<std::vector<Part>> turns_{};
  std::size_t turn_ = 0;
  std::uint32_t round_ = 0;    // a change that one projection hardly shows is shown by that of another round
  std::vector<Sight> seen_{};  // by part of this turn
  double number_ = 0;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
