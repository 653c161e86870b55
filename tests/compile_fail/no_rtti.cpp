// SPDX-License-Identifier: MIT
// A program that is compiled without type information gets the library's own sentence and nothing else (TRAPS 31).
// flags: -fno-rtti
// expect-only: Railyard tells errors apart by their type: compile without -fno-rtti
#include <railyard/railyard.hpp>

int main() { return railyard::World{}.rank; }
