#!/usr/bin/env bash
# Builds build/mlpool-VERSION-py3-none-manylinux_2_28_x86_64.whl, which pip installs on machines with glibc 2.28 or later. The
# same commit and tools give the same bytes.
#
#   tools/release/wheel.sh
#
# The environment variable VERSION replaces the version (git describe); ARCH=aarch64 builds for machines with an Arm CPU, with
# a cross compiler, such as the package gcc-aarch64-linux-gnu. Needs Go, gcc, python3, and apt for an older glibc to link with.

set -euo pipefail
# shellcheck source=tools/release/release.sh
. "$(dirname "$0")/release.sh"

get_sysroot
dir=build/wheel-$machine
rm -rf "$dir"
mkdir -p "$dir"
library "$dir/mlpool"
licenses "$dir/licenses" ./cmd/libmlpool
cp LICENSE "$dir/licenses/"
python3 tools/release/pack.py "$dir" "$python_version" "py3-none-manylinux_${oldest/./_}_$machine" "$epoch"
