#!/usr/bin/env bash
# Prints the registers and spilled bytes of every kernel as CSV, as nvcc compiles them
# for compute capability 9.0:
#
#   tools/registers.sh > assets/registers_sm90.csv
#
# NVCC names another compiler than the one on PATH.

set -euo pipefail
cd "$(dirname "$0")/.."

nvcc=${NVCC:-nvcc}
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
object=$(mktemp)
trap 'rm -f "$object"' EXIT

# rows FILE turns what ptxas says of a file's kernels into rows.
rows() {
    c++filt | awk -v file="$1" '
        /Function properties for / { name = $0; sub(/.*Function properties for /, "", name) }
        /bytes spill stores/ { stores = $5; loads = $9 }
        /Used [0-9]+ registers/ {
            sub(/^void /, "", name)
            gsub(/\(anonymous namespace\)::|gemm::skinny::|gemm::/, "", name)
            gsub(/ >/, ">", name)
            sub(/\(.*/, "", name)
            gsub(/, /, " ", name)
            match($0, /Used [0-9]+/)
            print file "," name "," substr($0, RSTART + 5, RLENGTH - 5) "," stores "," loads
        }'
}

echo "# Registers and spilled bytes of every kernel: tools/registers.sh with nvcc $release, -O3 -arch=sm_90. Template arguments are those of the source: the layout (0 NN, 1 NT, 2 TN), then flags and tile sizes."
echo "file,kernel,registers,spill_store_bytes,spill_load_bytes"
for source in kernels/cuda/*/*.cu; do
    "$nvcc" -O3 -arch=sm_90 -Xptxas -v -Ikernels/cuda -c "$source" -o "$object" 2>&1 | rows "${source#kernels/cuda/}"
done | LC_ALL=C sort
