// SPDX-License-Identifier: MIT
// A bare number where the settings belong.
// expect-first: static.assert.*the second argument of a Trainer says how many workers there are, by name
// expect-first: by name: \{\.num_workers = 2\}
// needs: gloo
#include <railyard/railyard.hpp>

int main() {
#ifdef FIXED
  railyard::Trainer trainer{[](auto& worker) { worker.barrier(); }, {.num_workers = 2}};
#else
  railyard::Trainer trainer{[](auto& worker) { worker.barrier(); }, 2};
#endif
  return trainer.fit().exit_status();
}
