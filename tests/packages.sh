#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What scripts do about missing packages, as seen by a user, by one with sudo and by root. What would install anything is
# a command of ours here, which writes down how it was called.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command_of_ours() { printf '#!/bin/bash\n%s\n' "$2" >"$work/$1" && chmod +x "$work/$1"; }

# Asks for packages as a user with this number, where sudo may be used or not; says what is printed and the status.
need() {
  local user=$1 sudo=$2 status=0
  shift 2
  : >"$work/calls"
  command_of_ours id "echo $user"
  command_of_ours apt-get "echo apt-get \"\$*\" >>'$work/calls'"
  command_of_ours dpkg-query 'exit 1'
  if [ "$sudo" = yes ]; then
    command_of_ours sudo "if [ \"\$1\" = -n ]; then exit 0; fi; echo sudo \"\$*\" >>'$work/calls'; \"\$@\""
  else
    command_of_ours sudo 'exit 1'
  fi
  # The commands that an ordinary user of Debian finds: what only root needs is elsewhere.
  PATH=$work:/usr/local/bin:/usr/bin:/bin bash -c 'source tools/packages.sh && railyard_need "$@" && echo went on' need "$@" \
    </dev/null 2>&1 || status=$?
  echo "status $status"
}

check() {
  local what=$1 text=$2 wanted
  shift 2
  for wanted in "$@"; do
    if ! grep -qF -- "$wanted" <<<"$text"; then
      printf '%s: "%s" is not in:\n%s\n' "$what" "$wanted" "$text"
      exit 1
    fi
  done
}

said=$(need 1000 no libone-dev python3 libtwo-dev)
check "a user" "$said" "  libone-dev libtwo-dev" "sudo apt-get install libone-dev libtwo-dev" "status 1"
if grep -q 'went on' <<<"$said" || [ -s "$work/calls" ]; then
  printf 'A user who may install nothing: the script went on, or called\n%s\n' "$(<"$work/calls")"
  exit 1
fi
check "a user with sudo" "$(need 1000 yes libone-dev python3)" "Installing libone-dev" "went on" "status 0"
check "the calls of a user with sudo" "$(<"$work/calls")" "sudo apt-get update" "--no-install-recommends libone-dev"
check "root" "$(need 0 no libone-dev python3)" "went on" "status 0"
check "the calls of root" "$(<"$work/calls")" "--no-install-recommends libone-dev"
# What there is already is found by a user as well.
check "a user who misses nothing" "$(need 1000 no libfmt-dev libgloo-dev libopenblas0-pthread)" "went on" "status 0"
# So is it by a compiler that is named with words before it, as ccache is.
check "a user with two words in CXX" "$(CXX='env g++' need 1000 no libfmt-dev)" "went on" "status 0"
# A CXX that names no program is no reason to install anything.
for user in 1000 0; do
  said=$(CXX='no-such-compiler' need $user no libfmt-dev g++)
  check "a user without the compiler of CXX" "$said" 'CXX is "no-such-compiler"' "status 1"
  if [ -s "$work/calls" ]; then printf 'For a CXX that names no program were called\n%s\n' "$(<"$work/calls")" && exit 1; fi
done
# A compiler that is too old is named as such.
for compiler in g++ g++-12 g++-13 g++-14; do command_of_ours $compiler 'echo 11'; done
old=$(PATH=$work:$PATH CXX='' bash -c 'source tools/packages.sh && cxx=$(railyard_cxx) && echo went on' 2>&1) || true
check "a user with an old g++" "$old" "g++ of version 12 or newer is needed" "apt-get install g++-12"
if grep -q 'went on' <<<"$old"; then echo "An old g++ is taken" && exit 1; fi
echo "A user, one with sudo and root are told of what is missing, or get it"
