// SPDX-License-Identifier: MIT
// A generator whose state is saved, and cannot be put back.
// expect-first: static.assert.*a generator that has a state.* needs a load_state
#include <railyard/data/dataset.hpp>

struct Squares {
  std::int64_t next = 0;
  bool operator()(railyard::SampleWriter& out) {
    if (next == 1000) return false;
    out.set("x", next * next);
    ++next;
    return true;
  }
  railyard::State state() const { return {{"next", next}}; }
#ifdef FIXED
  void load_state(const railyard::State& saved) { next = saved.at("next").as<std::int64_t>(); }
#else
  void load_state(railyard::State& saved) { next = saved.at("next").as<std::int64_t>(); }
#endif
};

int main() {
  return static_cast<int>(
      railyard::Dataset::from_generator({{"x", railyard::Dtype::i64}}, [] { return Squares{}; }).schema().size());
}
