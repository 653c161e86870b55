// SPDX-License-Identifier: MIT
// A program that is compiled without exceptions gets the library's own sentence and nothing else (TRAPS 31).
// flags: -fno-exceptions
// expect-only: Railyard reports every failure by exception: compile without -fno-exceptions
#include <railyard/railyard.hpp>

int main() { return railyard::World{}.rank; }
