#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a program and succeeds if it does and a line of its output matches: expect_output.sh REGEX PROGRAM [ARGUMENT...]
set -euo pipefail
regex=$1
shift
status=0
output=$("$@" 2>&1) || status=$?
echo "$output"
if [ "$status" != 0 ]; then
  echo "It ended with status $status"
  exit 1
fi
grep -qE "$regex" <<<"$output" || { echo "No line matches $regex"; exit 1; }
