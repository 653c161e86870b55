#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes a table of the figures of benchmarks/gpu.cpp, which come on standard input: table.sh VERSIONS. Says with which
# card and driver they were measured, and what is to be reached.
set -euo pipefail
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
cat <<END
# Training on a GPU

Written by \`bash tests/gpu.sh\`. Card and driver: $card. $1. $(date --utc +%Y-%m-%d).

| figure | measured | to reach |
|---|---|---|
END
awk '
  function to_reach(name) {
    if (name ~ /ours_over_lone$/) return name ~ /memory/ ? "<= 1.02" : "<= 1.01"
    if (name ~ /mlp.ddp_over_ours$/) return ">= 2"
    if (name ~ /ddp_over_ours$/) return ">= 1.05"
    if (name ~ /exposed_communication/) return "<= 5"
    if (name ~ /all_reduce/) return "<= 10"
    if (name ~ /host/) return "<= 0"
    return ""
  }
  {
    split(to_reach($1), bound, " ")
    is_reached = bound[1] == "" || (bound[1] == "<=" ? $2 + 0 <= bound[2] + 0 : $2 + 0 >= bound[2] + 0)
    printf "| `%s` | %s %s | %s%s |\n", $1, $2, $3, to_reach($1), is_reached ? "" : ", **missed**"
  }'
