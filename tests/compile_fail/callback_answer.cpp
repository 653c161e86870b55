// SPDX-License-Identifier: MIT
// A callback that answers a report with what is no Next.
// expect-first: static.assert.*a callback's on_report returns nothing, or a railyard::Next
#include <railyard/railyard.hpp>

namespace ry = railyard;

struct Stopper {
#ifdef FIXED
  ry::Next on_report(const ry::Report& report) { return report.index == 3 ? ry::Next::stop : ry::Next::go_on; }
#else
  bool on_report(const ry::Report& report) { return report.index == 3; }
#endif
};

int main() {
  ry::Trainer<ry::Local, ry::Threads> trainer{
      [](auto& worker) { worker.barrier(); }, {.num_workers = 2}, {.callbacks = {Stopper{}}}};
  return trainer.fit().exit_status();
}
