#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What railyard.hpp adds to the compilation of a file that includes its dependencies' headers anyway: with all of Railyard
# in it (compile.header_s), and where Railyard is compiled once (compile.compiled_once.header_s).
# Called by run.sh with the compiler and its flags as arguments.
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
  all=$(cpu_seconds "$@")
  once=$(cpu_seconds "$1" "-I$root/single_include/compiled" "${@:2}")
  awk -v all="$all" -v once="$once" -v without="$without" 'BEGIN { print all - without > "/dev/stderr"; print once - without }' \
    2>>"$work/all" >>"$work/once"
done
median <"$work/all" | awk '{ printf "compile.header_s %.2f s\n", $1 }'
median <"$work/once" | awk '{ printf "compile.compiled_once.header_s %.2f s\n", $1 }'
