#!/usr/bin/env python3
"""Trains the same model in mlpool, JAX and PyTorch, over a list of shapes, and writes the
time of an epoch in each to a CSV: 60 000 training and 10 000 validation samples of MNIST,
including the short last batch.

    tools/peers.py --train build/train --mnist MNIST_DIR --csv assets/peers_h200.csv
    tools/peers.py ... --gpus 2 --append    # data parallel, after one GPU in the same CSV

mlpool uses the graph executor. In JAX the whole epoch is one jitted function; in PyTorch a
step is a CUDA graph. One training at a time runs on the GPU. On one GPU, JAX and PyTorch train
a shape in all precisions in one process. The first epoch, which compiles, does not count. Large
shapes are measured for fewer epochs, but at least three. A framework that is not installed, a
training that fails and one that takes longer than --timeout are reported in one line each and
leave no row. If a process fails, each of its trainings has another one.

bf16 is mixed precision: weights, the loss and the update are in float32, the operands of
products and the activations in bfloat16. JAX casts the weights, and their gradients back, in
each step; PyTorch trains under torch.autocast. Both hold the images in bfloat16.

--gpus trains on several GPUs; a batch is then per GPU. mlpool and PyTorch
(DistributedDataParallel) run a process per GPU, JAX one process that shards batches over a
mesh. Weak scaling compares with one GPU at the same batch per GPU, strong scaling with one
GPU at the whole batch. Images a second are training images over the time of an epoch with
its validation, which tools/ranks.sh leaves out.

Rows are written once a process has ended: Ctrl-C keeps the rows so far, and --append
continues such a file. Needs only Python and the frameworks to compare.

    tools/peers.py --train build/train --mnist MNIST_DIR --sweep 150 --csv assets/sweep_h200.csv
    go run ./tools/figures -sweep assets/sweep_h200.csv    # draws it

--sweep N trains N random shapes, each with one of its sizes 5 % smaller and larger, and shapes
on both sides of bounds beyond which the code takes another path. JAX, which compiles each for
seconds, trains every third random shape, in fp32 only if --precisions asks for it. The sweep
compares all with a floor of multiplications, bytes and launches, and lists where mlpool is
slower than JAX and where a small change of a shape costs much. Epochs are of whole batches, and
cut to about half a second. The same command continues a sweep, in slices of --minutes if wanted;
any part of it is a fair sample.
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
import sys
import threading
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common
from common import Failed, choices
from peers_sweep import SWEEP_COLUMNS, SWEEP_KEY, SWEEP_NOTE, Sweep, report
from peers_table import COLUMNS, KEY, NAMES, PRECISIONS, Table, fail, figures_of, key_of, machine, say, scaling_of, table_of, theirs
from peers_trainers import LEARNING_RATE, Job, Missing, make_trainer, work

SHAPES = [f"{w}x{b}" for w in (100, 333, 784, 1024, 2048, 4096) for b in (61, 64, 256, 1024, 4096)] + ["4096x8192"]
NOTE = (
    "Median ms of an epoch of {} training and {} validation samples, SGD at {}, with the fastest and the slowest epoch; a "
    "first one is not counted. accuracy: after the last. bsz: a GPU's. flop_step: 2 x multiply-adds of forward, dgrad and "
    "wgrad of a whole batch."
)


def jobs_of(args, name):
    precisions = args.precisions if name == "ours" else list(dict.fromkeys(theirs(p) for p in args.precisions))
    jobs = [Job(p, *shape, args.gpus, args.epochs, args.pixels) for shape in args.shapes for p in precisions]
    return [job.within_a_second(job.typical_epoch(args.samples)) for job in jobs]


def measure(args, table):
    """Fills the table. Returns how many trainings failed and how many were tried."""
    failed = tried = 0
    for name in args.frameworks:
        peer = make_trainer(name, args)
        jobs = [job for job in jobs_of(args, name) if not table.has(key_of(name, job))]
        alone = name == "ours" or args.gpus > 1
        for _, group in itertools.groupby(jobs, lambda job: job if alone else dataclasses.replace(job, precision="")):
            jobs = list(group)
            try:
                answers = peer.train_all(jobs)
                if len(jobs) > 1 and all(isinstance(answer, Failed) for answer in answers):
                    answers = [answer for job in jobs for answer in peer.train_all([job])]
            except Missing as err:
                say(f"{NAMES[name]} is left out: {err}")
                break
            for job, answer in zip(jobs, answers):
                tried += 1
                if isinstance(answer, Failed):
                    say(f"{NAMES[name]} {job}: {answer}")
                    failed += 1
                    continue
                row = key_of(name, job) | figures_of(job, peer, answer)
                table.add(row)
                say(f"{NAMES[name]} {job}: {row['ms']} ms")
    return failed, tried


def parse_shape(text):
    """WIDTHxBATCH or WIDTHxBATCHxLAYERS as three numbers."""
    try:
        numbers = [int(n) for n in text.split("x")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or min(numbers) < 1:
        fail(f"--shapes: {text!r} is not WIDTHxBATCH or WIDTHxBATCHxLAYERS")
    return (*numbers, 4)[:3]


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, help="the program cmd/train; needed for ours")
    parser.add_argument("--mnist", type=Path, required=True, metavar="MNIST_DIR", help="the four IDX files, gzipped or plain")
    parser.add_argument("--csv", type=Path, default=Path("peers.csv"), help="default: %(default)s")
    parser.add_argument("--append", action="store_true", help="add the rows that the CSV lacks")
    parser.add_argument("--shapes", default=",".join(SHAPES), metavar="WIDTHxBATCH[xLAYERS],...", help="of 4 hidden layers unless it says; default: %(default)s")
    parser.add_argument(
        "--frameworks", type=choices(NAMES), metavar="NAME,...", help=f"default: {','.join(NAMES)}, of a sweep ours,jax"
    )
    parser.add_argument(
        "--precisions",
        type=choices(PRECISIONS),
        metavar="NAME,...",
        help="out of tf32, 3xtf32, fp32 and bf16; the others use fp32 in place of 3xtf32; default: tf32,3xtf32, of a sweep all, "
        "of which JAX takes tf32 and bf16",
    )
    parser.add_argument("--sweep", type=int, default=0, metavar="N", help="train N random shapes, not those of --shapes")
    parser.add_argument("--seed", type=int, default=1, help="of the random shapes; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to stop a sweep; default: never")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=7, help="largest number of measured epochs; default: %(default)s")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="limit of a training, which those of a process share; default: %(default)s")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu computes in fp32, or in bf16 if asked")
    parser.add_argument("--worker", choices=["jax", "torch"], help=argparse.SUPPRESS)
    parser.add_argument("--jobs", help=argparse.SUPPRESS)  # of a worker
    args = parser.parse_args(argv)
    if args.worker:
        return args
    if args.sweep < 0 or args.sweep and "torch" in (args.frameworks or []):
        fail("--sweep: N must be above 0, and of other frameworks a sweep has only jax")
    args.frameworks = args.frameworks or (["ours", "jax"] if args.sweep else list(NAMES))
    args.all_precisions = args.sweep and args.precisions is None
    args.precisions = args.precisions or (PRECISIONS if args.sweep else ["tf32", "3xtf32"])
    if args.device == "cpu":
        args.precisions = list(dict.fromkeys("bf16" if p == "bf16" else "fp32" for p in args.precisions))
    args.shapes = list(dict.fromkeys(parse_shape(text) for text in args.shapes.split(",")))
    if "ours" in args.frameworks and (args.train is None or not args.train.is_file()):
        fail(f"no program {args.train}: make build builds build/train, or use --frameworks jax,torch")
    if min(args.epochs, args.gpus) < 1 or not 0 < args.timeout <= threading.TIMEOUT_MAX:
        fail("--epochs, --gpus and --timeout must be above 0, and --timeout finite")
    try:
        (args.samples, *sides), _ = common.read_idx(args.mnist, "train-images-idx3-ubyte", 3)
        (args.validated, *_), _ = common.read_idx(args.mnist, "t10k-images-idx3-ubyte", 3)
    except Failed as err:
        fail(err)
    args.pixels = math.prod(sides)
    if not args.sweep and (largest := args.gpus * max(bsz for _, bsz, _ in args.shapes)) > args.samples:
        fail(f"--shapes: a batch of {largest} exceeds the {args.samples} samples")
    return args


def command(args):
    """The command line without this machine's folders."""
    shapes = f"--shapes {','.join('x'.join(map(str, shape)) for shape in args.shapes)}"
    if args.sweep:
        shapes = f"--sweep {args.sweep} --seed {args.seed}"
    precisions = "" if args.all_precisions else f"--precisions {','.join(args.precisions)} "
    return (
        f"peers.py --train train --mnist MNIST_DIR --csv {args.csv.name} {shapes} "
        f"--frameworks {','.join(args.frameworks)} {precisions}"
        f"--gpus {args.gpus} --epochs {args.epochs} --timeout {args.timeout:g} --device {args.device}"
    )


def main(argv):
    args = parse_args(argv)
    if args.worker:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # keeps what libraries print out of the answer
        print(json.dumps(work(args.worker, args)), file=answers, flush=True)
        return 0
    what, table_columns, key = NOTE.format(args.samples, args.validated, LEARNING_RATE), COLUMNS, KEY
    if args.sweep:
        what, table_columns, key = SWEEP_NOTE, SWEEP_COLUMNS, SWEEP_KEY
    table = Table(args.csv, args.append or args.sweep, what, machine(args.device), command(args), table_columns, key)
    try:
        failed, tried = Sweep(args, table).run() if args.sweep else measure(args, table)
    except KeyboardInterrupt:
        how = "the same command" if args.sweep else "--append"
        say(f"interrupted: {args.csv} has the rows so far, and {how} continues")
        return 130
    finally:
        if table.rows:
            print(report(args, table.rows) if args.sweep else table_of(table.rows) + scaling_of(table.rows, args.samples))
    if failed:
        say(f"{failed} of {tried} trainings failed")
    elif not table.rows:
        say("nothing was measured")
    return int(failed > 0 or not table.rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
