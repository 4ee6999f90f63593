#!/usr/bin/env bash
# Compares the epochs of several builds of the program, in several shapes. `--help` has the details.

set -euo pipefail

readonly name=${0##*/}

usage() {
    cat <<END
usage: $name FILE NAME=TRAIN...

Compares named builds of cmd/train, for example of several CUDA toolkits or commits:

  tools/$name builds.csv 11.8=a/train 12.4=b/train

The builds take turns. FILE is a CSV with a row for each build, shape and precision. Its times are
medians over rounds of the median epoch after the first, with its validation.

  CONFIG      default configs/mnist.toml
  SHAPES      width x batch; default "784x64 784x1024 2048x256 2048x4096"
  PRECISIONS  default "fp32 3xtf32 tf32"; also bf16
  EXECUTOR    default graph
  EPOCHS      epochs of a round; default 20
  ROUNDS      default 3
  MNIST       folder of the data set; default: search for it or fetch it
END
}

case ${1-} in -h | --help) usage; exit 0 ;; esac
(( $# >= 2 )) || { usage >&2; exit 2; }
file=$1 config=${CONFIG:-configs/mnist.toml} rounds=${ROUNDS:-3}
shift
read -ra shapes <<< "${SHAPES:-784x64 784x1024 2048x256 2048x4096}"
read -ra precisions <<< "${PRECISIONS:-fp32 3xtf32 tf32}"

die() {
    printf '%s: %s\n' "$name" "$*" >&2
    exit 2
}
names=() trains=()
for build; do
    [[ $build == ?*=?* ]] || die "$build is not NAME=TRAIN"
    [[ -f ${build#*=} && -x ${build#*=} ]] || die "no program ${build#*=}: make build builds build/train"
    names+=("${build%%=*}") trains+=("$(realpath "${build#*=}")")
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# ms TRAIN SHAPE PRECISION trains and prints the median time of an epoch.
ms() {
    local set=(-set model.feat_dim="${2%x*}" -set train.bsz="${2#*x}" -set train.precision="$3"
        -set train.executor="${EXECUTOR:-graph}" -set train.num_epochs="${EPOCHS:-20}" -set log.log_dir="$scratch/logs")
    [[ ${MNIST-} ]] && set+=(-set data.data_dir="$MNIST")
    "$1" -csv "$scratch/table.csv" "${set[@]}" "$config" > "$scratch/said" 2>&1 || { tail -n 3 "$scratch/said" >&2; return 1; }
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } NR == 2 { print $at["median_ms"] }' "$scratch/table.csv"
    rm -rf "$scratch/logs"
}

for shape in "${shapes[@]}"; do
    for precision in "${precisions[@]}"; do
        printf '%s, %s\n' "$shape" "$precision" >&2
        for (( round = 0; round < rounds; round++ )); do
            for i in "${!trains[@]}"; do
                took=$(ms "${trains[i]}" "$shape" "$precision")
                printf '%s,%s,%s,%s\n' "${names[i]}" "${shape/x/,}" "$precision" "$took"
            done
        done
    done
done > "$scratch/rounds.csv"

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | sed 's/, /, driver /;q') || device=
{
    printf '# Epochs by build of the program, in turns: EXECUTOR=%s EPOCHS=%s ROUNDS=%s tools/%s FILE NAME=TRAIN...\n' \
        "${EXECUTOR:-graph}" "${EPOCHS:-20}" "$rounds" "$name"
    printf '# %s, %s; clocks not locked\n' "${device:-no GPU}" "$(date +%F)"
    for i in "${!trains[@]}"; do printf '# %s: %s\n' "${names[i]}" "$("${trains[i]}" -version | tr '\n' ' ' | sed 's/ *$//')"; done
    echo build,feat_dim,bsz,precision,median_ms
    # The middle round of each build, shape and precision.
    sort -t , -k 2,2n -k 3,3n -k 4,4 -k 1,1V -k 5,5n "$scratch/rounds.csv" |
        awk -F, -v OFS=, -v rounds="$rounds" '(NR - 1) % rounds == int(rounds / 2) { $5 = sprintf("%.2f", $5); print }'
} > "$scratch/all.csv"
cat "$scratch/all.csv" > "$file"
