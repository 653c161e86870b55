#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains a network on real handwritten digits with two worker processes: compiles examples/quickstart.cpp and runs it.
# Its last line is the share of held-out digits that the network reads right.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh
railyard_need g++ libfmt-dev libgloo-dev libtorch-dev libopenblas0-pthread

program=build/quickstart/quickstart
# A build system would cost more than it saves for one file: it is compiled again when anything it may include is newer.
if [ ! -x "$program" ] || [ -n "$(find include examples/quickstart.cpp examples/quickstart.sh -newer "$program" -print -quit)" ]; then
  echo "Compiling examples/quickstart.cpp, which takes most of a minute"
  mkdir -p "$(dirname "$program")"
  # Without -O, which takes the compiler half a minute more: what computes here is LibTorch. g++ collects its garbage for a
  # sixth of the time; with memory enough it need not. The assembler works beside it (-pipe).
  flags=(-O0 -pipe)
  available=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
  if [ "${available:-0}" -gt 8000000 ] && [[ $(railyard_compile --version) != *clang* ]]; then
    flags+=(--param ggc-min-expand=500 --param ggc-min-heapsize=1000000)
  fi
  if command -v ld.gold >/dev/null; then flags+=(-fuse-ld=gold); fi  # a second less
  # Gloo stands before LibTorch: some builds of LibTorch carry another Gloo inside, and the first one answers.
  railyard_compile -std=c++20 "${flags[@]}" -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 -Iinclude \
    -isystem /usr/include/torch/csrc/api/include examples/quickstart.cpp -o "$program.new" \
    -lgloo -ltorch_cpu -lc10 -lfmt -pthread
  mv "$program.new" "$program"
fi
exec "$program" examples/data/digits.csv
