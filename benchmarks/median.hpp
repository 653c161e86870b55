// SPDX-License-Identifier: MIT
// What benchmarks take of several runs.
#pragma once

#include <algorithm>
#include <vector>

namespace bench {

/// Returns the upper one of the two in the middle of an even number.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace bench
