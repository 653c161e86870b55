#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Does what a newcomer does, on a bare Debian 12 made for it in a temporary folder: clones the committed state and runs
# the quickstart (tests/bare.sh quickstart), the tests (tests/bare.sh tests [PART...]), or both (tests/bare.sh).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
what=${1:-both}
case $what in
  quickstart | tests | both) shift || true ;;
  *) echo "usage: tests/bare.sh [quickstart | tests [PART...]]" >&2 && exit 2 ;;
esac
if [ "$(id -u)" != 0 ]; then
  echo "tests/bare.sh makes a system of its own, which takes root"
  exit 77
fi
source "$root/tools/packages.sh"
railyard_need debootstrap git

# The mirror that this system uses itself; the public one if it is no Debian.
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true; } |
  sed -nE 's/^(URIs:|deb( \[[^]]*\])?) *(https?:[^ ]*debian\/?)( .*)?$/\3/p' | sed 1q)
mirror=${mirror:-http://deb.debian.org/debian}

bare=$(mktemp -d "${TMPDIR:-/tmp}/railyard-bare-XXXXXX")
mounted=()
clean_up() {
  local status=$? place
  for place in "${mounted[@]}"; do umount -l "$bare$place" || true; done
  rm -rf --one-file-system "$bare"
  exit $status
}
trap clean_up EXIT
trap 'exit 130' INT TERM

echo "A bare Debian 12 from $mirror"
debootstrap --variant=minbase bookworm "$bare" "$mirror" >"$bare.log" 2>&1 || { tail -n 20 "$bare.log" && exit 1; }
rm -f "$bare.log"
# How to get at packages is the machine's business, and what a newcomer's machine already has.
cp -L /etc/resolv.conf /etc/hosts "$bare/etc/"
apt-config dump | { grep -E '^Acquire::(http|https|Check)' || true; } >"$bare/etc/apt/apt.conf.d/99railyard"
if [ -d /etc/ssl/certs ]; then mkdir -p "$bare/etc/ssl" && cp -a /etc/ssl/certs "$bare/etc/ssl/"; fi
echo "deb $mirror bookworm main" >"$bare/etc/apt/sources.list"
for place in /proc /sys /dev /dev/pts /dev/shm; do
  mount --bind "$place" "$bare$place"
  mounted=("$place" "${mounted[@]}")
done

git clone --quiet --no-hardlinks "$root" "$bare/root/rail yard"
inside() { chroot "$bare" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb "$@"; }
if [ "$what" != tests ]; then
  for time in first second; do
    start=$(date +%s)
    inside bash -c 'cd /tmp && bash "/root/rail yard/examples/quickstart.sh"' | tee "$bare/output"
    echo "The $time time: $(($(date +%s) - start)) s"
    tail -n 1 "$bare/output" | grep -qE '^test accuracy (0\.9[5-9]|1\.00)$'
  done
fi
if [ "$what" != quickstart ]; then inside bash "/root/rail yard/tests/run.sh" "$@"; fi
