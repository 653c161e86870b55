// SPDX-License-Identifier: MIT
// A training function with an argument too many.
// expect-first: static.assert.*the training function cannot be called with a worker: it takes exactly one
// expect-first: exactly one argument, auto& worker, railyard::Worker& or railyard::WorkerOf<Backend>&
#include <railyard/railyard.hpp>

namespace ry = railyard;

#ifdef FIXED
void train(ry::Worker& worker) { worker.barrier(); }
#else
void train(ry::Worker& worker, int epochs) { worker.report({{"epochs", epochs}}); }
#endif

int main() {
  ry::Trainer<ry::Local, ry::Threads> trainer{train, {.num_workers = 2}};
  return trainer.fit().exit_status();
}
