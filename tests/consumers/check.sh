#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds and runs one small project the way a user would: check.sh NAME BUILD FOLDER COMPILER COMPONENTS LIBTORCH
# BUILD is our configured build folder, FOLDER a place for what this makes, COMPONENTS "components core gloo torch",
# LIBTORCH "libtorch=" and the folder that RAILYARD_LIBTORCH names.
set -euo pipefail
name=$1
build=$2
work="$3/$1 x"  # with a space: paths must be quoted everywhere
cxx=$4
components=$5
libtorch=${6#libtorch=}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
rm -rf "$work"
mkdir -p "$work"
cd "$work"

has() { case " $components " in *" $1 "*) ;; *) return 1 ;; esac; }
need() { has "$1" || { echo "needs $1" && exit 77; }; }
expect() {  # expect LINE COMMAND...: the command succeeds and prints the line
  local line=$1
  shift
  bash "$root/tests/expect_output.sh" "^$line\$" "$@"
}
fails_with() {  # fails_with REGEX COMMAND...
  local regex=$1 status=0 output
  shift
  output=$("$@" 2>&1) || status=$?
  echo "$output" | tail -n 5
  if [ "$status" = 0 ]; then echo "It succeeds, and should not" && exit 1; fi
  grep -qE "$regex" <<<"$output" || { echo "No line matches $regex" && exit 1; }
}
project() {  # project FOLDER [CMAKE ARGUMENT...]
  local folder=$1
  shift
  cmake -S "$here/$folder" -B "build $folder" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" "$@" >"$folder.log" 2>&1 ||
    { cat "$folder.log" && return 1; }
  cmake --build "build $folder" -j 1
}
flags_single=(-std=c++20 -I"$root/single_include")
flags_headers=(-std=c++20 -I"$root/include")
release=v$(sed -nE 's/.*version = "([0-9]+)\.([0-9]+)\..*/\1_\2/p' "$root/include/railyard/core/version.hpp")
strict=(-Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror)

fake_torch() {  # fake_torch FOLDER HEADER_VERSION LIBRARY_VERSION [COMPILER FLAG...]
  local folder=$1 header=$2 library=$3
  shift 3
  mkdir -p "$folder/include/torch/csrc/api/include/torch" "$folder/lib"
  IFS=. read -r major minor patch <<<"$header"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n' \
    "$major" "$minor" "$patch" >"$folder/include/torch/csrc/api/include/torch/version.h"
  echo "#include <string>
    namespace at { std::string show_config(); std::string show_config() { return \"TORCH_VERSION=$library, X=1\"; } }" |
    "$cxx" -shared -fPIC -x c++ - -x none -o "$folder/lib/libtorch_cpu.so" "$@"
  echo | "$cxx" -shared -fPIC -x c++ - -o "$folder/lib/libc10.so"
}
finder_says() {  # finder_says REGEX LIBTORCH
  rm -rf finder
  cmake -S "$here/libtorch_finder" -B finder -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DRAILYARD_SOURCE="$root" \
    -DRAILYARD_LIBTORCH="$2" >finder.log 2>&1
  cat finder/answer
  tr '\n' ' ' <finder/answer | grep -qE "$1" || { echo "The finder does not say: $1" && exit 1; }
}

case $name in
  find_package)
    cmake --install "$build" --prefix "$work/staging" >/dev/null
    wanted=gloo
    has gloo || wanted=core
    if has torch; then wanted="gloo;torch"; fi
    project find_package -DCOMPONENTS="$wanted" -DCMAKE_PREFIX_PATH="$work/staging" -DRAILYARD_LIBTORCH="$libtorch"
    expect "core mean 1.5" "build find_package/core"
    expect "core mean 1.5" "build find_package/core_of_two"
    if has gloo; then expect "gloo mean 1.5" "build find_package/gloo"; fi
    if has torch; then expect "torch mean 1.5" "build find_package/torch"; fi
    rm -rf "build find_package"
    fails_with 'RAILYARD_LIBTORCH is /nowhere' project find_package -DCOMPONENTS="torch" \
      -DCMAKE_PREFIX_PATH="$work/staging" -DRAILYARD_LIBTORCH=/nowhere
    ;;
  subdirectory)
    need gloo
    project subdirectory -DRAILYARD_SOURCE="$root" -DRAILYARD_LIBTORCH="$libtorch" -DRAILYARD_WITH_TORCH=OFF
    expect "core mean 1.5" "build subdirectory/core"
    expect "gloo mean 1.5" "build subdirectory/gloo"
    ;;
  fetch_content)
    project fetch_content -DRAILYARD_SOURCE="$root"
    expect "core mean 1.5" "build fetch_content/core"
    ;;
  pkg_config)
    cmake --install "$build" --prefix "$work/staging" >/dev/null
    export PKG_CONFIG_PATH="$work/staging/share/pkgconfig"
    compile() {  # compile PROGRAM PACKAGE...: as a shell or make takes the flags, spaces in paths included
      local program=$1
      shift
      eval "\"$cxx\" -std=c++20 \"$here/$program.cpp\" -o $program $(pkg-config --cflags --libs "$@")"
    }
    compile core railyard
    expect "core mean 1.5" ./core
    if has torch; then
      compile torch railyard-torch railyard-gloo && expect "torch mean 1.5" ./torch
    elif has gloo; then
      compile gloo railyard-gloo && expect "gloo mean 1.5" ./gloo
    fi
    ;;
  single_file)
    "$cxx" "${flags_single[@]}" "$here/core.cpp" -o core -lfmt -pthread
    expect "core mean 1.5" ./core
    gloo=()
    if has gloo; then gloo=(-DRAILYARD_WITH_GLOO=1 -lgloo); fi
    program=$(has gloo && echo gloo || echo core)
    "$cxx" "${flags_single[@]}" "$here/$program.cpp" "$here/second_unit.cpp" -o of_two "${gloo[@]}" -lfmt -pthread
    expect "$program mean 1.5" ./of_two
    if has torch && [ -z "$libtorch" ]; then
      "$cxx" "${flags_single[@]}" -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 \
        -isystem /usr/include/torch/csrc/api/include "$here/torch.cpp" -o torch -lgloo -ltorch_cpu -lc10 -lfmt -pthread
      expect "torch mean 1.5" ./torch
    fi
    ;;
  compiled_once)
    flags=(-std=c++20 -I"$root/single_include/compiled")
    "$cxx" "${flags[@]}" "${strict[@]}" -c "$root/single_include/compiled/railyard.cpp" -o railyard.o
    "$cxx" "${flags[@]}" "${strict[@]}" "$here/core.cpp" "$here/second_unit.cpp" railyard.o -o core -lfmt -pthread
    expect "core mean 1.5" ./core
    # Beside a source that has everything in headers.
    "$cxx" "${flags_single[@]}" -c "$here/second_unit.cpp" -o second.o
    "$cxx" "${flags[@]}" "$here/core.cpp" second.o railyard.o -o core_of_both -lfmt -pthread
    expect "core mean 1.5" ./core_of_both
    ;;
  two_libraries)
    need gloo
    "$cxx" "${flags_headers[@]}" -DRAILYARD_WITH_GLOO=1 -c "$here/two_libraries.cpp" -o program.o
    for visibility in default hidden; do
      "$cxx" "${flags_headers[@]}" -fvisibility=$visibility -DRAILYARD_WITH_GLOO=1 -fPIC -c "$here/plugin.cpp" -o plugin.o
      # Another release in the same program would have none of these names (TRAPS 29).
      [ "$(nm plugin.o | grep -oE '8railyard.{5}' | sort -u)" = "8railyard4$release" ] ||
        { echo "Names stand outside of namespace $release" && exit 1; }
      for plugin in first second; do  # which are equal but for the name of their function
        objcopy --redefine-sym plugin=${plugin}_plugin plugin.o $plugin.o
        "$cxx" -shared $plugin.o -o lib${plugin}_$visibility.so -lgloo -lfmt -pthread
      done
      "$cxx" program.o -o $visibility -L. -lfirst_$visibility -lsecond_$visibility -Wl,-rpath,'$ORIGIN' -lgloo -lfmt -pthread
      expect 'sum 225 with .*two libraries agree' ./$visibility
    done
    ;;
  strict)
    "$cxx" "${flags_single[@]}" "${strict[@]}" -fsyntax-only "$here/core.cpp"
    if has gloo; then
      "$cxx" "${flags_headers[@]}" "${strict[@]}" -O2 -DRAILYARD_WITH_GLOO=1 -c "$here/gloo.cpp" -o gloo.o
    else
      "$cxx" "${flags_headers[@]}" "${strict[@]}" -O2 -c "$here/core.cpp" -o core.o
    fi
    if has torch && [ -z "$libtorch" ]; then
      "$cxx" "${flags_headers[@]}" "${strict[@]}" -DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 \
        -isystem /usr/include/torch/csrc/api/include -fsyntax-only "$here/torch.cpp"
    fi
    ;;
  fast_math)
    "$cxx" "${flags_headers[@]}" -O2 -ffast-math "$here/fast_math.cpp" -o fast_math -lfmt -pthread
    expect "halves true reports true reductions true statistics true" ./fast_math
    ;;
  layouts)
    # What users define, and what they compile for, changes no class (TRAPS 30).
    if ! "$cxx" --version | grep -qE 'g\+\+|GCC'; then echo "needs g++, which tells layouts" && exit 77; fi
    layouts() {  # layouts NAME FLAG...
      local layout=$1
      shift
      "$cxx" "${flags_headers[@]}" "$@" -fsyntax-only -fdump-lang-class=all "$here/core.cpp"
      grep -A 2 '^Class railyard' all >"$layout"
      [ "$(grep -c size= "$layout")" -gt 1000 ] || { echo "g++ tells of no classes" && exit 1; }
    }
    layouts plain
    layouts other -O3 -DNDEBUG -D_GLIBCXX_ASSERTIONS -march=native -ffast-math
    diff plain other
    ;;
  libtorch_finder)
    fake_torch good 2.7.1 2.7.1
    finder_says '^\|2\.7\.1' "$work/good"
    mkdir -p site-packages && cp -r good site-packages/torch
    finder_says '^\|2\.7\.1' "$work/site-packages"
    fake_torch mixed 2.7.1 1.13.0
    finder_says "headers in .*mixed/include are 2\.7\.1, but .*mixed/lib/libtorch_cpu.so is 1\.13\.0" "$work/mixed"
    fake_torch old 2.6.0 2.6.0 -D_GLIBCXX_USE_CXX11_ABI=0
    finder_says 'old ABI of std::string' "$work/old"
    fake_torch headless 2.7.1 2.7.1 && rm -r headless/include/torch/csrc
    finder_says 'LibTorch is incomplete: headers ""' "$work/headless"
    finder_says 'has no include/torch and lib' "$work"
    # A library that needs another which is not there at run time, as wheels need those of CUDA.
    echo 'int of_cuda(); int of_cuda() { return 0; }' | "$cxx" -shared -fPIC -x c++ - -o libof_cuda.so
    fake_torch lonely 2.7.1 2.7.1 -Wl,--no-as-needed "$work/libof_cuda.so"
    rm libof_cuda.so
    finder_says 'does not (run|link).*' "$work/lonely"
    ;;
  link_order)
    # Only LibTorch's wheels carry a Gloo of their own.
    need torch
    [ -n "$libtorch" ] || { echo "needs a wheel of LibTorch" && exit 77; }
    # The wheel has headers of another fmt than the library that is linked.
    flags=(-DRAILYARD_WITH_GLOO=1 -DRAILYARD_WITH_TORCH=1 -DFMT_HEADER_ONLY=1 "${flags_headers[@]}" -isystem "$libtorch/include"
      -isystem "$libtorch/include/torch/csrc/api/include")
    libraries=(-L"$libtorch/lib" -Wl,-rpath,"$libtorch/lib" -Wl,--allow-shlib-undefined -lfmt -pthread)
    "$cxx" "${flags[@]}" -c "$here/torch.cpp" -o torch.o
    "$cxx" torch.o -o right -lgloo -ltorch_cpu -lc10 "${libraries[@]}"
    expect "torch mean 1.5" ./right
    "$cxx" torch.o -o wrong -ltorch_cpu -lc10 -lgloo "${libraries[@]}"
    fails_with 'Gloo.*(before|first).*LibTorch|-lgloo before' ./wrong
    ;;
  *)
    echo "check.sh: there is no consumer $name" >&2
    exit 2
    ;;
esac
rm -rf "$work"
