// SPDX-License-Identifier: MIT
// A program that is compiled with -ffast-math: there, the compiler takes it that no value is NaN (TRAPS 27).
#include <railyard/railyard.hpp>

#include <bit>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace ry = railyard;

namespace {

bool is_nan(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7F800000U) == 0x7F800000U && (bits & 0x007FFFFFU) != 0;
}

bool halves_keep_nan() {
  const auto nan = std::bit_cast<float>(0x7FC00000U);
  return is_nan(static_cast<float>(ry::Float16{nan})) && is_nan(static_cast<float>(ry::BFloat16{nan}));
}

// JSON has no NaN: a report that holds one is written as null, and this must not rest on a comparison.
bool reports_stay_json() {
  ry::Trainer<ry::Local, ry::Threads> trainer{
      [](auto& worker) {
        worker.report({{"loss", std::bit_cast<double>(0x7FF8000000000000ULL)},
                       {"largest", std::bit_cast<double>(0x7FF0000000000000ULL)}});
      },
      {.num_workers = 1}};
  const ry::Result result = trainer.fit();
  std::ostringstream text;
  text << std::ifstream{result.path() / "metrics.jsonl"}.rdbuf();
  fmt::print("{}", text.str());
  return text.str().find("\"loss\":null") != std::string::npos ||
         text.str().find("\"loss\": null") != std::string::npos;
}

// A NaN wins over every number in min and max, whichever rank has it, and whatever it is compared with.
template <class B>
bool reductions_keep_nan() {
  constexpr std::size_t count = 37;  // more than a vector, and a rest
  ry::Trainer<B, ry::Threads> trainer{
      [](auto& worker) {
        for (const auto op : {ry::ReduceOp::min, ry::ReduceOp::max, ry::ReduceOp::sum}) {
          std::vector<float> values(count);
          for (std::size_t i = 0; i < count; ++i) {
            const bool is_one = static_cast<int>(i % 3) == worker.rank();  // every third is of no rank
            values[i] = is_one ? std::bit_cast<float>(0x7FC00000U) : static_cast<float>(i) - 18;
          }
          worker.all_reduce(ry::buffer_of(values), op);
          for (std::size_t i = 0; i < count; ++i) {
            if (is_nan(values[i]) != (i % 3 < 2)) throw std::runtime_error{"a NaN was lost, or came from nowhere"};
          }
        }
      },
      {.num_workers = 2}};
  const ry::Result result = trainer.fit();
  if (!result) fmt::print("{}\n", result.error());
  return static_cast<bool>(result);
}

// What is missing in a column is NaN: it is counted and takes no part in the rest.
bool statistics_leave_nan_out() {
  const auto nan = std::bit_cast<float>(0x7FC00000U);
  const auto numbers =
      ry::stats(ry::Dataset::from_columns({{"x", std::vector<float>{1, nan, 3, nan}}})).columns.front();
  return numbers.present == 2 && numbers.missing == 2 && numbers.minimum == 1 && numbers.maximum == 3 &&
         numbers.mean == 2;
}

}  // namespace

int main() {
  const bool halves = halves_keep_nan();
  const bool reports = reports_stay_json();
  const bool reductions = reductions_keep_nan<ry::Local>() && reductions_keep_nan<ry::SharedMemory>();
  const bool statistics = statistics_leave_nan_out();
  fmt::print("halves {} reports {} reductions {} statistics {}\n", halves, reports, reductions, statistics);
  return halves && reports && reductions && statistics ? 0 : 1;
}
