// SPDX-License-Identifier: MIT
// A program of an older standard gets the library's own sentence before anything else.
// flags: -std=c++17
// expect-first: Railyard needs C\+\+20: add -std=c\+\+20
#include <railyard/railyard.hpp>

int main() { return railyard::World{}.rank; }
