#!/usr/bin/env bash
# Runs a command with the GPU's clock locked, for comparable timings. `--help` has the details.

set -uo pipefail

readonly name=${0##*/}

usage() {
    cat <<END
usage: $name [--clock MHZ] COMMAND [ARGUMENT...]

Locks the clock of one GPU, runs COMMAND, restores the clock however COMMAND ends
(success, failure, Ctrl-C, a signal), and prints the elapsed time and the clocks
during the run. Exits with COMMAND's status.

  --clock MHZ           the clock; default GPU_CLOCK_MHZ, or the highest supported
                        clock below the maximum boost, which a GPU rarely holds
  CUDA_VISIBLE_DEVICES  its first entry, an index or a UUID, is the GPU; default 0

Locking needs root. If it fails, COMMAND runs anyway and the result is marked
"unlocked". Restoring also removes an earlier lock. Indices are in PCI bus order,
for COMMAND too.
END
}

say() { printf '%s: %s\n' "$name" "$*" >&2; }

die() {
    say "$1"
    exit "${2:-2}"
}

(( BASH_VERSINFO[0] >= 5 )) || die "needs bash 5 or later, this is $BASH_VERSION"

clock=${GPU_CLOCK_MHZ:-}
while (( $# )); do
    case $1 in
    -h | --help) usage; exit 0 ;;
    --clock) clock=${2-}; shift; shift || die "--clock needs a number of MHz" ;;
    --clock=*) clock=${1#*=}; shift ;;
    --) shift; break ;;
    -*) die "unknown option $1; see $name --help" ;;
    *) break ;;
    esac
done
(( $# )) || die "no command to run; see $name --help"
[[ $clock =~ ^([1-9][0-9]*)?$ ]] || die "the clock is a whole number of MHz, not \"$clock\""
[[ $(type -P -- "$1") ]] || die "$1: command not found" 127

gpu=       # name of the GPU for nvidia-smi; empty: none
locked=    # non-empty while the clock may be locked
running=   # non-empty from just before COMMAND starts
child=     # COMMAND's process group
sampler=   # the nvidia-smi that samples
signal=    # the last signal received
scratch=   # the file of samples

smi() { nvidia-smi -i "$gpu" "$@" 2>&1; }

# pick_gpu sets gpu from CUDA_VISIBLE_DEVICES, or prints why it cannot.
pick_gpu() {
    local first=${CUDA_VISIBLE_DEVICES-0}
    first=${first%%,*}
    type -P nvidia-smi >/dev/null || { echo "nvidia-smi is not installed"; return 1; }
    case $first in
    '' | -1) echo "CUDA_VISIBLE_DEVICES hides every GPU"; return 1 ;;
    MIG-*) echo "a MIG slice has no separate clock"; return 1 ;;
    GPU-*)
        # CUDA accepts a prefix of a UUID, nvidia-smi does not.
        gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null | grep -m 1 -F -- "$first")
        ;;
    *)
        [[ $first =~ ^[0-9]+$ ]] && gpu=$first
        ;;
    esac
    if [[ -z $gpu ]] || ! smi --query-gpu=uuid --format=csv,noheader >/dev/null; then
        gpu=
        echo "nvidia-smi knows no GPU $first"
        return 1
    fi
}

# lock_clock locks gpu's clock, or prints why it cannot.
lock_clock() {
    local output
    if [[ -z $clock ]]; then
        # A line for each pair with a memory clock: take the second distinct
        # clock, or the only one.
        clock=$(smi --query-supported-clocks=gr --format=csv,noheader,nounits |
            grep -x '[0-9]*' | sort -rnu | sed -n '1,2p' | tail -n 1)
        [[ $clock ]] || { echo "nvidia-smi lists no supported clocks; give --clock"; return 1; }
    fi
    locked=yes # before the call, which a signal may interrupt
    output=$(smi -lgc "$clock,$clock")
    # For a GPU without locks nvidia-smi warns and exits with 0.
    # shellcheck disable=SC2181 # the status of the assignment above
    if (( $? != 0 )) || [[ $output == *"not supported"* ]]; then
        locked=
        echo "${output%%$'\n'*}"
        return 1
    fi
}

unlock_clock() {
    [[ $locked ]] || return 0
    locked=
    # A second Ctrl-C must not reach nvidia-smi, which inherits ignored signals.
    trap '' HUP INT QUIT PIPE TERM
    local output
    if ! output=$(smi -rgc); then
        say "THE CLOCK OF GPU $gpu IS STILL LOCKED AT $clock MHz: run 'nvidia-smi -i $gpu -rgc' as root (${output%%$'\n'*})"
    fi
}

stop_sampler() {
    [[ $sampler ]] || return 0
    kill "$sampler" 2>/dev/null
    wait "$sampler" 2>/dev/null
    sampler=
}

# shellcheck disable=SC2317 # reached through the traps
clean_up() {
    unlock_clock
    stop_sampler
    [[ -z $scratch ]] || rm -f -- "$scratch"
}
trap clean_up EXIT

# on_signal NAME NUMBER forwards a signal to COMMAND, which decides how to end.
# shellcheck disable=SC2317
on_signal() {
    [[ $running ]] || exit $((128 + $2))
    signal=$1
    [[ -z $child ]] || kill -s "$signal" -- "-$child" 2>/dev/null
}
trap 'on_signal HUP 1' HUP
trap 'on_signal INT 2' INT
trap 'on_signal QUIT 3' QUIT
trap 'on_signal PIPE 13' PIPE
trap 'on_signal TERM 15' TERM

# Both set variables, so their messages go through a file instead of $(...).
scratch=$(mktemp) || die "mktemp failed: is there room in ${TMPDIR:-/tmp}?" 1
if pick_gpu >"$scratch" && lock_clock >"$scratch"; then
    state="GPU $gpu locked at $clock MHz"
    say "$state"
else
    reason=$(<"$scratch")
    state="unlocked (${reason:-no reason given})"
    say "running $state"
fi
: >"$scratch"

# An index must mean the same GPU to COMMAND.
export CUDA_DEVICE_ORDER=PCI_BUS_ID

if [[ $gpu ]]; then
    nvidia-smi -i "$gpu" --query-gpu=clocks.gr --format=csv,noheader,nounits -lms 200 \
        >"$scratch" 2>/dev/null </dev/null &
    sampler=$!
fi

# COMMAND runs in its own process group, so that it receives each signal once, through
# on_signal, whether the terminal sent it to all processes or someone to this script.
# Reading from the terminal would stop that group.
[[ ! -t 0 ]] || exec </dev/null
start=${EPOCHREALTIME/[.,]/}
running=yes
set -m
"$@" &
child=$!
set +m
[[ -z $signal ]] || kill -s "$signal" -- "-$child" 2>/dev/null

# A signal ends wait, but not COMMAND.
while
    signal=
    wait "$child"
    status=$?
    [[ $signal ]]
do :; done
elapsed=$((${EPOCHREALTIME/[.,]/} - start))

unlock_clock
stop_sampler

clocks=$(grep -x '[0-9]*' "$scratch" | sort -n | awk '
    { mhz[NR] = $1 }
    END {
        if (NR == 0) { print "no clocks seen"; exit }
        median = (mhz[int((NR + 1) / 2)] + mhz[int(NR / 2) + 1]) / 2
        printf "clocks seen: min %d, median %g, max %d MHz in %d samples", mhz[1], median, mhz[NR], NR
    }')
printf '%s: %d.%03d s, %s, %s\n' "$name" $((elapsed / 1000000)) $((elapsed / 1000 % 1000)) "$state" "$clocks"
exit "$status"
