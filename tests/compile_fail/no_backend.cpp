// SPDX-License-Identifier: MIT
// A class that has nothing of a backend.
// expect-first: static.assert.*the first policy of this Trainer is no Backend
// expect: no type named .Options
#include <railyard/railyard.hpp>

namespace ry = railyard;

#ifdef FIXED
using Mine = ry::Local;
#else
struct Mine {};
#endif

int main() {
  ry::Trainer<Mine, ry::Threads> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
  return trainer.fit().exit_status();
}
