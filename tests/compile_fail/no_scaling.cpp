// SPDX-License-Identifier: MIT
// A class that has nothing of a way to make workers.
// expect-first: static.assert.*the second policy of this Trainer is no Scaling
// expect: S::name
#include <railyard/railyard.hpp>

namespace ry = railyard;

#ifdef FIXED
using Mine = ry::Threads;
#else
struct Mine {};
#endif

int main() {
  ry::Trainer<ry::Local, Mine> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
  return trainer.fit().exit_status();
}
