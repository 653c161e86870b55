// SPDX-License-Identifier: MIT
// A machine of two cores, for what depends on how many there are.
#pragma once

#include <sched.h>

namespace railyard_test {

/// Leaves this thread, and what it starts, two of its cores.
class TwoCores {
 public:
  TwoCores() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t two;
    CPU_ZERO(&two);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++core) {
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &two);
    }
    ::sched_setaffinity(0, sizeof two, &two);
  }
  TwoCores(const TwoCores&) = delete;
  TwoCores& operator=(const TwoCores&) = delete;
  ~TwoCores() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

}  // namespace railyard_test
