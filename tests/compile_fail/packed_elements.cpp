// SPDX-License-Identifier: MIT
// A buffer of elements that do not lie one beside the other.
// expect-first: static.assert.*buffer_of: the elements of this range do not lie one beside the other in memory
#include <railyard/railyard.hpp>

int main() {
#ifdef FIXED
  std::vector<std::uint8_t> values(3);
#else
  std::vector<bool> values(3);
#endif
  return railyard::buffer_of(values).count == 3 ? 0 : 1;
}
