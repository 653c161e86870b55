// SPDX-License-Identifier: MIT
// A part of a TrainState that has no state.
// expect-first: static.assert.*a part of a TrainState needs a state: const member state
#include <railyard/railyard.hpp>

namespace ry = railyard;

struct Counter {
  int count = 0;
#ifdef FIXED
  ry::State state() const { return {{"count", count}}; }
  void load_state(const ry::State& state) { count = static_cast<int>(state.at("count").as<std::int64_t>()); }
#endif
};

void train(ry::Worker& worker) {
  Counter counter;
  ry::TrainState state{worker, {{"counter", counter}}};
  worker.report({{"count", counter.count}}, state);
}
