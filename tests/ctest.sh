#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs tests of a build folder, and tells in the end what could not be tested, and what has failed:
#   tests/ctest.sh FOLDER JOBS OPTION_OF_CTEST...
# A test waits with deadlines, which it can miss where all cores are busy with other tests. So the few that fail are run
# once more, one at a time: what passes then is named, for it may be a race as well, and counts as passed.
set -uo pipefail
folder=$1
jobs=$2
shift 2
tests=$(dirname "${BASH_SOURCE[0]}")
most=10

rm -f "$folder/results.xml" "$folder/again.xml"
status=0
ctest --test-dir "$folder" --parallel $((2 * jobs)) --no-tests=error --output-junit results.xml "$@" || status=$?
[ -f "$folder/results.xml" ] || exit "$status"
results=("$folder/results.xml")
num_failed=$(python3 "$tests/failures.py" --count "${results[@]}") || exit 1
if [ "$num_failed" -gt 0 ] && [ "$num_failed" -le $most ]; then
  echo "Once more, one at a time:"
  status=0
  ctest --test-dir "$folder" --rerun-failed --output-on-failure --output-junit again.xml || status=$?
  results+=("$folder/again.xml")
fi
python3 "$tests/failures.py" "${results[@]}" || status=1
exit "$status"
