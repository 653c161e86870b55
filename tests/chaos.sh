#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Kills processes of real training runs: tests/chaos.sh N SEED [launched]. launched: the processes of a run are started
# here, as an engine would, and started again when one has ended. It prints how many kills each phase of a run has had;
# with 160 or more, none may have fewer than 20. Its last line is `chaos N kills, 0 lost, 0 left, weights equal`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh

kills=${1:-200}
seed=${2:-$RANDOM}
kind=("${@:3}")
railyard_need g++ cmake ninja-build libfmt-dev libssl-dev libgloo-dev libtorch-dev libopenblas0-pthread catch2 python3
build=build/tests
log=$(mktemp)
folder=$(mktemp -d)
trap 'rm -f "$log"' EXIT
if ! { CXX=$(railyard_cxx) cmake -S . -B "$build" -G Ninja -DRAILYARD_UNITY=ON && cmake --build "$build" --target chaos_run; } >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
echo "chaos: $kills kills, seed $seed ${kind[*]}"
python3 tests/chaos/chaos.py "$build/tests/chaos_run" "$folder" "$kills" "$seed" "${kind[@]}"
rm -rf "$folder"  # after a failure it stays, to be looked at
