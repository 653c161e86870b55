#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the suites once more with one thing changed, in a build folder of its own, and runs them:
#   tests/variant.sh asan|tsan|clang|clang_19|no_optional|wheel FOLDER
set -euo pipefail
name=$1
folder=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$folder/$name
jobs=$(nproc)

configure() {
  cmake -S "$root" -B "$build" -G Ninja -DRAILYARD_BENCHMARKS=OFF -DRAILYARD_INSTALL=OFF "$@" >"$build.log" 2>&1 ||
    { cat "$build.log" && exit 1; }
}
compile() { cmake --build "$build" -j "$jobs" --target "$@"; }
run() { ctest --test-dir "$build" --output-on-failure --no-tests=error "$@"; }
suites='^(unit|conformance)$'

mkdir -p "$folder"
case $name in
  asan)
    configure -DRAILYARD_WITH_TORCH=OFF -DRAILYARD_EXAMPLES=OFF -DRAILYARD_SANITIZE=address,undefined
    compile part_unit part_conformance
    export UBSAN_OPTIONS=print_stacktrace=1
    run -L "$suites"
    ;;
  tsan)
    # Debian's libgloo is not instrumented: what its threads hand over looks like races. Local takes its place.
    configure -DRAILYARD_WITH_TORCH=OFF -DRAILYARD_WITH_GLOO=OFF -DRAILYARD_EXAMPLES=OFF -DRAILYARD_SANITIZE=thread
    compile part_unit part_conformance
    # Workers are forked by programs that may have threads; by default the sanitizer ends such a child. Threads that are
    # deaf when their program ends are what some tests make, and no leak.
    export TSAN_OPTIONS=die_after_fork=0:halt_on_error=1:report_thread_leaks=0:second_deadlock_stack=1
    # Left out: a user who may have no more than three threads. The sanitizer needs one of them.
    run -L "$suites" -E 'names the rank when no more threads can be made'
    ;;
  clang | clang_19)
    compiler=clang++
    if [ "$name" = clang_19 ]; then compiler=clang++-19; fi
    if ! command -v "$compiler" >/dev/null; then
      echo "$compiler is not here"
      exit 77
    fi
    "$compiler" --version | head -n 1
    configure -DCMAKE_CXX_COMPILER="$compiler"
    compile part_unit_without_torch part_conformance quickstart
    if [ "$name" = clang ]; then run -L '^unit$' -E '^torch_tests'; fi
    ;;
  no_optional)
    configure -DRAILYARD_WITH_TORCH=OFF -DRAILYARD_WITH_GLOO=OFF
    compile part_unit part_headers
    run -L '^(unit|headers)$'
    ;;
  wheel)
    wheel=$folder/libtorch_wheel
    if [ ! -e "$wheel/complete" ]; then
      python3 -m pip --version >/dev/null 2>&1 || { echo "pip is not here"; exit 77; }
      python3 -m pip install --quiet --no-deps --target "$wheel" torch nvidia-cuda-runtime nvidia-cuda-cupti
      touch "$wheel/complete"
    fi
    configure -DRAILYARD_LIBTORCH="$wheel/torch"
    grep LibTorch "$build.log"
    compile part_unit part_examples part_link_order
    run -L '^(unit|examples|link_order)$'
    ;;
  *)
    echo "tests/variant.sh: there is no variant $name" >&2
    exit 2
    ;;
esac
