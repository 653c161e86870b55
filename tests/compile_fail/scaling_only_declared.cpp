// SPDX-License-Identifier: MIT
// A scaling whose header is not included.
// expect: static.assert.*the Scaling of this Trainer is only declared here: include <railyard/railyard.hpp>, or its
#include <railyard/railyard.hpp>

namespace ry = railyard;

#ifdef FIXED
using Scaling = ry::Threads;
#else
class Scaling;
#endif

int main() {
  ry::Trainer<ry::Local, Scaling> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
  return trainer.fit().exit_status();
}
