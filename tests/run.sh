#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds and runs the tests: tests/run.sh [PART...]; without a part those that say whether the library works on this
# machine, with `all` everything but `wheel`, which downloads a gigabyte, and `headers`, which compiles each header alone,
# and for ARM, for a quarter of an hour of one core (`layers` reads in seconds whether they include what they use).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/packages.sh

first_parts=(unit conformance single_header layers format examples compile_fail)
more_parts=(consumers fast_math sanitizers clang no_optional fuzz python launch chaos)
other_parts=(asan tsan headers wheel)
if [ "${1:-}" = help ]; then
  echo "Without a part: ${first_parts[*]}"
  echo "Further parts: ${more_parts[*]}; all: all of both"
  echo "Others: ${other_parts[*]}"
  exit
fi
parts=("$@")
if [ $# = 0 ]; then parts=("${first_parts[@]}"); fi
if [ "${1:-}" = all ]; then parts=("${first_parts[@]}" "${more_parts[@]}"); fi
for part in "${parts[@]}"; do
  case " ${first_parts[*]} ${more_parts[*]} ${other_parts[*]} " in
    *" $part "*) ;;
    *) echo "tests/run.sh: there is no part $part; bash tests/run.sh help lists them" >&2 && exit 2 ;;
  esac
done

packages=(g++ cmake ninja-build libfmt-dev libgloo-dev libtorch-dev libopenblas0-pthread catch2 libssl-dev zlib1g-dev libzstd-dev
  libpng-dev libjpeg-dev python3 pkg-config git)
case " ${parts[*]} " in *" format "*) packages+=(clang-format) ;; esac
optional=()
case " ${parts[*]} " in *" python "*) optional+=(python3-torch) ;; esac
case " ${parts[*]} " in *" clang "* | *" sanitizers "* | *" fuzz "*)
  packages+=(clang)
  optional+=(clang-19 libclang-rt-dev)
  ;;
esac
case " ${parts[*]} " in *" headers "*) optional+=(g++-aarch64-linux-gnu) ;; esac
railyard_need "${packages[@]}"
# Not every system has these: where there is no clang-19, python3-torch or compiler for ARM their tests are skipped, where
# there is no package of clang's sanitizers they come with clang.
for package in "${optional[@]}"; do
  if [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [^\(] ]]; then railyard_need "$package"; fi
done

build=build/tests
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! CXX=$(railyard_cxx) cmake -S . -B "$build" -G Ninja -DRAILYARD_UNITY=ON >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
grep -E 'LibTorch|Railyard|Left out|There is no' "$log" || true
targets=("${parts[@]/#/part_}")
cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"

labels=$(IFS='|' && echo "${parts[*]}")
status=0
bash tests/ctest.sh "$build" "$(nproc)" --label-regex "^($labels)\$" --output-on-failure --no-label-summary 2>&1 |
  tee "$log" || status=$?
if [ $# = 0 ]; then echo "Not run: ${more_parts[*]}; bash tests/run.sh all runs them too, for an hour on two cores"; fi
case " ${parts[*]} " in
  *" wheel "*) ;;
  *) echo "Not run: the tests with the newest LibTorch, a download of 1 GB: bash tests/run.sh wheel" ;;
esac
grep -E '^[0-9]+% tests passed' "$log" || true
exit "$status"
