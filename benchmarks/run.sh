#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds and runs benchmarks/NAME.cpp, and benchmarks/NAME.sh where there is one: benchmarks/run.sh [NAME...]
# Standard output holds one figure a line, `name value unit`, and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
source tools/packages.sh
names=("$@")
if [ $# = 0 ]; then
  for source in benchmarks/*.cpp; do names+=("$(basename "$source" .cpp)"); done
fi
for name in "${names[@]}"; do
  [ -e "benchmarks/$name.cpp" ] || { echo "benchmarks/run.sh: there is no benchmark $name" >&2 && exit 2; }
done
railyard_need g++ cmake ninja-build libfmt-dev libgloo-dev libtorch-dev libopenblas0-pthread >&2
for name in "${names[@]}"; do
  # A contestant: its figures are left out where it cannot be had.
  if [ "$name" = collectives ]; then (railyard_need libopenmpi-dev openmpi-bin) >&2 || true; fi
done

cxx=$(railyard_cxx)
build=build/benchmarks
{
  CXX=$cxx cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRAILYARD_TESTS=OFF -DRAILYARD_EXAMPLES=OFF \
    -DRAILYARD_LIBTORCH="${RAILYARD_LIBTORCH:-}"
  cmake --build "$build" --target "${names[@]/#/benchmark_}"
} >&2

scratch=$(mktemp -d)  # runs leave files behind
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
for name in "${names[@]}"; do
  "$root/$build/benchmarks/benchmark_$name"
  if [ -e "$root/benchmarks/$name.sh" ]; then
    bash "$root/benchmarks/$name.sh" "$cxx" -std=c++20 -O1 -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 \
      "-I$root/include" -isystem /usr/include/torch/csrc/api/include
  fi
done
