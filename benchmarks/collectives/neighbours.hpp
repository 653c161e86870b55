// SPDX-License-Identifier: MIT
// Whether the machine was quiet while it was measured.
#pragma once

#include <sys/resource.h>
#include <unistd.h>
#include <cstddef>
#include <fstream>
#include <string>

namespace bench {

// Tells how much of the processors' time others have taken since this object was made: other programs, and the host of
// a virtual machine. Processes of our own count once they have been waited for.
class Neighbours {
 public:
  double share() const {
    const Times now = read();
    const double all = now.all - begin_.all;
    const double used = now.used - begin_.used;
    const double own = now.own - begin_.own;
    return all > 0 ? (used - own) / all : 0;
  }

 private:
  struct Times {
    double all = 0;   // seconds of all processors
    double used = 0;  // not idle
    double own = 0;
  };

  static Times read() {
    Times times;
    std::ifstream stat{"/proc/stat"};
    std::string word;
    stat >> word;
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    // user, nice, system, idle, iowait, irq, softirq, steal
    double value = 0;
    for (int field = 0; field < 8 && stat >> value; ++field) {
      times.all += value / ticks;
      if (field != 3 && field != 4) times.used += value / ticks;
    }
    for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage usage{};
      getrusage(who, &usage);
      for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
        times.own += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
      }
    }
    return times;
  }

  Times begin_ = read();
};

}  // namespace bench
