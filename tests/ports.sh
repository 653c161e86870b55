#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Holds what the ported example promises: at most ten changed lines, and with one worker the weights of the plain program.
# ports.sh BEFORE AFTER DIGITS: the two programs and their data.
set -euo pipefail
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/../examples" && pwd)

changed=$(diff "$examples/port_before.cpp" "$examples/port_after.cpp" | grep -c '^>' || true)
if [ "$changed" = 0 ] || [ "$changed" -gt 10 ]; then
  echo "port_after.cpp differs from port_before.cpp in $changed lines, not in 1 to 10"
  exit 1
fi

weights() { grep -o 'weights [0-9.]*' | sort -u; }
plain=$("$1" "$3" | weights)
ported=$("$2" "$3" 1 2>&1 | weights)
echo "before: $plain; after: $ported; changed lines: $changed"
[ -n "$plain" ] && [ "$plain" = "$ported" ]

# Two workers must agree with each other to the last bit, and with the plain program in what they have learnt.
two=$("$2" "$3" 2 2>&1)
echo "$two" | tail -3
[ "$(weights <<<"$two" | wc -l)" = 1 ]
grep -q 'epoch 9 .*accuracy 0\.9[5-9]' <<<"$two"
