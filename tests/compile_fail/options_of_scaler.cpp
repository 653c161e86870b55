// SPDX-License-Identifier: MIT
// A scaler of the user's whose options cannot be told from others, for they hold what is none of these.
// expect-first: static.assert.*the options of a preprocessor are told from others by their fields
#include <railyard/data/scalers.hpp>

struct Interval {
  double low = 0;
  double high = 1;
};

class HalfRule : public railyard::MaxAbsRule {
 public:
  struct Options {
    std::vector<std::string> columns{};
    std::vector<std::string> except{};
#ifdef FIXED
    std::vector<double> interval{0, 1};
#else
    Interval interval{};
#endif
  };

  HalfRule() = default;
  explicit HalfRule(const Options&) {}
  Options options() const { return {}; }
};

int main() { return railyard::ColumnScaler<HalfRule>{}.fingerprint() == 0 ? 1 : 0; }
