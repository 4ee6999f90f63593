#!/usr/bin/env bash
# Tests trainings on several GPUs: their results, how they end when something fails, and how they
# scale. `--help` has the details.

# Some functions are called only through others, which shellcheck does not see.
# shellcheck disable=SC2317,SC2119,SC2120
set -uo pipefail

readonly name=${0##*/}

usage() {
    cat <<END
usage: $name TRAIN FOLDER [PART...]

Runs TRAIN, a build of cmd/train with CUDA, on the GPUs of this machine. Each PART writes its
results to FOLDER: checks.txt, failures.txt, sanitizer.txt, scaling.csv, and with ALLOCBENCH
allreduce_N.csv for N GPUs, and a picture of the last. PARTs are checks, failures, sanitizer, scaling and
allreduce; the default is all. Exits with 1 if a check fails or runs out of time, with 2 if a
requirement is missing. A part that is ended early keeps its rows.

  RANKS       numbers of GPUs, such as "2 4 8"; default 2. The checks, failures and sanitizer are
              of the last one
  MNIST       folder of the data set; default: search for it or fetch it
  CONFIG      default configs/mnist.toml
  ALLOCBENCH  a build of tools/allocbench with CUDA
  EXECUTORS   of scaling; default "eager graph"
  PRECISIONS  of scaling; default "tf32 3xtf32"; also bf16
  SHAPES      of scaling, such as "2048x4096 4096x8192"; default: all. A weak one has these rows on
              each GPU. It trains with MNIST as it is, then with each image as often as there are
              GPUs, so that a GPU has as many steps as one alone. A strong one has these rows on all
              together
  EPOCHS      of scaling; default 100. With few, a GPU is measured before it slows down at its
              power limit
END
}

case ${1-} in -h | --help) usage; exit 0 ;; esac
(( $# >= 2 )) || { usage >&2; exit 2; }
train=$1 out=$2
shift 2
parts=${*:-checks failures sanitizer scaling allreduce}
read -ra counts <<< "${RANKS:-2}"
ranks=${counts[-1]} config=${CONFIG:-configs/mnist.toml}
executors=${EXECUTORS:-eager graph} precisions=${PRECISIONS:-tf32 3xtf32} epochs=${EPOCHS:-100}

die() {
    printf '%s: %s\n' "$name" "$*" >&2
    exit 2
}
[[ -f $train && -x $train ]] || die "no program $train: make build CUDA=1 builds build/train"
train=$(realpath "$train")
[[ $("$train" -version) == *", CUDA "* ]] || die "$train is built without CUDA: make build CUDA=1"
type mpirun > /dev/null 2>&1 || die "mpirun is missing: install Open MPI"
gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU ')
for n in "${counts[@]}"; do
    [[ $n =~ ^[1-9][0-9]*$ && $n != 1 ]] || die "RANKS: $n is not a number of several GPUs"
    (( gpus >= n )) || die "RANKS=$n, but this machine has $gpus GPUs"
done

mkdir -p "$out" || exit
out=$(realpath "$out")
work=$(mktemp -d) || exit
started=() # processes of start, until finish
# KILL also ends a stopped process.
trap '(( ${#started[@]} )) && kill -KILL "${started[@]}" && wait; rm -rf "$work"' EXIT
bad=0

common=(-set log.log_dir="$work/logs" -set train.precision=tf32)
[[ ${MNIST-} ]] && common+=(-set data.data_dir="$MNIST")

# one ARGUMENT... trains on one GPU, several N ARGUMENT... on N.
one() { "$train" "${common[@]}" "$@" "$config"; }
several() {
    local n=$1
    shift
    mpirun --allow-run-as-root --oversubscribe -np "$n" "$train" "${common[@]}" "$@" "$config"
}

# start R ARGUMENT... starts rank R of all as mpirun does, but it keeps running when another ends.
# finish waits for all started ranks and returns the status of rank 0.
start() {
    local r=$1
    shift
    OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_LOCAL_RANK=$r OMPI_COMM_WORLD_SIZE=$ranks OMPI_COMM_WORLD_LOCAL_SIZE=$ranks \
        MASTER_PORT=$port "$train" "${common[@]}" "$@" "$config" &
    started[r]=$!
}
finish() {
    local i code
    for (( i = 0; i < 600; i++ )); do
        [[ $(jobs -r) ]] || break
        sleep 0.1
    done
    [[ $(jobs -r) ]] && echo "a rank hangs" && kill -KILL "${started[@]}"
    wait "${started[0]}"
    code=$?
    wait
    started=()
    return "$code"
}

say() { printf '%s\n' "$*" | tee -a "$file"; }
# verdict WHAT COMMAND... reports whether a command succeeds, fails or runs out of time.
verdict() {
    local what=$1
    shift
    "$@" > "$work/verdict" 2>&1
    case $? in
    0) say "ok    $what"; return ;;
    124) say "?     $what: ran out of time" ;; # the status of timeout
    *) say "WRONG $what: $(why "$work/verdict")" ;;
    esac
    bad=1
}
# why FILE prints the error of the trainer, or else the last lines.
why() { { grep -a '^train: ' "$1" || tail -n 3 "$1"; } | tr '\n' ' '; }

losses() { cp "$work/logs/latest/train_losses.txt" "$work/$1"; }
# near A B succeeds if the losses of the first fifty steps differ only by rounding. Later a ReLU may
# cross zero in one training only.
near() { paste "$work/$1" "$work/$2" | awk 'NR <= 50 { d = $1 - $2; if (d < 0) d = -d; if (d > m) m = d } END { print "largest difference", m; exit !(NR && m < 2e-3) }'; }
# trains NAME COMMAND... trains and keeps the losses as NAME.
trains() {
    local to=$1
    shift
    "$@" && losses "$to"
}

checks() {
    local exact=(-set train.precision=3xtf32 -set train.num_epochs=3)
    verdict "$ranks ranks train" trains eager several "$ranks" "${exact[@]}"
    cat "$work/verdict" >> "$file"
    verdict "the same again" trains again several "$ranks" "${exact[@]}"
    verdict "the same losses, bit for bit" cmp "$work/eager" "$work/again"
    verdict "from graphs" trains graph several "$ranks" "${exact[@]}" -set train.executor=graph
    verdict "the same losses from graphs, bit for bit" cmp "$work/eager" "$work/graph"
    verdict "unfused" trains unfused several "$ranks" "${exact[@]}" -set train.fuse=false
    verdict "unfused losses are near" near eager unfused
    verdict "one rank with all rows" trains one one "${exact[@]}" -set train.bsz=$((64 * ranks))
    verdict "its losses are near" near eager one
    verdict "a large model from graphs" several "$ranks" -set model.feat_dim=2048 -set train.bsz=1000 -set train.num_epochs=3 -set train.executor=graph
    cat "$work/verdict" >> "$file"
    for executor in eager graph; do
        ALLOCATOR_TYPE=cuda verdict "cuda allocator, $executor" trains cuda several "$ranks" "${exact[@]}" -set train.executor="$executor"
        verdict "its losses, bit for bit" cmp "$work/eager" "$work/cuda"
    done
    verdict "resume with one rank" "$train" -resume "$work/logs/latest" -set train.num_epochs=5
    verdict "resume with $ranks again" mpirun --allow-run-as-root --oversubscribe -np "$ranks" "$train" -resume "$work/logs/latest" -set train.num_epochs=7
    if type torchrun > "$work/verdict" 2>&1; then
        verdict "torchrun" torchrun --no-python --nproc_per_node "$ranks" "$train" "${common[@]}" -set train.num_epochs=1 "$config"
    fi
}

# ends WHAT WANT COMMAND... succeeds if a command fails with an error that contains WANT.
ends() {
    local what=$1 want=$2 began=$SECONDS
    shift 2
    say "# $what"
    port=$((20000 + RANDOM % 10000))
    if "$@" > "$work/ends" 2>&1; then
        say "WRONG it succeeded"
        bad=1
    fi
    say "$(grep -a '^train: ' "$work/ends")"
    if grep -qaF "$want" "$work/ends" && ! grep -qa 'a rank hangs' "$work/ends"; then
        say "ok    after $((SECONDS - began)) s"
    else
        say "WRONG after $((SECONDS - began)) s, want: $want"
        tail -n 20 "$work/ends" | tee -a "$file"
        bad=1
    fi
}

half() { RANK=0 WORLD_SIZE=2 one; }
# first N ARGUMENT... starts the first N ranks.
first() {
    local r n=$1
    shift
    for (( r = 0; r < n; r++ )); do start "$r" "$@"; done
}
alone() { first $((ranks - 1)); finish; }
one_gpu() { CUDA_VISIBLE_DEVICES=0 first "$ranks"; finish; }
others() { first $((ranks - 1)); start $((ranks - 1)) -set train.bsz=32; finish; }
# signalled SIGNAL RANK EXECUTOR sends a signal to a rank once there is a checkpoint. A stopped rank
# continues once another has ended.
signalled() {
    local i
    rm -rf "$work/logs"
    first "$ranks" -set train.num_epochs=100000 -set train.checkpoint_every=1 -set train.executor="$3"
    for (( i = 0; i < 600; i++ )); do
        [[ -e $work/logs/latest/weights.safetensors ]] && break
        sleep 0.1
    done
    sleep 1
    kill "-$1" "${started[$2]}"
    if [[ $1 == STOP ]]; then
        timeout 60 tail -f --pid="${started[($2 + 1) % ranks]}" /dev/null
        kill -CONT "${started[$2]}"
    fi
    finish
}

failures() {
    ends "half a launch" "half a launch: RANK, WORLD_SIZE without" half
    ends "a rank that never comes" "rank $((ranks - 1)) of $ranks did not come" alone
    ends "two ranks on one GPU" "rank 0 and rank 1 are both on the GPU" one_gpu
    ends "different configs" "train.bsz is 32 on rank $((ranks - 1)), and 64 on rank 0" others
    ends "more ranks than GPUs" "has no GPU" several $(($(nvidia-smi -L | wc -l) + 1))
    local executor how what signal is r=0
    for executor in eager graph; do
        for how in "killed KILL gone" "stopped STOP silent"; do
            read -r what signal is <<< "$how"
            r=$(((r + 1) % ranks)) # every rank in turn
            ends "rank $r is $what, $executor" "rank $r is $is" signalled "$signal" "$r" "$executor"
            verdict "its checkpoint resumes" "$train" -resume "$work/logs/latest" \
                -set train.num_epochs=$(($(wc -l < "$work/logs/latest/metrics.jsonl") + 2))
        done
        r=$(((r + 1) % ranks))
        ends "rank $r is interrupted, $executor" "train: interrupted" signalled TERM "$r" "$executor"
    done
}

sanitizer() {
    if ! type compute-sanitizer > "$work/verdict" 2>&1; then
        say "compute-sanitizer is missing"
        return
    fi
    for tool in memcheck racecheck; do
        for executor in eager graph; do
            verdict "$tool, $executor" timeout 200 mpirun --allow-run-as-root --oversubscribe -np "$ranks" \
                compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$train" "${common[@]}" \
                -set model.feat_dim=128 -set train.bsz=2000 -set train.num_epochs=1 -set train.executor="$executor" "$config"
            grep -a 'ERROR SUMMARY\|RACECHECK SUMMARY' "$work/verdict" >> "$file"
        done
    done
}

# field FILE NAME prints a column of a CSV with one row.
field() { awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR == 2 && at { print $at }' "$1"; }

readonly images=60000 # of MNIST, to train with

# copies N prints the folder of a data set that has each image of MNIST N times. The first call makes it.
copies() {
    local dir=$work/$1_times path count head i
    [[ ! -d $dir ]] || { echo "$dir"; return; }
    mkdir "$dir"
    "$train" "${common[@]}" -data "$config" | sed -n 's/ *[0-9]* bytes$//p' | while read -r path; do
        case ${path##*/} in *train-*) count=$(($1 * images)) ;; *) count=$(($1 * 10000)) ;; esac
        # The head has the kind of file, the number of images and, of images, their size.
        case ${path##*/} in *-images*) head=16 ;; *) head=8 ;; esac
        if [[ $path == *.gz ]]; then gzip -cd "$path"; else cat "$path"; fi > "$work/once"
        path=${path%.gz}
        {
            head -c 4 "$work/once"
            printf '%b' "$(printf '\\x%02x' $((count >> 24)) $((count >> 16 & 255)) $((count >> 8 & 255)) $((count & 255)))"
            head -c "$head" "$work/once" | tail -c +9
            for (( i = 0; i < $1; i++ )); do tail -c +$((head + 1)) "$work/once"; done
        } > "$dir/${path##*/}"
    done
    echo "$dir"
}

# measure CSV RUN TIMES BSZ NOTE ARGUMENT... appends a line about a training started by RUN, with the images of copies TIMES.
measure() {
    local csv=$1 run=$2 times=$3 bsz=$4 note=$5 ms val
    shift 5
    (( times == 1 )) || set -- "$@" -set data.data_dir="$(copies "$times")"
    # shellcheck disable=SC2086 # RUN is one or two words
    if ! $run "$@" -set train.bsz="$bsz" -set train.num_epochs="$epochs" -csv "$work/table.csv" > "$work/run" 2>&1; then
        say "WRONG $note, $bsz rows a GPU: $(why "$work/run")"
        bad=1
        return
    fi
    ms=$(field "$work/table.csv" median_ms) val=$(field "$work/table.csv" val_ms)
    printf '%s,%s,%s,%s,%s,%s,%s,%s\n' "$note" "$bsz" $((times * images)) "$ms" "$val" \
        "$(awk -v ms="$ms" -v images=$((times * images)) 'BEGIN { printf "%.0f", 1e3 * images / ms }')" \
        "$(field "$work/table.csv" all_reduce_us)" "$(field "$work/table.csv" all_reduce_hidden)" | tee -a "$csv"
}

readonly columns=bsz,images,median_ms,val_ms,images_per_s,all_reduce_us,all_reduce_hidden

scaling() {
    echo "feat_dim,precision,executor,ranks,$columns" | tee "$out/scaling.csv"
    # precision; rows of one GPU; if weak also of each of several GPUs, if strong of all together
    local width bsz precision weak strong executor n times
    while read -r precision width bsz weak strong; do
        [[ " $precisions " == *" $precision "* && " ${SHAPES:-${width}x$bsz} " == *" ${width}x$bsz "* ]] || continue
        for executor in $executors; do
            local set=(-set model.feat_dim="$width" -set train.precision="$precision" -set train.executor="$executor")
            measure "$out/scaling.csv" one 1 "$bsz" "$width,$precision,$executor,1" "${set[@]}" < /dev/null
            for n in ${weak:+"${counts[@]}"}; do
                for times in 1 "$n"; do
                    measure "$out/scaling.csv" "several $n" "$times" "$bsz" "$width,$precision,$executor,$n" "${set[@]}" < /dev/null
                done
            done
            for n in ${strong:+"${counts[@]}"}; do
                measure "$out/scaling.csv" "several $n" 1 $((bsz / n)) "$width,$precision,$executor,$n" "${set[@]}" < /dev/null
            done
        done
    done <<END
tf32 2048 4096 weak strong
bf16 2048 4096 weak strong
tf32 4096 8192 weak strong
bf16 4096 8192 weak strong
tf32 2048 1024 weak strong
bf16 2048 1024 weak strong
3xtf32 784 64 weak strong
tf32 784 64 weak
bf16 784 64 weak
3xtf32 784 1024 weak
bf16 784 1024 weak
3xtf32 784 4096 weak
END
}

allreduce() {
    if [[ ! ${ALLOCBENCH-} ]]; then
        say "no ALLOCBENCH"
        return
    fi
    local n
    for n in "${counts[@]}"; do
        mpirun --allow-run-as-root --oversubscribe -np "$n" "$ALLOCBENCH" -scenario allreduce \
            -csv "$out/allreduce_$n.csv" -plots "$out" 2>&1 | tee -a "$file"
        (( PIPESTATUS[0] == 0 )) || bad=1
    done
}

for part in $parts; do
    file=$out/$part.txt
    case $part in
    checks | failures | sanitizer | scaling | allreduce) : > "$file"; "$part" ;;
    *) printf '%s: no part %s; see --help\n' "$name" "$part" >&2; exit 2 ;;
    esac
done
exit "$bad"
