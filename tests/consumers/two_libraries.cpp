// SPDX-License-Identifier: MIT
// A program of two shared libraries that both use the headers, and that uses them itself (TRAPS 28).
#include <railyard/railyard.hpp>

extern "C" double first_plugin(double value);
extern "C" double second_plugin(double value);

int main() {
  const double sum = first_plugin(1) + second_plugin(10) + first_plugin(100);
  const bool is_right = sum == 3.0 + 21.0 + 201.0;
  fmt::print("sum {} with {}: {}\n", sum, railyard::version, is_right ? "two libraries agree" : "wrong");
  return is_right ? 0 : 1;
}
