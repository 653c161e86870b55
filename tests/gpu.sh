#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs what needs a GPU: tests/gpu.sh [FOLDER]. Compares how GPUs are counted with the CUDA driver, and tries the laws of
# Backend for Nccl with 1 to 7 ranks, which are processes on one GPU. Without a GPU it says so and exits 77.
# Needs g++, libfmt-dev, Catch2 2, libnccl.so.2 and libcudart.so (or RAILYARD_NCCL_LIBRARY and RAILYARD_CUDART_LIBRARY).
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
${CXX:-g++} -std=c++20 -O1 -Iinclude -Itests -DRAILYARD_TEST_FAKE_NCCL='""' -DRAILYARD_TEST_FAKE_CUDART='""' \
  tests/conformance/nccl_test.cpp tests/support/main.cpp -o "$folder/nccl_conformance" -lfmt -pthread

# Ranks on one GPU look to NCCL like ranks on different hosts (staged_nccl.hpp), which talk by sockets over the loopback.
export RAILYARD_TEST_GPU=1 NCCL_SOCKET_IFNAME=lo
failures=${failed_devices:-0}
while read -r name; do
  timeout 120 "$folder/nccl_conformance" "$name" || { echo "failed: $name" && failures=$((failures + 1)); }
  # What NCCL does where ranks disagree is not defined: it may write past the end of a buffer.
done < <("$folder/nccl_conformance" --list-test-names-only '*NcclOnProcesses' | grep -v 'disagree\|nothing to give')
[ "$failures" = 0 ] || exit 1
echo "GPUs are counted as the driver counts them, and all laws hold for Nccl on this GPU"
