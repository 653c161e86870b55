// SPDX-License-Identifier: MIT
// Collectives of a GPU, whose signatures could not be compared in the memory of the CPU.
// expect: static.assert.*Checked exchanges its signatures in CPU memory: wrap a CPU backend
#include <railyard/railyard.hpp>

#include <railyard/collectives/nccl.hpp>

namespace ry = railyard;

int main() {
#ifdef FIXED
  return ry::Checked<ry::Local>::name.empty() ? 1 : 0;
#else
  return ry::Checked<ry::Nccl>::name.empty() ? 1 : 0;
#endif
}
