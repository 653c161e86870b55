// SPDX-License-Identifier: MIT
// The default policies where Gloo was not asked for.
// flags: -URAILYARD_WITH_GLOO
// expect-first: static.assert.*the Backend of this Trainer is only declared here. For Gloo, which is the default
// expect-first: link with -lgloo; without libgloo, say Trainer<SharedMemory, Processes>
#include <railyard/railyard.hpp>

namespace ry = railyard;

int main() {
#ifdef FIXED
  ry::Trainer<ry::Local, ry::Threads> trainer{[](ry::Worker& worker) { worker.barrier(); }, {.num_workers = 2}};
#else
  ry::Trainer trainer{[](ry::Worker& worker) { worker.barrier(); }, {.num_workers = 2}, {.name = "a"}};
#endif
  const ry::Result result = trainer.fit();
  return result.exit_status();
}
