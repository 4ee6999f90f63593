#!/usr/bin/env bash
# Compares the epochs on each allocator, in several shapes. `--help` has the details.

set -euo pipefail

readonly name=${0##*/}

usage() {
    cat <<END
usage: $name TRAIN FILE

Runs TRAIN, a build of cmd/train, with -compare: a config as it is, with a batch of 1024, with
width 333 and a batch of 61, with width 2048, and unfused, each with every executor and precision.
FILE is a CSV with a row for each allocator. Its times are of the epochs after the first, with
their validation. The allocators take turns.

  CONFIG      default configs/mnist.toml
  EXECUTORS   default "eager graph"
  PRECISIONS  default "fp32 3xtf32 tf32"; also bf16
  EPOCHS      epochs on each allocator; default 10
  MNIST       folder of the data set; default: search for it or fetch it
END
}

case ${1-} in -h | --help) usage; exit 0 ;; esac
(( $# == 2 )) || { usage >&2; exit 2; }
train=$1 file=$2 config=${CONFIG:-configs/mnist.toml}
read -ra executors <<< "${EXECUTORS:-eager graph}"
read -ra precisions <<< "${PRECISIONS:-fp32 3xtf32 tf32}"
# The changes of each job to the config.
readonly jobs=("" "bsz = 1024" "feat_dim = 333 and bsz = 61" "feat_dim = 2048" "fuse = false")

[[ -f $train && -x $train ]] || { printf '%s: no program %s: make build builds build/train\n' "$name" "$train" >&2; exit 2; }
[[ $("$train" -version) == *", CUDA "* ]] || { printf '%s: %s is built without CUDA: make build CUDA=1\n' "$name" "$train" >&2; exit 2; }
train=$(realpath "$train")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# settings JOB prints the flags that change the config for a job, one a line.
settings() {
    local key change
    while read -r change; do
        case $change in
            feat_dim*) key=model.$change ;;
            ?*) key=train.$change ;;
            *) continue ;;
        esac
        printf -- '-set\n%s\n' "${key// /}"
    done <<< "${1// and /$'\n'}"
}

# compare EXECUTOR PRECISION JOB trains and appends the job's rows.
compare() {
    local set
    mapfile -t set < <(settings "$3")
    [[ ${MNIST-} ]] && set+=(-set data.data_dir="$MNIST")
    printf '%s\n' "${config##*/}${3:+ with $3}, $1, $2" >&2
    "$train" -compare -csv "$scratch/table.csv" -set log.log_dir="$scratch/logs" -set train.executor="$1" \
        -set train.precision="$2" -set train.num_epochs="${EPOCHS:-10}" "${set[@]}" "$config" > "$scratch/said" 2>&1 ||
        { tail -n 3 "$scratch/said" >&2; exit 1; }
    awk -F, -v OFS=, -v config="${config##*/}${3:+ with $3}" -v executor="$1" -v precision="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["status"] != "done" { print "on " $at["allocator"] ": " $at["status"] > "/dev/stderr"; exit 1 }
        NR > 2 && $at["losses"] != "identical" { print "the losses on " $at["allocator"] " differ" > "/dev/stderr"; exit 1 }
        { printf "%s,%s,%s,%s,%.2f,%.2f,%.2f,%.2f,%.1f,%.1f,%.1f,%.1f,%.2f\n", config, executor, precision, $at["allocator"],
            $at["median_ms"], $at["fastest_ms"], $at["slowest_ms"],
            $at["allocator_us_per_step"], $at["allocs_per_step"], $at["driver_calls_per_step"],
            $at["peak_allocated_bytes"] / 1048576, $at["peak_reserved_bytes"] / 1048576, 100 * $at["val_acc"] }
    ' "$scratch/table.csv" >> "$scratch/rows.csv"
    rm -rf "$scratch/logs"
}

"$train" -version > /dev/null
for job in "${jobs[@]}"; do
    for executor in "${executors[@]}"; do
        for precision in "${precisions[@]}"; do compare "$executor" "$precision" "$job"; done
    done
done

device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | sed 's/, /, driver /;q') || device=
{
    printf '# Training on each allocator, a job a group of rows: %s. Epochs of the allocators in turns, %s each; of those after the first the median, the fastest and the slowest, training and validation together. in_allocator is the host'"'"'s time inside Alloc and Free. The losses of a group are identical, bit for bit.\n' \
        "$name TRAIN FILE" "${EPOCHS:-10}"
    printf '# %s, %s; %s\n' "${device:-no GPU}" "$(date +%F)" "$("$train" -version | tr '\n' ' ' | sed 's/ *$//')"
    echo config,executor,precision,allocator,median_ms,fastest_ms,slowest_ms,in_allocator_us_per_step,allocations_per_step,driver_calls_per_step,peak_allocated_mib,peak_reserved_mib,validation_accuracy_percent
    cat "$scratch/rows.csv"
} > "$file"
