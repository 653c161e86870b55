#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Lets libFuzzer try the parsers of checkpoints, what reads from the network, and the readers of files:
# tests/fuzz/run.sh FOLDER [RUNS]. FOLDER is for what this makes; what makes a parser fail is left there. Of each, a
# million runs take some minutes: what they cost besides is kept small.
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
rm -rf corpus texts binaries pictures messages frames && mkdir corpus texts binaries pictures messages frames
for name in checkpoint network text binary image zstd; do
  # To note what is compared, most of it by the sanitizers, takes as long as to run what is tried: text, which takes the
  # longest and is told apart by single characters, does without. That of zstd keeps what libzstd frees.
  own=()
  case $name in
    text) own=(-fno-sanitize-coverage=trace-cmp) ;;
    zstd) own=(-Wl,--wrap=ZSTD_createDStream) ;;
  esac
  clang++ -std=c++20 -O2 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "${own[@]}" \
    -I"$root/include" -I"$root/tests" "$root/tests/fuzz/${name}_fuzz.cpp" -o ${name}_fuzz -lssl -lcrypto -lfmt -lz \
    -lpng -ljpeg -lzstd -pthread
done

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
# The first byte says what the rest is read as: CSV, JSON Lines or lines, with one or the other set of options.
printf '\x60n,t\r\n1,"a\nb"\r\n' >texts/csv
printf '\x00a,b,c\n1,2.5,"x, ""y"""\n\n-3,,true\n' >texts/csv_skipping
printf '\x02{"a":1,"t":"x\\u00e9","v":[1,2.5]}\n' >texts/json
printf '\x03{"a":true}\n\n{"a":false}\n' >texts/json_skipping
printf '\x04one\n\ntwo\xc3\xa9\r\n' >texts/lines
# The first byte says who speaks: a stranger, one who knows the secret, somebody on the way, a launcher, clients of the
# store.
opening='RAILYRD1................................'
printf '\x00%s\x0d\0\0\0hello with a proof of thirty-two bytes' "$opening" >messages/stranger
printf '\x00%s\x0d\0\0\0hello with a proof of thirty-two bytes' "${opening/D1/T1}" >messages/ticket
printf '\x01\x01\x07\0\0\0\x02\0\0\0\x03\0\0\0jobpayload' >messages/member
printf '\x02\x03\0\0\0\x01abc................' >messages/frame
printf '\x04\x01\x02\x03key\x02\x01\x10\x01\0\0\0\x03\0\0\0keyvalue!\x01\x02\x03key' >messages/requests
posting=7261696c7961726420310a686f737420610a706f727420310a67656e65726174696f6e20300a
printf '\x03cmd=response_to_init rc=0\ncmd=get_result rc=0 value=%s\ncmd=barrier_out\n' $posting >messages/launcher
# Here it says which format the rest is: NPY, IDX, NPZ, safetensors, CIFAR, tar, gzip and a point in it, a place, or a
# cache; of a picture, in how many colours.
python3 "$root/tests/fuzz/binaries.py" binaries pictures
# A frame of zstd and one that is to be skipped, and one of a byte many times over; then where to go on, and how much is
# asked for at once.
printf '\x28\xb5\x2f\xfd\x20\x04\x21\x00\x00n\n1\n\x50\x2a\x4d\x18\x03\x00\x00\x00abc\x00\x07' >frames/raw
printf '\x28\xb5\x2f\xfd\x20\x40\x03\x02\x00a\x00\x07' >frames/repeated
# What a run frees is watched until long after the run. Where memory came from is not kept: an input that is left tells
# that when it is run again, without these options.
export ASAN_OPTIONS=quarantine_size_mb=8:malloc_context_size=1
# The file that the readers are given is in the working directory, which is in memory.
memory=$(mktemp -d /dev/shm/railyard_fuzz.XXXXXX)
trap 'rm -rf "$memory"' EXIT
here=$PWD
try() {
  mkdir -p "found/$1"
  # To weigh inputs by how rare is what they do (-entropic) takes as long as to run them. Nobody else adds inputs
  # (-reload). No input of 4 KiB explains one allocation of 16 MB: zlib makes 4 MiB of so much at most, and libpng may
  # take 8 MB for a part of a file. Of zstd a frame may ask for a window of 128 MiB, for which its target takes the next
  # power of two.
  if ! (cd "$memory" && "$here/$1_fuzz" -runs="$runs" -max_len="$2" -entropic=0 -reload=0 -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb="${4:-16}" -artifact_prefix="$here/" "$here/found/$1" "$here/$3") >"$1.log" 2>&1; then
    tail -n 60 "$1.log"
    exit 1
  fi
  tail -n 1 "$1.log"
  echo "None of $runs inputs broke what reads a $1"
}
try checkpoint 2048 corpus
try network 512 messages
# Enough for several blocks of 64 bytes, and for more than the 64 records whose place is kept.
try text 256 texts
try binary 4096 binaries
try image 4096 pictures
try zstd 1024 frames 300
