// SPDX-License-Identifier: MIT
// A program of an older standard gets the library's own sentence and nothing else.
// flags: -std=c++17
// expect-only: Railyard needs C\+\+20: add -std=c\+\+20
#include <railyard/railyard.hpp>

int main() { return railyard::World{}.rank; }
