# SPDX-License-Identifier: MIT
# Sourced by the scripts: finds out which packages are missing and installs them where it may. Names are Debian's and
# Ubuntu's; whatever is there by other means counts as installed.

railyard_has_header() { echo "#include <$1>" | railyard_compile -E -x c++ -std=c++20 - >/dev/null 2>&1; }

# Can the compiler link a program with its sanitizers?
railyard_has_sanitizers() {
  local program status=0
  program=$(mktemp)
  echo 'int main() {}' | "$1" -fsanitize=address,undefined -x c++ - -o "$program" 2>/dev/null || status=1
  rm -f "$program"
  return $status
}

# Prints the C++ compiler to use: CXX, which may have words before it ("ccache g++"), or the first g++ that is new
# enough. Fails, with a word, if there is none.
railyard_cxx() {
  local candidate version
  if [ -n "${CXX:-}" ]; then
    if command -v "$CXX" >/dev/null || command -v "${CXX%% *}" >/dev/null; then
      echo "$CXX"
      return
    fi
    echo "CXX is \"$CXX\", which is no program here: let it name a compiler for C++20, or unset it" >&2
    return 1
  fi
  for candidate in g++ g++-14 g++-13 g++-12; do
    version=$("$candidate" -dumpversion 2>/dev/null) || continue
    if [ "${version%%.*}" -ge 12 ]; then
      echo "$candidate"
      return
    fi
  done
  echo "A g++ of version 12 or newer is needed, or another compiler for C++20 named by CXX. On Debian or Ubuntu: sudo apt-get install g++-12" >&2
  return 1
}

# Calls that compiler.
railyard_compile() {
  local cxx words
  cxx=$(railyard_cxx) || return
  words=("$cxx")
  command -v "$cxx" >/dev/null || read -ra words <<<"$cxx"
  "${words[@]}" "$@"
}

railyard_has() {
  case $1 in
    g++ | g++-12) railyard_cxx >/dev/null 2>&1 ;;
    ninja-build) command -v ninja >/dev/null ;;
    pkg-config) command -v pkg-config >/dev/null ;;
    cmake | python3 | git | debootstrap | ccache | clang | clang-format | clang-19) command -v "$1" >/dev/null ;;
    libfmt-dev) railyard_has_header fmt/format.h ;;
    libgloo-dev) railyard_has_header gloo/rendezvous/context.h ;;
    libtorch-dev) railyard_has_header torch/csrc/api/include/torch/version.h ;;
    # What ldconfig is in is no place where a user's shell looks for commands.
    libopenblas0-pthread) PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep 'libopenblas' >/dev/null ;;
    libclang-rt-dev) railyard_has_sanitizers clang++ ;;
    catch2) railyard_has_header catch2/catch.hpp || railyard_has_header catch2/catch_all.hpp ;;
    *) dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed' ;;
  esac
}

# Prints what has to be called before apt-get: nothing for root, sudo where it may be used. Fails elsewhere.
railyard_as_root() {
  if [ "$(id -u)" = 0 ]; then return; fi
  command -v sudo >/dev/null || return 1
  if sudo -n true 2>/dev/null || [ -t 0 ]; then
    echo sudo
    return
  fi
  return 1
}

# Makes sure that all packages are there, or says exactly which are not and ends the script with status 1. Nothing is
# installed if one of them cannot be.
railyard_need() {
  local package missing=() as_root log
  # Installing what is there already would not help.
  if [ -n "${CXX:-}" ]; then railyard_cxx >/dev/null || exit 1; fi
  for package in "$@"; do
    railyard_has "$package" && continue
    # An old g++ is no reason to replace it.
    if [ "$package" = g++ ] && command -v g++ >/dev/null; then package=g++-12; fi
    missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then return; fi
  if ! command -v apt-get >/dev/null || ! as_root=$(railyard_as_root); then
    {
      echo "These packages are missing (names are Debian's and Ubuntu's), and may not be installed from here:"
      echo "  ${missing[*]}"
      echo "Install them and run this again. On Debian or Ubuntu: sudo apt-get install ${missing[*]}"
    } >&2
    exit 1
  fi
  echo "Installing ${missing[*]}" >&2
  log=$(mktemp)
  if ! {
    $as_root apt-get update -q &&
      $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    echo "apt-get could not install: ${missing[*]}" >&2
    exit 1
  fi
  rm -f "$log"
}
