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
railyard_need g++ cmake ninja-build libfmt-dev libgloo-dev libtorch-dev libopenblas0-pthread libssl-dev >&2
for name in "${names[@]}"; do
  # A contestant: its figures are left out where it cannot be had.
  if [ "$name" = collectives ]; then (railyard_need libopenmpi-dev openmpi-bin) >&2 || true; fi
  if [ "$name" = data ]; then railyard_need zlib1g-dev libzstd-dev libpng-dev libjpeg-dev >&2; fi
  if [ "$name" = hosts ]; then (railyard_need iproute2) >&2 || true; fi
done

# Sets packages to a folder with PyTorch, which has contestants of `training`, `durable`, `data` and `hosts`, and
# libtorch to the LibTorch in it. Without PyTorch their figures are left out.
find_pytorch() {
  packages=${RAILYARD_LIBTORCH:+$(dirname "$RAILYARD_LIBTORCH")}
  packages=${packages:-$root/build/pytorch}
  if [ "$packages" = "$root/build/pytorch" ]; then
    if [ ! -e "$packages/complete" ]; then
      echo "Installing PyTorch into $packages (5 GB)"
      python3 -m pip install --quiet --target "$packages" torch && touch "$packages/complete"
    fi
    # PyTorch's distributed checkpoints need it, and do not ask for it.
    [ -e "$packages/numpy" ] || python3 -m pip install --quiet --target "$packages" numpy
  fi
  if PYTHONPATH=$packages python3 -W ignore -c 'import torch.distributed as d; assert d.is_gloo_available()'; then
    libtorch=$packages/torch
  else
    echo "PyTorch with Gloo cannot be had in $packages: figures of its contestants are left out"
    packages=
  fi
} >&2

# Sets ray to a folder with Ray Train and NumPy, if PyTorch is there. Without it Ray's figures are left out.
find_ray() {
  ray=$root/build/ray
  if [ ! -e "$ray/complete" ]; then
    echo "Installing Ray into $ray (600 MB)"
    python3 -m pip install --quiet --target "$ray" 'ray[train]' numpy && touch "$ray/complete"
  fi
  if [ -z "$packages" ] || ! PYTHONPATH=$ray:$packages python3 -W ignore -c 'import ray.train.torch'; then
    echo "Ray Train cannot be had in $ray: its figures are left out"
    ray=
  fi
} >&2

# Sets tables to a folder with pandas, pyarrow and Pillow. Without them the figures of contestants are left out.
find_tables() {
  tables=$root/build/tables
  if [ ! -e "$tables/complete" ]; then
    echo "Installing pandas, pyarrow and Pillow into $tables (400 MB)"
    python3 -m pip install --quiet --target "$tables" pandas pyarrow pillow && touch "$tables/complete"
  fi
} >&2

# Another LibTorch is another build.
build_benchmarks() {
  local build=$1 libtorch=$2
  CXX=$cxx cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRAILYARD_TESTS=OFF -DRAILYARD_EXAMPLES=OFF \
    -DRAILYARD_LIBTORCH="$libtorch" -DRAILYARD_LIBTORCH_CUDA=OFF
  cmake --build "$build" --target "${@:3}"
} >&2

cxx=$(railyard_cxx)
for name in "${names[@]}"; do
  if [ "$name" = training ]; then
    libtorch=${RAILYARD_LIBTORCH:-}
    find_pytorch
    build_benchmarks build/benchmarks_training "$libtorch" benchmark_training
  else
    case $name in durable | data) find_pytorch && find_ray ;; hosts) find_pytorch ;; esac
    if [ "$name" = data ]; then find_tables || true; fi
    build_benchmarks build/benchmarks "${RAILYARD_LIBTORCH:-}" "benchmark_$name"
    if [ "$name" = hosts ]; then
      # Wheels carry another Gloo than that of the headers here.
      has_c10d=
      if [ -z "${RAILYARD_LIBTORCH:-}" ] && build_benchmarks build/benchmarks "" benchmark_hosts_c10d; then has_c10d=1; fi
      [ "$has_c10d" ] || echo "LibTorch has no Gloo of its own here: rendezvous.c10d_over_ours is left out" >&2
      if [ "$packages" ]; then build_benchmarks build/benchmarks_training "$libtorch" benchmark_hosts_gpt; fi
    fi
  fi
done

scratch=$(mktemp -d)  # runs leave files behind
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
for name in "${names[@]}"; do
  if [ "$name" = training ]; then
    "$root/build/benchmarks_training/benchmarks/benchmark_training" \
      ${packages:+"$root/benchmarks/training/ddp.py" "$packages"}
  elif [ "$name" = durable ]; then
    "$root/build/benchmarks/benchmarks/benchmark_durable" \
      ${packages:+"$root/benchmarks/durable" "$packages" ${ray:+"$ray"}}
  elif [ "$name" = data ]; then
    "$root/build/benchmarks/benchmarks/benchmark_data" "$root/benchmarks/data/peers.py" "$tables:$ray:$packages"
  elif [ "$name" = gpu ]; then
    "$root/build/benchmarks/benchmarks/benchmark_gpu" || [ $? = 77 ]  # says so where there is no GPU
  else
    "$root/build/benchmarks/benchmarks/benchmark_$name"
  fi
  if [ "$name" = hosts ]; then
    if [ "$has_c10d" ]; then "$root/build/benchmarks/benchmarks/benchmark_hosts_c10d"; fi
    if [ "$packages" ]; then
      "$root/build/benchmarks_training/benchmarks/benchmark_hosts_gpt" "$root/benchmarks/training/ddp.py" "$packages"
    fi
  fi
  if [ -e "$root/benchmarks/$name.sh" ]; then
    bash "$root/benchmarks/$name.sh" "$cxx" -std=c++20 -O1 -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 \
      "-I$root/include" -isystem /usr/include/torch/csrc/api/include
  fi
done
