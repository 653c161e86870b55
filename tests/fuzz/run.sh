#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Lets libFuzzer try the parsers of checkpoints: tests/fuzz/run.sh FOLDER [RUNS]. FOLDER is for what this makes; what
# makes a parser fail is left there.
set -euo pipefail
folder=$1
runs=${2:-1000000}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if ! command -v clang++ >/dev/null; then
  echo "Skipped: libFuzzer comes with clang, which is not here"
  exit 77
fi
mkdir -p "$folder"
cd "$folder"
rm -rf corpus && mkdir corpus
clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I"$root/include" \
  "$root/tests/fuzz/checkpoint_fuzz.cpp" -o checkpoint_fuzz -lfmt -pthread

# It begins with what a checkpoint really holds.
example=$root/tests/data/checkpoint-format-1
{ printf 'm' && tail -c +26 "$example/manifest.json"; } >corpus/manifest
for file in "$example"/state*.json; do { printf 's' && cat "$file"; } >"corpus/$(basename "$file")"; done
for file in "$example"/*.safetensors; do
  header=$(od -An -tu8 -N8 "$file")
  data=$(($(stat -c %s "$file") - 8 - header))
  { printf 't' && printf "\\x$(printf %02x $((data / 256)))\\x$(printf %02x $((data % 256)))" && tail -c +9 "$file" | head -c "$header"; } \
    >"corpus/$(basename "$file")"
done
mkdir -p found
if ! ./checkpoint_fuzz -runs="$runs" -max_len=2048 -timeout=10 -rss_limit_mb=2048 found corpus >log 2>&1; then
  tail -n 60 log
  exit 1
fi
tail -n 1 log
echo "None of $runs inputs broke a parser"
