// SPDX-License-Identifier: MIT
// A training function that cannot be copied, for workers that each need a copy.
// expect-first: static.assert.*each worker thread runs its own copy of the training function, but this
// expect-first: this function cannot be copied: capture copyable things
#include <railyard/railyard.hpp>

namespace ry = railyard;

int main() {
#ifdef FIXED
  auto data = std::make_shared<int>(1);
#else
  auto data = std::make_unique<int>(1);
#endif
  ry::Trainer<ry::Local, ry::Threads> trainer{[data = std::move(data)](auto& worker) {
                                                worker.report({{"value", *data}});
                                              },
                                              {.num_workers = 2}};
  return trainer.fit().exit_status();
}
