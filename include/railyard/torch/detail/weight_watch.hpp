// SPDX-License-Identifier: MIT
// Finds weights that are no longer the same on all ranks, by a look at a part of them in each step. Torch room.
#pragma once

#include "railyard/torch/detail/agreement.hpp"
#include "railyard/torch/detail/gradient_slot.hpp"

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
// So ranks compare one number that rounding hardly moves, made of each weight's relative sum and of its size.
//
// In which turn is looked at what is a function of the step, and what is told rides on the step's first exchange.
// Weights that an optimizer keeps once per host are looked at as all others: hosts may part. Buffers are not: those
// that are to be equal are made so after each exchange.
class WeightWatch {
 public:
  // A step costs some operations for each weight and sample, so to look at one of so many costs far below 1% of it.
  // Thousands of small weights take more turns.
  static constexpr std::int64_t most_turns = 64;
  // More of them would make numbers so large that a difference drowns, and are worth no more.
  static constexpr std::size_t most_parts = 64;
  static constexpr double tolerance = 1e-3;

  // Whether ranks have seen other weights: the sum of squares over them is least when all have the same number. The
  // difference of one rank to the others counts as much among many as among two.
  [[nodiscard]] static bool are_apart(double sum, double squares, std::size_t num_ranks) noexcept {
    const auto count = static_cast<double>(num_ranks);
    return count * squares - sum * sum > (count - 1) * tolerance * tolerance;
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
    for (const Part& part : turns_[turn_]) {
      const GradientSlot& slot = slots[part.index];
      const bool is_there = count_of(slot) >= part.end;  // whoever has moved or converted it will be told so
      const at::Tensor& weights = slot.parameter;
      if (!is_there) {
        seen_.emplace_back();
      } else {
        seen_.push_back(weights.is_complex() ? sum_of(as_real(weights.detach()), part) : sum_of(weights, part));
      }
      number_ += seen_.back().number();
    }
  }

  // What this rank has seen in this step.
  [[nodiscard]] double number() const noexcept { return number_; }

  // All ranks call it when they have seen other weights. Throws: ConfigError on all ranks.
  [[noreturn]] void refuse(Worker& worker, const std::vector<GradientSlot>& slots, std::uint64_t step) const {
    std::vector<double> mine;
    for (const Sum& sum : seen_) mine.insert(mine.end(), {sum.number(), sum.sum / sum.count});
    const auto all = gather_values(worker, mine);
    const auto size = static_cast<std::size_t>(worker.world_size());
    Difference most;
    std::size_t which = 0;
    for (std::size_t at = 0; at < seen_.size(); ++at) {
      std::vector<double> numbers;
      for (std::size_t rank = 0; rank < size; ++rank) numbers.push_back(all[rank * mine.size() + 2 * at]);
      const Difference difference = difference_of(numbers);
      if (difference.distance <= most.distance) continue;
      most = difference;
      which = at;
    }
    const auto mean = [&](std::size_t rank) { return short_text(Value{all[rank * mine.size() + 2 * which + 1]}); };
    const Part& part = turns_[turn_][which];
    throw ConfigError{compose(
        "backward() on rank {}/{}: when step {} began, the parameter \"{}\" had other values on rank {} than on rank "
        "{}: its elements {} to {} have the mean {} there and {} here. All ranks get the same gradients, so in the "
        "last {} steps something has written to it on some ranks alone, such as an assignment in place, or their "
        "optimizers have other settings: do the same on all ranks, or set ModelOptions::compare_weights to false if "
        "weights are meant to differ",
        worker.rank(), worker.world_size(), step, slots[part.index].name, most.rank, most.other, part.begin,
        part.end - 1, mean(most.rank), mean(most.other), turns_.size())};
  }

 private:
  static constexpr std::int64_t least_elements = 256;

  // Elements begin to end of a slot's parameter, as real numbers.
  struct Part {
    std::size_t index = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  struct Sum {
    double sum = 0;
    double size = 0;  // the sum of absolute values
    double count = 1;
    double digits = 1;  // a half type's last digit is worth more

    // Moves by the relative difference of what it is made of.
    [[nodiscard]] double number() const {
      constexpr double least = 1e-30;  // what vanishes does so otherwise with another rounding
      constexpr double not_finite = 100;
      if (!is_finite(size)) return not_finite;
      return (sum / (size + count * least) + std::log(size / count + least)) * digits;
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

  [[nodiscard]] static Sum sum_of(const at::Tensor& numbers, const Part& part) {
    switch (numbers.scalar_type()) {
      case at::ScalarType::Float:
        return sum_of<float>(numbers, part);
      case at::ScalarType::Double:
        return sum_of<double>(numbers, part);
      case at::ScalarType::Half:
        return sum_of<at::Half>(numbers, part);
      case at::ScalarType::BFloat16:
        return sum_of<at::BFloat16>(numbers, part);
      default:
        return {};
    }
  }

  template <class T>
  [[nodiscard]] static Sum sum_of(const at::Tensor& numbers, const Part& part) {
    constexpr std::size_t num_lanes = 4;  // which do not wait for each other
    std::array<double, num_lanes> sums{};
    std::array<double, num_lanes> sizes{};
    const T* data = numbers.template data_ptr<T>();
    const auto add = [&](std::size_t lane, const T& element) {
      const auto value = static_cast<double>(element);
      sums[lane] += value;
      sizes[lane] += std::abs(value);
    };
    std::int64_t at = part.begin;
    if (numbers.is_non_overlapping_and_dense()) {  // in the order of memory, which is the same on all ranks
      for (; at + static_cast<std::int64_t>(num_lanes) <= part.end; at += num_lanes) {
        for (std::size_t lane = 0; lane < num_lanes; ++lane) add(lane, data[at + static_cast<std::int64_t>(lane)]);
      }
      for (; at < part.end; ++at) add(0, data[at]);
    } else {
      for (; at < part.end; ++at) add(0, data[offset_of(numbers, at)]);
    }
    return {.sum = (sums[0] + sums[1]) + (sums[2] + sums[3]),
            .size = (sizes[0] + sizes[1]) + (sizes[2] + sizes[3]),
            .count = static_cast<double>(part.end - part.begin),
            .digits = sizeof(T) == 2 ? 0.125 : 1.0};
  }

  [[nodiscard]] static std::int64_t offset_of(const at::Tensor& tensor, std::int64_t element) {
    std::int64_t offset = 0;
    for (std::int64_t dim = tensor.dim(); dim-- > 0; element /= tensor.size(dim)) {
      offset += element % tensor.size(dim) * tensor.stride(dim);
    }
    return offset;
  }

  std::vector<std::vector<Part>> turns_{};
  std::size_t turn_ = 0;
  std::vector<Sum> seen_{};  // by part of this turn
  double number_ = 0;
};

}  // namespace detail

}  // namespace railyard::inline v0_1
