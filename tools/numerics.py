#!/usr/bin/env python3
"""Measures how far the losses of train, in each executor and precision, are from
float64, over several seeds. PyTorch trains the first steps in float64 from the same
initial weights on the same batches as a reference, and for comparison in fp32 and in
the precisions of the runs: tf32, and bf16 under torch.autocast.

    tools/numerics.py --train build/train --mnist MNIST_DIR -o numerics.csv

Needs numpy and torch, and a GPU for tf32 and 3xtf32. Differences are the largest of
all seeds, in nats. Accuracies are the mean and the range over the seeds. A graph run
is also compared with the eager run of its precision: their losses should be identical
bit for bit.

Exits with 1 if a run in bf16 is less exact than it should be: if its largest difference
in a range of steps is more than three times PyTorch's in bf16, or its mean accuracy of
the best epoch is not within 0.3 points of tf32's (of PyTorch's fp32 without a run in
tf32). That a single operation in bf16 is off by at most 4e-3 of its result is for the
tests of kernels.
"""

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="the program cmd/train")
    parser.add_argument(
        "--mnist", type=Path, required=True, metavar="MNIST_DIR", help="the four IDX files, gzipped or plain"
    )
    parser.add_argument("--config", type=Path, default=Path("configs/mnist.toml"))
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 0 on")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300, help="number of steps in float64")
    parser.add_argument("--runs", metavar="EXECUTOR:PRECISION,...", help="default: all that the device supports")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("-o", type=Path, metavar="CSV", default=Path("numerics.csv"))
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()  # before the imports, since -h needs no torch
common.need("numpy", "torch")
import numpy as np
import torch
import torch_trainer

EXECUTORS = ["eager", "graph"]
PRECISIONS = ["fp32", "tf32", "3xtf32", "bf16"]
ON_CPU = ["fp32", "bf16"]
TORCH = ["fp32", "tf32", "bf16"]  # precisions of PyTorch too
WINDOWS = [(0, 50), (50, 100)]  # of steps, each with its largest difference
BF16_DIFFERENCE = 3  # times PyTorch's
BF16_ACCURACY = 0.003


class Result:
    """The log of one run with one seed."""

    def __init__(self, losses, accs, lines=None):
        self.losses = np.asarray(losses, np.float64)  # of each step
        self.accs = np.asarray(accs, np.float64)  # of each epoch, 0 to 1
        self.lines = lines  # the losses as printed: equal lines are equal bits


def fail(message):
    sys.exit(f"numerics: {message}")


def parse_runs(text, device):
    """Parses EXECUTOR:PRECISION,... into pairs."""
    runs = []
    for name in text.split(","):
        executor, _, precision = name.strip().partition(":")
        if executor not in EXECUTORS or precision not in PRECISIONS:
            fail(f"no run {name!r}: a run is one of {', '.join(EXECUTORS)}, a colon and one of {', '.join(PRECISIONS)}")
        if device == "cpu" and precision not in ON_CPU:
            fail(f"no run {name!r} on the CPU, which computes in {' and '.join(ON_CPU)}")
        if (executor, precision) not in runs:
            runs.append((executor, precision))
    return runs


def yardsticks_of(runs):
    """Returns the precisions that PyTorch trains in, by the name of the run."""
    asked = {"fp32"} | {precision for _, precision in runs}
    return {f"torch:{precision}": precision for precision in TORCH if precision in asked}


def read_log(path):
    """Returns the lines of a log and their values."""
    try:
        lines = path.read_text().split()
        return lines, [float(line) for line in lines]
    except (OSError, ValueError) as err:
        fail(f"{path.name} was not written by train: {err}")


def call_train(args, name, *arguments):
    """Runs train once; name prefixes its errors."""
    try:
        common.call_train(args.train, *arguments)
    except common.Failed as err:
        fail(f"{name}: {err}")


def run_train(args, executor, precision, seed, folder, export=None):
    """Runs train with its logs in folder and reads them; exports first if export is given."""
    name = f"{executor}:{precision}, seed {seed}"
    settings = {
        "train.seed": seed,
        "train.num_epochs": args.epochs,
        "train.executor": executor,
        "train.precision": precision,
        "train.device": args.device,  # "auto" would train in fp32 without a GPU
        "data.data_dir": args.mnist.resolve(),
        "log.log_dir": folder,
    }
    flags = [word for k, v in settings.items() for word in ("-set", f"{k}={v}")]
    if export:
        call_train(args, name, *flags, "-export", export, args.config)
    call_train(args, name, *flags, args.config)
    lines, losses = read_log(folder / "train_losses.txt")
    _, accs = read_log(folder / "val_accs.txt")
    return Result(losses, accs, lines)


def read_export(args, export, seed):
    """Reads the run.json of an export and checks that it is of this run."""
    try:
        run = json.loads((export / "run.json").read_text())
    except (OSError, ValueError) as err:
        fail(f"seed {seed}: no run.json from train -export: {err}")
    if (run["seed"], run["num_epochs"]) != (seed, args.epochs):
        fail(f"seed {seed}, {args.epochs} epochs: train used seed {run['seed']}, {run['num_epochs']} epochs")
    # train keeps the rate in float32, where 0.1 is another number.
    run["learning_rate"] = float(np.float32(run["learning_rate"]))
    return run


def load_array(export, name):
    try:
        return torch.from_numpy(np.load(export / name))
    except (OSError, ValueError, EOFError) as err:
        fail(f"train -export wrote no {name}: {err}")


def run_torch(trainer, export, run, precision):
    """Trains in PyTorch from the weights and the batches of an export. Yields losses and accuracy of each epoch."""
    kind = torch.float64 if precision == "fp64" else torch.float32
    names = (f"w{i}.npy" for i in range(run["num_layers"] + 1))
    weights = [load_array(export, name).to(trainer.device, kind) for name in names]
    orders = (load_array(export, f"order{epoch}.npy") for epoch in range(run["num_epochs"]))
    epochs = trainer.train(weights, run["bsz"], run["learning_rate"], precision, lambda order: order.copy_(next(orders)))
    for _, (_, losses, accuracy) in zip(range(run["num_epochs"]), epochs):
        yield losses.numpy(), accuracy


def run_float64(args, trainer, export, run):
    """Returns the losses of the first steps in float64."""
    losses = np.empty(0)
    for of_epoch, _ in run_torch(trainer, export, run, "fp64"):
        losses = np.append(losses, of_epoch)
        if len(losses) >= args.steps:
            break
    return losses[: args.steps]


def summary(results, references):
    """Returns the figures of a run from its results and the float64 losses, both by seed."""
    steps = len(references[0])
    off = np.array([r.losses[:steps] - ref for r, ref in zip(results, references)])
    row = {f"max_diff_{a}_{b - 1}": np.abs(off[:, a:b]).max() for a, b in WINDOWS}
    row["mean_diff"] = np.abs(off.mean(axis=1)).max()
    for name, accs in (("last", [r.accs[-1] for r in results]), ("best", [r.accs.max() for r in results])):
        row |= {f"{name}_acc_mean": np.mean(accs), f"{name}_acc_min": min(accs), f"{name}_acc_max": max(accs)}
    return row


def equals_eager(graph, eager):
    """Reports whether all losses are identical, over the seeds."""
    same = sum(a.lines == b.lines for a, b in zip(graph, eager))
    return "yes" if same == len(graph) else f"in {same} of {len(graph)} seeds"


def inexact(rows):
    """Returns a line for each figure of a run in bf16 that is not within its bounds."""
    runs = {row["run"]: row for row in rows}
    lines = []
    for name in (f"{executor}:bf16" for executor in EXECUTORS):
        if name not in runs:
            continue
        run, yardstick = runs[name], runs["torch:bf16"]
        for a, b in WINDOWS:
            ours, theirs = (r[f"max_diff_{a}_{b - 1}"] for r in (run, yardstick))
            if not ours <= BF16_DIFFERENCE * theirs:
                bound = f"{BF16_DIFFERENCE} times PyTorch's {theirs:.2e}"
                lines.append(f"{name}: max |Δloss| {a}–{b - 1} is {ours:.2e}, more than {bound}")
        other = next(n for n in (name.replace("bf16", "tf32"), "torch:tf32", "torch:fp32") if n in runs)
        ours, theirs = (r["best_acc_mean"] for r in (run, runs[other]))
        if not abs(ours - theirs) <= BF16_ACCURACY:
            bound = f"{100 * BF16_ACCURACY:g} of the {100 * theirs:.2f} % of {other}"
            lines.append(f"{name}: best val acc is {100 * ours:.2f} %, not within {bound}")
    return lines


def print_table(rows, steps):
    def accuracy(row, name):
        mean, low, high = (100 * row[f"{name}_acc_{k}"] for k in ("mean", "min", "max"))
        return f"{mean:.2f} ({low:.2f}..{high:.2f})"

    table = [
        ["run"]
        + [f"max |Δloss| {a}–{b - 1}" for a, b in WINDOWS]
        + [f"|Δ mean loss| 0–{steps - 1}", "last val acc, %", "best val acc, %", "equals eager"]
    ]
    for row in rows:
        table.append(
            [row["run"]]
            + [f"{row[f'max_diff_{a}_{b - 1}']:.2e}" for a, b in WINDOWS]
            + [f"{row['mean_diff']:.2e}", accuracy(row, "last"), accuracy(row, "best"), row["equals_eager"] or "–"]
        )
    print("\n".join(common.columns(table)))


def checked_runs(args):
    """Checks the arguments and returns the runs as pairs."""
    if not args.runs:
        precisions = PRECISIONS if args.device == "cuda" else ON_CPU
        args.runs = ",".join(f"{e}:{p}" for e in EXECUTORS for p in precisions)
    runs = parse_runs(args.runs, args.device)
    for path in (args.train, args.config):
        if not path.is_file():
            fail(f"no file {path}")
    if not args.o.resolve().parent.is_dir():
        fail(f"the folder of {args.o} does not exist")
    if args.seeds < 1 or args.epochs < 1:
        fail("need at least one seed and one epoch")
    if args.steps < WINDOWS[-1][1]:
        fail(f"--steps {args.steps} is less than the {WINDOWS[-1][1]} steps of the table")
    if args.device == "cuda" and not torch.cuda.is_available():
        fail(f"torch sees no GPU; --device cpu computes in {' and '.join(ON_CPU)}")
    return runs


def train_seed(args, runs, trainer, seed, folder):
    """Trains with a seed. Returns the losses in float64, and the result of each run and yardstick by its name."""
    export = folder / "export"
    folder.mkdir(parents=True)
    found = {}
    for i, (executor, precision) in enumerate(runs):
        at = folder / f"{executor}-{precision}"
        # The first run of a seed exports the initial state of all its runs.
        found[f"{executor}:{precision}"] = run_train(args, executor, precision, seed, at, None if i else export)
    run = read_export(args, export, seed)
    steps = args.epochs * -(-len(trainer.x) // run["bsz"])
    if args.steps > steps:
        fail(f"--steps {args.steps} is more than the {steps} of {args.epochs} epochs")
    for name, precision in yardsticks_of(runs).items():
        epochs = list(run_torch(trainer, export, run, precision))
        found[name] = Result(np.concatenate([of_epoch for of_epoch, _ in epochs]), [accuracy for _, accuracy in epochs])
    for name, r in found.items():
        have, want = (len(r.losses), len(r.accs)), (steps, args.epochs)
        if have != want:
            fail(f"{name}, seed {seed}: {have[0]} steps in {have[1]} epochs, not {want[0]} in {want[1]}")
        print(f"seed {seed}  {name:12}  val acc {100 * r.accs[-1]:.2f} %", file=sys.stderr, flush=True)
    return run_float64(args, trainer, export, run), found


def main(args):
    runs = checked_runs(args)
    trainer = torch_trainer.Trainer(args.mnist, args.device)
    results = {name: [] for name in [f"{e}:{p}" for e, p in runs] + list(yardsticks_of(runs))}
    references = []
    with tempfile.TemporaryDirectory(prefix="numerics-") as tmp:
        for seed in range(args.seeds):
            reference, found = train_seed(args, runs, trainer, seed, Path(tmp) / str(seed))
            references.append(reference)
            for name, result in found.items():
                results[name].append(result)

    rows = []
    for name, of_seeds in results.items():
        executor, _, precision = name.partition(":")
        eager = results.get(f"eager:{precision}")
        same = equals_eager(of_seeds, eager) if executor == "graph" and eager else ""
        rows.append({"run": name} | summary(of_seeds, references) | {"equals_eager": same})
    where = torch.cuda.get_device_name() if args.device == "cuda" else "the CPU"
    origin = (
        f"{where}, PyTorch {torch.__version__}, {datetime.date.today()}: numerics.py --train {args.train.name} "
        f"--mnist MNIST_DIR --config {args.config.name} --seeds {args.seeds} --epochs {args.epochs} "
        f"--steps {args.steps} --runs {','.join(f'{e}:{p}' for e, p in runs)} --device {args.device} -o {args.o.name}"
    )
    common.write_csv(args.o, [origin], rows[0], rows)
    print_table(rows, args.steps)
    for line in (lines := inexact(rows)):
        print(f"numerics: {line}", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    try:
        sys.exit(main(asked))
    except common.Failed as err:
        fail(err)
