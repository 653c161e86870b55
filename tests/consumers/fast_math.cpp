// SPDX-License-Identifier: MIT
// A program that is compiled with -ffast-math: there, the compiler takes it that no value is NaN.
#include <railyard/railyard.hpp>

#include <bit>
#include <fstream>
#include <sstream>

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

}  // namespace

int main() {
  const bool halves = halves_keep_nan();
  const bool reports = reports_stay_json();
  fmt::print("halves {} reports {}\n", halves, reports);
  return halves && reports ? 0 : 1;
}
