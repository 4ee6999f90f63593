#!/usr/bin/env bash
# Prints the registers and spilled bytes of every kernel as CSV, as kernels.mk has nvcc
# compile them for compute capability 9.0:
#
#   tools/registers.sh [OBJECTS] > assets/registers_sm90.csv
#
# OBJECTS is a new folder, such as build/kernels-sm_90, that keeps the objects and, as the file log, what
# nvcc printed. NVCC names a compiler other than the one on PATH. Before 12.1 it compiles no kernels by
# TMA and by warpgroup MMA.

set -euo pipefail

case ${1-} in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[[ $# -le 1 ]] || { echo "usage: [NVCC=COMPILER] ${0##*/} [OBJECTS] > FILE" >&2; exit 2; }
cd "$(dirname "$0")/.."
nvcc=$(type -P "${NVCC:-nvcc}") || { echo "${0##*/}: no ${NVCC:-nvcc} here: NVCC names the compiler" >&2; exit 1; }
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
if (($#)); then
    objects=$1
    mkdir "$objects"
else
    objects=$(mktemp -d)
    trap 'rm -rf "$objects"' EXIT
fi

# rows turns nvcc's command lines, and what ptxas prints about each file's kernels, into rows.
# Of a kernel compiled for both sm_90 and sm_90a, a GPU takes the second.
rows() {
    c++filt | awk '
        match($0, / -c [^ ]*\.cu /) { file = substr($0, RSTART + 4, RLENGTH - 5); sub(/^kernels\/cuda\//, "", file) }
        / Compiling entry function / { target = $NF }
        / Function properties for / { name = $0; sub(/.*Function properties for /, "", name) }
        /bytes spill stores/ { stores = $5; loads = $9 }
        match($0, /Used [0-9]+ registers/) {
            registers = substr($0, RSTART + 5, RLENGTH - 15)
            sub(/^void /, "", name)
            gsub(/\(anonymous namespace\)::|gemm::([a-z]+::)?/, "", name)
            gsub(/ >/, ">", name)
            sub(/\(.*/, "", name)
            gsub(/, /, " ", name)
            key = file "," name
            if (!(key in row) || target ~ /a.$/) row[key] = key "," registers "," stores "," loads
        }
        END { for (key in row) print row[key] }'
}

NVCC_APPEND_FLAGS="-Xptxas -v" make -f kernels/kernels.mk -O -j"$(nproc)" NVCC="$nvcc" CUDA_ARCH=sm_90 EMULATE= kernels_build="$objects" \
    "$objects/libkernels.a" >"$objects/log" 2>&1 || { cat "$objects/log" >&2; exit 1; }

echo "# Registers and spilled bytes of every kernel: tools/registers.sh with nvcc $release, for sm_90, and for sm_90a where there is a kernel for it; of warpgroup_gemm at launch, before its warpgroups share them out by setmaxnreg. Template arguments are those of the source: the layout (0 NN, 1 NT, 2 TN), then flags and tile sizes."
echo "file,kernel,registers,spill_store_bytes,spill_load_bytes"
rows <"$objects/log" | LC_ALL=C sort
