// SPDX-License-Identifier: MIT
// A backend that joins the workers of one host, for workers that may be on several.
// expect-first: static.assert.*this Backend cannot reach the workers that this Scaling makes
// expect-first: SharedMemory joins the workers of one host only; say Trainer<Gloo, Launched>
// flags: -DRAILYARD_WITH_LAUNCHED=1
// needs: gloo
#include <railyard/railyard.hpp>

namespace ry = railyard;

int main() {
#ifdef FIXED
  ry::Trainer<ry::SharedMemory, ry::Processes> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
#else
  ry::Trainer<ry::SharedMemory, ry::Launched> trainer{[](auto& worker) { worker.barrier(); }};
#endif
  return trainer.fit().exit_status();
}
