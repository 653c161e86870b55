#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Lets a compiler for 64-bit ARM check what is in the headers, but for those that need LibTorch or Gloo:
#   tests/arm64.sh FOLDER
# FOLDER is for what this makes: headers of libraries as this machine has them, which differ little by processor.
set -euo pipefail
folder=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  echo "Skipped: aarch64-linux-gnu-g++ is not here (g++-aarch64-linux-gnu)"
  exit 77
fi
rm -rf "$folder" && mkdir -p "$folder/include"
cp -r /usr/include/{fmt,openssl,libpng16} /usr/include/{zlib,zconf,zstd,png,pngconf,pnglibconf,jpeglib,jmorecfg,jerror}.h \
  "$folder/include"
cp -r "/usr/include/$(uname -m)-linux-gnu/openssl" "/usr/include/$(uname -m)-linux-gnu/jconfig.h" "$folder/include"
cd "$root/include"
find railyard -name '*.hpp' -not -path 'railyard/torch/*' -not -name 'gloo*' -not -name railyard.hpp | sort |
  sed 's/.*/#include <&>/' >"$folder/everything.cpp"
aarch64-linux-gnu-g++ -std=c++20 -fsyntax-only -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror -DRAILYARD_WITH_ZLIB=1 \
  -DRAILYARD_WITH_ZSTD=1 -DRAILYARD_WITH_IMAGES=1 -I "$root/include" -isystem "$folder/include" "$folder/everything.cpp"
echo "$(wc -l <"$folder/everything.cpp") headers compile for 64-bit ARM"
