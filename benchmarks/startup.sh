#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What railyard.hpp adds to the compilation of a file that includes its dependencies' headers anyway.
# Called by run.sh with the compiler and its flags as arguments; prints `compile.header_s value s`.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Every header of the standard library and of a third party that ours include, if this LibTorch has it.
{
  echo '#include <cstdint>'
  echo '#include <array>'
  grep -rhoE '^#include <[^>]+>' "$root/include/railyard" | sort -u |
    sed -E 's/^#include (.+)/#if __has_include(\1)\n&\n#endif/'
} >"$work/dependencies.cpp"
cp "$work/dependencies.cpp" "$work/ours.cpp"
echo '#include <railyard/railyard.hpp>' >>"$work/ours.cpp"

cpu_seconds() {
  local TIMEFORMAT='%U %S'
  { time "$@" -c "$work/$name.cpp" -o /dev/null >&2; } 2>&1 | tail -n 1 | awk '{ print $1 + $2 }'
}
median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

for _ in 1 2 3 4 5; do
  name=dependencies
  without=$(cpu_seconds "$@")
  name=ours
  with=$(cpu_seconds "$@")
  awk -v with="$with" -v without="$without" 'BEGIN { print with - without }'
done | median | awk '{ printf "compile.header_s %.2f s\n", $1 }'
