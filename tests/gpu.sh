#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs what needs a GPU: tests/gpu.sh [FOLDER]. Compares how GPUs are counted with the CUDA driver, tries the laws of
# Backend for Nccl with 1 to 7 ranks, and training with 1 to 4, all of them processes on one GPU; then prints the figures
# of benchmarks/gpu.cpp, and writes them to benchmarks/results/. Takes less than 8 minutes. Without a GPU it says so and
# exits 77.
# Needs g++, libfmt-dev, Catch2 2, libnccl.so.2 and libcudart.so (or RAILYARD_NCCL_LIBRARY and RAILYARD_CUDART_LIBRARY),
# and for training a LibTorch with CUDA: RAILYARD_LIBTORCH names it, else it is the one of python3's torch. The figures
# of DistributedDataParallel are left out where that LibTorch is not that of a package of Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-build/gpu}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --list-gpus 2>/dev/null | grep -q .; then
  echo "tests/gpu.sh: skipped, as this machine has no NVIDIA GPU (nvidia-smi lists none)"
  exit 77
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
mkdir -p "$folder"
${CXX:-g++} -std=c++20 -O1 -Iinclude tests/gpu/devices.cpp -o "$folder/devices" -lfmt -pthread
"$folder/devices" || { echo "failed: GPUs are not counted as the driver counts them" && failed_devices=1; }
places=(-DRAILYARD_TEST_SOURCES="\"$PWD\"" '-DRAILYARD_TEST_FAKES=""' tests/support/places.cpp)  # here are no fakes
${CXX:-g++} -std=c++20 -O1 -Iinclude -Itests tests/conformance/nccl_test.cpp tests/support/main.cpp "${places[@]}" \
  -o "$folder/nccl_conformance" -lfmt -pthread

# Ranks on one GPU look to NCCL like ranks on different hosts (staged_nccl.hpp), which talk by sockets over the loopback.
export RAILYARD_TEST_GPU=1 NCCL_SOCKET_IFNAME=lo
failures=${failed_devices:-0}
# Runs each test case of a program whose name is on standard input, in a process of its own.
run_each() {
  local name
  while read -r name; do
    # A comma would divide a name into two of which there is none, and that counts as passed.
    timeout 120 "$1" "${name//,/\\,}" || { echo "failed: $name" && failures=$((failures + 1)); }
  done
}
# Prints the figures, and writes a table of them.
run_benchmark() {
  local root=$PWD benchmark contestant=() table
  benchmark=$(realpath "$folder/benchmark")
  if PYTHONPATH=$(dirname "$torch") python3 -W ignore -c 'import torch.distributed as d; assert d.is_nccl_available()'; then
    contestant=("$root/benchmarks/gpu/ddp.py" "$(dirname "$torch")")
  else
    echo "tests/gpu.sh: $(dirname "$torch") has no PyTorch with NCCL: its figures are left out"
  fi
  local scratch=$folder/scratch
  rm -rf "$scratch" && mkdir -p "$scratch"  # runs leave files behind
  local status=0
  (cd "$scratch" && env -u RAILYARD_TEST_GPU -u NCCL_SOCKET_IFNAME timeout 300 "$benchmark" "${contestant[@]}") |
    tee "$folder/figures" || status=1
  [ -s "$folder/figures" ] || return 1
  table=benchmarks/results/gpu.md
  mkdir -p benchmarks/results
  bash benchmarks/gpu/table.sh "$("$benchmark" --versions)" <"$folder/figures" >"$table"
  echo "The table is in $table"
  return "$status"
}

# What NCCL does where ranks disagree is not defined: it may write past the end of a buffer.
run_each "$folder/nccl_conformance" < <(
  "$folder/nccl_conformance" --list-test-names-only '*NcclOnProcesses' | grep -v 'disagree\|nothing to give')

torch=${RAILYARD_LIBTORCH:-$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' || true)}
if [ -e "$torch/lib/libtorch_cuda.so" ]; then
  # CUDA's libraries of a wheel are found by the paths that its own libraries have.
  with_torch=(-std=c++20 -Iinclude -Itests -DFMT_HEADER_ONLY -DRAILYARD_WITH_TORCH=1 -DRAILYARD_WITH_NCCL=1
    -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include")
  libraries=("-L$torch/lib" "-Wl,-rpath,$torch/lib" -Wl,--allow-shlib-undefined -Wl,--no-as-needed -ltorch_cuda
    -ltorch_cpu -lc10_cuda -lc10 -pthread -ldl)
  for dir in "$torch"/../nvidia/*/lib; do libraries+=("-Wl,-rpath,$(realpath "$dir")"); done
  ${CXX:-g++} -O1 "${with_torch[@]}" tests/unit/torch/cuda*_test.cpp tests/support/main.cpp "${places[@]}" \
    -o "$folder/training" "${libraries[@]}" &
  tests=$!
  ${CXX:-g++} -O2 -rdynamic "${with_torch[@]}" benchmarks/gpu.cpp benchmarks/gpu/host_waits.cpp -o "$folder/benchmark" \
    "${libraries[@]}"
  wait "$tests"
  run_each "$folder/training" < <(
    "$folder/training" --list-test-names-only | grep -v 'the fake\|of the fake\|on another GPU')
  run_benchmark || failures=$((failures + 1))
else
  echo "tests/gpu.sh: no training, as there is no LibTorch with CUDA (RAILYARD_LIBTORCH, or python3's torch)"
  failures=$((failures + 1))
fi
echo "tests/gpu.sh took $SECONDS seconds"
[ "$SECONDS" -lt 480 ] || { echo "failed: it is to take less than 480" && failures=$((failures + 1)); }
[ "$failures" = 0 ] || exit 1
echo "GPUs are counted as the driver counts them, all laws hold for Nccl on this GPU, and training ends where it should"
