// SPDX-License-Identifier: MIT
// The two policies of a trainer in the wrong order; the one of them is not even defined.
// expect-first: static.assert.*a Trainer names its Backend first and its Scaling second
#include <railyard/railyard.hpp>

namespace ry = railyard;

int main() {
#ifdef FIXED
  ry::Trainer<ry::Local, ry::Threads> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
#else
  ry::Trainer<ry::Processes, ry::Gloo> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
#endif
  return trainer.fit().exit_status();
}
