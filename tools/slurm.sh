#!/usr/bin/env bash
#SBATCH --job-name=mlpool
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
#SBATCH --output=mlpool-%j.log
#
# A Slurm job that trains on several GPUs, one rank for each: an example to copy.
#
#   sbatch tools/slurm.sh [OPTION...] CONFIG    with the options of build/train
#   sbatch --nodes=1 tools/slurm.sh -set train.executor=graph configs/wide.toml
#
# Run it where build/train is, in a folder that all hosts see. The ranks of a host share its GPUs, so
# ask for them with --gpus-per-node, not with --gpus-per-task.

set -euo pipefail

case ${1-} in '' | -h | --help) sed -n '/^# A Slurm/,/^$/p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;; esac
[[ ${SLURM_JOB_ID-} ]] || { echo "slurm.sh: not in a Slurm job: sbatch $0 $*" >&2; exit 1; }
[[ -x build/train ]] || { echo "slurm.sh: no build/train in $PWD: make build CUDA=1" >&2; exit 1; }

# Only ranks that know the secret may join. srun passes it on; ranks find the first host by themselves.
RENDEZVOUS_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export RENDEZVOUS_SECRET
srun --kill-on-bad-exit=1 build/train "$@"
