// SPDX-License-Identifier: MIT
// A backend that joins the threads of one process, for workers that are processes.
// expect-first: static.assert.*this Backend cannot reach the workers that this Scaling makes
// expect-first: Local joins the threads of one process only; say Trainer<Gloo, Processes>
// needs: gloo
#include <railyard/railyard.hpp>

namespace ry = railyard;

int main() {
#ifdef FIXED
  ry::Trainer<ry::Gloo, ry::Processes> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
#else
  ry::Trainer<ry::Local, ry::Processes> trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
#endif
  return trainer.fit().exit_status();
}
