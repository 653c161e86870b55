// SPDX-License-Identifier: MIT
// A buffer of elements that no collective knows.
// expect-first: static.assert.*buffer_of: no collective knows elements of this type
#include <railyard/railyard.hpp>

int main() {
#ifdef FIXED
  std::vector<std::int32_t> values(3);
#else
  std::vector<std::uint32_t> values(3);
#endif
  return railyard::buffer_of(values).count == 3 ? 0 : 1;
}
