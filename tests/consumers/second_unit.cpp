// SPDX-License-Identifier: MIT
// A second file that includes everything: whatever is not inline is now defined twice.
#include <railyard/railyard.hpp>

const char* release_of_second_unit();
const char* release_of_second_unit() { return railyard::version; }
