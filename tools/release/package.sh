#!/usr/bin/env bash
# Makes the Python package mlpool of a folder with libmlpool.so, with what programs in C and C++ need to compile: headers, and
# files for pkg-config and CMake.
#
#   tools/release/package.sh DIR [VERSION]

set -euo pipefail
dir=$(realpath "$1")
cd "$(dirname "$0")/../../cmd/libmlpool"
rm -f "$dir/libmlpool.h" # Go writes it; mlpool.h is for people
mkdir -p "$dir"/{include,pkgconfig,cmake,pytorch}
cp python/mlpool/*.* "$dir/"
cp mlpool.h ./*.hpp "$dir/include/"
cp mlpool.pc "$dir/pkgconfig/"
cp mlpool-config.cmake "$dir/cmake/"
cp pytorch/* "$dir/pytorch/"
[[ ! ${2-} ]] || sed -i "s/0\.0\.0/$2/" "$dir/__init__.py" "$dir/pkgconfig/mlpool.pc"
