#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Formats all C++ of the project with clang-format 14, whose output is the standard; --check only says what differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for formatter in clang-format-14 clang-format; do
  if command -v "$formatter" >/dev/null && "$formatter" --version | grep -q 'version 14\.'; then break; fi
  formatter=
done
if [ -z "$formatter" ]; then
  echo "clang-format 14 is not here (Debian 12: apt install clang-format): releases differ, so no other will do" >&2
  exit 77
fi

# One call for many files, on each core: to start it takes longer than to format a file.
format_here() {
  find include examples tests benchmarks cmake -type f \( -name '*.hpp' -o -name '*.cpp' \) -print0 |
    xargs -0 -n 32 -P "$(nproc)" "$formatter" -i
}
if [ "${1:-}" = --check ]; then
  # Compared by text: --dry-run also reports replacements that change nothing, such as after an inline namespace.
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  cp -r .clang-format include examples tests benchmarks cmake "$copy"
  (cd "$copy" && format_here)
  status=0
  for folder in include examples tests benchmarks cmake; do
    diff -ru "$folder" "$copy/$folder" || status=1
  done
  exit $status
else
  format_here
fi
