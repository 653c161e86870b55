#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the suites once more with one thing changed, in a build folder of its own, and runs them:
#   tests/variant.sh asan|tsan|clang|clang_19|wheel FOLDER JOBS
set -euo pipefail
name=$1
folder=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$folder/$name
jobs=$3

configure() {
  cmake -S "$root" -B "$build" -G Ninja -DRAILYARD_BENCHMARKS=OFF -DRAILYARD_INSTALL=OFF -DRAILYARD_UNITY=ON \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@" >"$build.log" 2>&1 || { cat "$build.log" && exit 1; }
}
compile() { cmake --build "$build" -j "$jobs" --target "$@"; }
check() { python3 "$root/tests/syntax_only.py" "$build" "$jobs" "$@"; }  # without precompiled headers: nothing is made
# Prints little, for CTest cuts what a test prints after some 300 kB: the tests that fail stand in it whole.
run() {
  local status=0
  "${prefix[@]}" bash "$root/tests/ctest.sh" "$build" "$jobs" "$@" >"$build.tests.log" 2>&1 || status=$?
  grep -A 1000 -E '^[0-9]+% tests passed' "$build.tests.log" || tail -n 50 "$build.tests.log"
  return $status
}
prefix=()
suites='^(unit|conformance)$'
# The undefined-behaviour sanitizer needs a descriptor to look whether an object is one: a process that has none left is
# reported for nothing.
without_descriptors='more connections than this process has descriptors|signs of life where it cannot be read'
# The leader of several processes forks while it has threads, as does who has one that storage holds, and a lock of the
# address sanitizer's own allocator may be held in the child then, for ever: seen in one of thirty runs under load.
forking_leaders='tests: ?(Launched: |Run: (a worker that dies is seen and started again while storage|storage that does not say whose the run is))|OnLaunched$'
forking_leaders+='|Scaling: runs two groups of one process at a time in two threads - ry::Processes'
# So do these, which the thread sanitizer takes.
forking_for_memory='tests: ?Memory first, Launched: '
# The same of what forks while a thread of it allocates, to see whether other locks are free.
forking_for_locks='are_library_locks_free: where it says so'
# What compares calls before they are made is the same over every backend: one stands for all.
checked_again='tests: ?Law .* - Checked(Local|Nccl|Gloo)'

# With the sanitizers of addresses and undefined behaviour: once, but for what may hang in the former, which is tried again.
run_with_addresses() {
  local may_hang="$forking_leaders|$forking_for_memory|$forking_for_locks" left_out="^torch_(cuda_)?tests|$without_descriptors|$checked_again"
  export UBSAN_OPTIONS=print_stacktrace=1
  run -L "$suites" -E "$left_out|$may_hang"
  run -L "$suites" -R "$may_hang" -E "$left_out" --repeat until-pass:3
}

mkdir -p "$folder"
case $name in
  asan)
    configure -DRAILYARD_WITH_TORCH=OFF -DRAILYARD_EXAMPLES=OFF -DRAILYARD_SANITIZE=address,undefined
    compile part_unit part_conformance
    run_with_addresses
    ;;
  tsan)
    # Without LibTorch and Gloo: what needs neither compiles and works where they are not.
    configure -DRAILYARD_WITH_TORCH=OFF -DRAILYARD_WITH_GLOO=OFF -DRAILYARD_EXAMPLES=OFF -DRAILYARD_SANITIZE=thread
    compile part_unit part_conformance headers_alone_torch headers_together
    # Workers are forked by programs that may have threads; by default the sanitizer ends such a child. Threads that are
    # deaf when their program ends are what some tests make, and no leak.
    export TSAN_OPTIONS=die_after_fork=0:halt_on_error=1:report_thread_leaks=0:second_deadlock_stack=1
    # Where addresses are random, now and then one is outside of what the sanitizer knows, and it ends the program.
    if setarch "$(uname -m)" -R true 2>/dev/null; then prefix=(setarch "$(uname -m)" -R); fi
    # Left out: a user who may have no more than three threads, for the sanitizer needs one of them; and who forks while
    # it has threads: their ids come back in the child, and the sanitizer gives up. And what one thread does alone to
    # thousands of states of a disk, which the other sanitizers see.
    alone='power cut|failing disk|disk that has failed|before and after every call|any one call|any bit that has changed'
    run -L '^(unit|conformance|headers)$' -E "names the rank when no more threads can be made|$forking_leaders|$alone|$checked_again"
    # And with Gloo, what has threads of its own in it. Debian's is not built for this sanitizer.
    build=$build/gloo
    configure -DRAILYARD_WITH_TORCH=OFF -DRAILYARD_EXAMPLES=OFF -DRAILYARD_SANITIZE=thread
    compile part_gloo
    export TSAN_OPTIONS=$TSAN_OPTIONS:suppressions=$root/tests/tsan_gloo.supp:print_suppressions=0
    run -L '^gloo$'
    ;;
  clang)  # and its sanitizers, which take half of the time that those of GCC take; TRAPS 13: LibTorch's headers
    clang++ --version | head -n 1
    configure -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DRAILYARD_SANITIZE=address,undefined
    compile part_unit_without_torch part_conformance
    check tests/unit/torch examples/quickstart.cpp
    run_with_addresses
    ;;
  clang_19)  # what it warns of and refuses
    if ! command -v clang++-19 >/dev/null; then
      echo "clang++-19 is not here"
      exit 77
    fi
    clang++-19 --version | head -n 1
    configure -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
    check tests/support tests/unit tests/conformance examples/quickstart.cpp --without core_tests_single
    ;;
  wheel)  # TRAPS 12: what LibTorch calls otherwise since 1.13
    wheel=$folder/libtorch_wheel
    if [ ! -e "$wheel/complete" ]; then
      python3 -m pip --version >/dev/null 2>&1 || { echo "pip is not here"; exit 77; }
      python3 -m pip install --quiet --no-deps --target "$wheel" torch nvidia-cuda-runtime nvidia-cuda-cupti
      touch "$wheel/complete"
    fi
    configure -DRAILYARD_LIBTORCH="$wheel/torch" -DRAILYARD_LIBTORCH_CUDA=OFF
    grep LibTorch "$build.log"
    compile torch_tests part_examples part_link_order  # the other suites have no LibTorch in them
    run -L '^unit$' -R '^torch_tests'
    run -L '^(examples|link_order)$'
    ;;
  *)
    echo "tests/variant.sh: there is no variant $name" >&2
    exit 2
    ;;
esac
