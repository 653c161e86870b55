// SPDX-License-Identifier: MIT
// Asks a LibTorch for its version. Declares the one function itself: headers of another release must not get a say.
#include <cstdio>
#include <string>

namespace at {
std::string show_config();
}

int main() { std::puts(at::show_config().c_str()); }
