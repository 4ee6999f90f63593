#!/usr/bin/env bash
# Runs a command with the clock of a GPU locked, for comparable timings, and unlocks it however the command ends:
#
#   tools/throughput_test.sh COMMAND [ARGUMENT...]
#
# The clock is GPU_CLOCK_MHZ, or the highest below the maximum boost, which a GPU rarely holds. The GPU is the first of
# CUDA_VISIBLE_DEVICES, or GPU 0. Locking needs root: without it, the command runs at any clock.

set -uo pipefail
case ${1-} in '' | -*) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
export CUDA_DEVICE_ORDER=PCI_BUS_ID # an index means the same GPU to nvidia-smi and to the command
gpu=${CUDA_VISIBLE_DEVICES:-0}
gpu=${gpu%%,*}

unlock() {
    trap '' HUP INT TERM # a second Ctrl-C must not end nvidia-smi
    nvidia-smi -i "$gpu" -rgc >/dev/null || echo "${0##*/}: GPU $gpu is still locked: run nvidia-smi -i $gpu -rgc as root" >&2
}

trap : HUP INT TERM # bash then waits for the command, which gets the signals of a terminal too
# A line for each pair with a memory clock: the second of the distinct clocks, or the only one.
clock=${GPU_CLOCK_MHZ:-$(nvidia-smi -i "$gpu" --query-supported-clocks=gr --format=csv,noheader,nounits 2>/dev/null |
    grep -x '[0-9]*' | sort -rnu | sed -n '1,2p' | tail -n 1)}
# For a GPU without locks nvidia-smi warns and succeeds.
if said=$(nvidia-smi -i "$gpu" -lgc "$clock,$clock" 2>&1) && [[ $said != *"not supported"* ]]; then
    trap unlock EXIT
    echo "${0##*/}: GPU $gpu is locked at $clock MHz" >&2
else
    echo "${0##*/}: the clock is not locked: ${said%%$'\n'*}" >&2
fi
"$@"
