#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains a network on real handwritten digits with two worker processes: compiles examples/quickstart.cpp and runs it.
# Its last line is the share of held-out digits that the network reads right.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh
railyard_need g++ libfmt-dev libgloo-dev libtorch-dev libopenblas0-pthread

cxx=$(railyard_cxx)
program=build/quickstart/quickstart
# A build system would cost more than it saves for one file: it is compiled again when anything it may include is newer.
if [ ! -x "$program" ] || [ -n "$(find include examples/quickstart.cpp examples/quickstart.sh -newer "$program" -print -quit)" ]; then
  echo "Compiling examples/quickstart.cpp; LibTorch's headers take most of half a minute"
  mkdir -p "$(dirname "$program")"
  # Gloo stands before LibTorch: some builds of LibTorch carry another Gloo inside, and the first one answers.
  "$cxx" -std=c++20 -O1 -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 -Iinclude \
    -isystem /usr/include/torch/csrc/api/include examples/quickstart.cpp -o "$program.new" \
    -lgloo -ltorch_cpu -lc10 -lfmt -pthread
  mv "$program.new" "$program"
fi
exec "$program" examples/data/digits.csv
