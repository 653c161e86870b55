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

mapfile -d '' -t files < <(find include examples tests benchmarks cmake -type f \( -name '*.hpp' -o -name '*.cpp' \) -print0)
if [ "${1:-}" = --check ]; then
  # Compared by text: --dry-run also reports replacements that change nothing, such as after an inline namespace.
  status=0
  for file in "${files[@]}"; do
    "$formatter" "$file" | diff -u --label "$file" --label "$file, formatted" "$file" - || status=1
  done
  exit $status
else
  "$formatter" -i "${files[@]}"
fi
