#!/usr/bin/env python3
"""Trains the same model in mlpool, JAX and PyTorch, over a list of shapes, and writes
what an epoch takes in each to a CSV: 60 000 training and 10 000 validation samples of
MNIST, all of them, the short last batch too.

    tools/peers.py --train build/train --mnist MNIST_DIR --csv assets/peers_h200.csv
    tools/peers.py ... --gpus 2 --append    # data parallel, beside one GPU of the same CSV

mlpool trains with the graph executor. In JAX the whole epoch is one jitted function, in
PyTorch a step is a CUDA graph. Each has a process of its own, one at a time on the GPU;
the first epoch, which compiles, is not counted. Of large shapes fewer epochs are measured,
but three. A framework that is not installed, a training that fails and one that is not
done after --timeout are a line each, and leave no row.

On several GPUs a batch is a GPU's. mlpool and PyTorch, by DistributedDataParallel, are a
process for each GPU, JAX is one whose batches are sharded over a mesh. Weak: beside one
GPU with the batch of one; strong: with the batch of all. Images a second are those trained on
in an epoch, over its time with validation, which tools/ranks.sh leaves out.

A row is written as soon as it is measured, so that Ctrl-C keeps what is there; --append
goes on with such a file. Needs Python alone, and what it is to compare: JAX, PyTorch.
"""

import argparse
import contextlib
import csv
import dataclasses
import datetime
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.dont_write_bytecode = True  # leaves no __pycache__ among the tools
import common
from common import Failed

NAMES = {"ours": "mlpool", "jax": "JAX", "torch": "PyTorch"}
PRECISIONS = ["tf32", "3xtf32", "fp32"]
SHAPES = [f"{w}x{b}" for w in (100, 333, 784, 1024, 2048, 4096) for b in (61, 64, 256, 1024, 4096)] + ["4096x8192"]
COLUMNS = "framework,version,precision,feat_dim,bsz,layers,gpus,ms,min,max,epochs,accuracy,flop_step".split(",")
KEY = ["framework", "precision", "feat_dim", "bsz", "layers", "gpus"]  # of a row
NOTE = (
    "Median ms of an epoch of {} training and {} validation samples, SGD at {}, with the fastest and the slowest epoch; a "
    "first one is not counted. accuracy: after the last. bsz: a GPU's. flop_step: 2 x multiply-adds of forward, dgrad and "
    "wgrad of a whole batch."
)
CLASSES = 10
LEARNING_RATE = 0.1
SOME_RATE = 50e12  # FLOP/s, near enough to say how many epochs are in a second


def fail(message):
    sys.exit(f"peers: {message}")


def say(message):
    print(f"peers: {message}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Job:
    """One training."""

    precision: str
    feat_dim: int
    bsz: int  # of a GPU
    layers: int  # hidden ones
    gpus: int
    epochs: int  # that are measured
    pixels: int  # of an image
    learning_rate: float = LEARNING_RATE

    def __str__(self):
        return f"{self.feat_dim}x{self.bsz}, {self.layers} hidden layers, {self.precision}{on_gpus(self.gpus)}"

    def widths(self):
        return [self.pixels] + [self.feat_dim] * self.layers + [CLASSES]

    def flop_step(self):
        """Of a whole batch of a GPU; the first layer has no dgrad."""
        first, *others = (inputs * outputs for inputs, outputs in zip(self.widths(), self.widths()[1:]))
        return 2 * self.bsz * (2 * first + 3 * sum(others))

    def within_a_second(self, samples):
        """The same job of fewer epochs where they are long, but of three."""
        epoch = samples / self.bsz * self.flop_step() / (SOME_RATE * self.gpus)
        return dataclasses.replace(self, epochs=min(self.epochs, max(3, int(1 / epoch))))


def on_gpus(gpus):
    return "" if int(gpus) == 1 else f", {gpus} GPUs"


class Missing(Failed):
    """There is no such framework here, or not for this device."""


class Ours:
    """mlpool: for each training a process, of several GPUs one for each."""

    def __init__(self, args):
        self.args = args
        self.version = ""  # known once it has trained
        self.checked = False

    def check(self):
        if self.args.gpus > 1 and self.args.device == "cpu":
            raise Missing("--gpus is for --device cuda")
        try:
            common.call_train(self.args.train, "-check", "-set", f"train.device={self.args.device}", "-", timeout=self.args.timeout)
        except Failed as err:
            raise Missing(str(err)) from err
        self.checked = True

    def train(self, job):
        if not self.checked:
            self.check()
        settings = {
            "model.feat_dim": job.feat_dim,
            "model.num_layers": job.layers,
            "train.bsz": job.bsz,
            "train.num_epochs": 1 + job.epochs,
            "train.learning_rate": job.learning_rate,
            "train.precision": job.precision,
            "train.executor": "graph",
            "train.device": self.args.device,
            "data.data_dir": self.args.mnist.resolve(),
            "log.log_dir": "",
        }
        flags = [word for k, v in settings.items() for word in ("-set", f"{k}={v}")]
        said = common.call_train(self.args.train, "-json", *flags, "-", timeout=self.args.timeout, ranks=job.gpus)
        try:
            run = json.loads(said)["runs"][0]
            figures, ms = run["figures"], ["median_ms", "fastest_ms", "slowest_ms"]
            self.version = version_of(run)
            if job.precision != run.get("precision", "fp32"):
                raise Failed(f"{self.args.train.name} computed in {run['precision']}")
            if job.gpus != run.get("ranks", 1):
                raise Failed(f"{self.args.train.name} trained as {run.get('ranks', 1)} ranks, not {job.gpus}")
            return [figures[k] for k in ms] + [figures["epochs"], figures["val_acc"]]
        except (ValueError, KeyError, IndexError) as err:
            raise Failed(f"{self.args.train.name} -json is not what it was: {err!r}") from err

    def close(self):
        pass


def version_of(run):
    """The commit that train was built from, where it knows, and the toolkit of its kernels."""
    commit, _, modified = run.get("commit", "").partition(",")
    version = commit[:12] + ("-modified" if modified else "") or run["version"]
    toolkit = run.get("gpu", {}).get("cuda_runtime")
    return version + (f"+cuda{toolkit}" if toolkit else "")


def worker_command(name, args):
    flags = {"worker": name, "mnist": args.mnist, "device": args.device, "gpus": args.gpus}
    return [sys.executable, __file__] + [word for k, v in flags.items() for word in (f"--{k}", str(v))]


class Worker:
    """JAX or PyTorch: a process for all trainings, of PyTorch one for each GPU, and new ones after one that failed."""

    def __init__(self, name, args):
        self.command = worker_command(name, args)
        self.ranks = args.gpus if name == "torch" else 1
        self.timeout = args.timeout
        self.processes = []
        self.version = ""  # known once it has started

    def train(self, job):
        try:
            if not self.processes:
                self.start()
            answer = self.ask(dataclasses.asdict(job))
            if "failed" in answer:
                raise Failed(answer["failed"])
        except Failed:
            self.close()
            raise
        ms = answer["ms"][1:]  # the first epoch compiled
        return [statistics.median(ms), min(ms), max(ms), len(ms), answer["accuracy"]]

    def start(self):
        self.said = tempfile.TemporaryFile("w+", errors="replace")
        answers, end = os.pipe()
        self.answers = open(answers, errors="replace")
        try:
            for env in common.rank_environments(self.ranks):
                process = subprocess.Popen(
                    self.command,
                    env=os.environ | env,
                    stdin=subprocess.PIPE,
                    stdout=end,
                    stderr=self.said,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for peers.py, which ends it
                )
                self.processes.append(process)
        finally:
            os.close(end)
        try:
            hello = self.ask(None)
        except Failed as err:
            raise Missing(str(err)) from err
        if "failed" in hello:
            raise Missing(hello["failed"])
        self.version = hello["version"]

    def ask(self, request):
        """The answer to a request; to None, what a worker says first."""
        late = threading.Event()
        timer = threading.Timer(self.timeout, lambda: (late.set(), self.kill()))
        timer.start()
        try:
            for process in self.processes if request is not None else []:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            answer = self.answers.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if late.is_set():
            raise Failed(f"not done after {self.timeout:g} s")
        try:
            return json.loads(answer)
        except ValueError:
            raise Failed(self.last_words()) from None

    def last_words(self):
        """Of processes one of which ends, or all."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes[0].wait(5)
        statuses = [process.poll() for process in self.processes]
        self.said.seek(0)
        return common.last_line(self.said.read()) or f"ended with exit status {next(filter(None, statuses), 0)}"

    def kill(self):
        for process in self.processes:
            process.kill()

    def close(self):
        if not self.processes:
            return
        self.kill()
        for process in self.processes:
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # a request that was never read
                process.stdin.close()
        self.processes = []
        self.answers.close()
        self.said.close()


def serve(name, args, requests, answers):
    """A worker: answers a line of JSON for each request, the first unasked. Of several ranks the first one that fails
    answers, or else rank 0."""
    rank = int(os.environ.get("RANK", 0))

    def answer(**fields):
        if rank == 0 or "failed" in fields:
            print(json.dumps(fields), file=answers, flush=True)

    try:
        module = importlib.import_module(f"peers_{name}")
        trainer = module.Trainer(args.mnist, args.device, args.gpus)
    except (ImportError, Failed) as err:
        answer(failed=f"{err}")
        return
    answer(version=module.VERSION)
    for request in requests:
        try:
            ms, accuracy = trainer.train(Job(**json.loads(request)))
        except Exception as err:  # of a framework: any
            text = str(err).strip().partition("\n")[0]
            answer(failed=f"{type(err).__name__}: {text}"[:300])
            continue
        answer(ms=ms, accuracy=accuracy)


class Table:
    """The CSV, with the rows that it has already."""

    def __init__(self, path, append, what, where, how):
        self.rows = []
        if path.exists() and not append:
            fail(f"{path} is there already: --append adds what it lacks")
        if not path.absolute().parent.is_dir():
            fail(f"no folder for {path}")
        self.path, self.new = path, not path.exists()
        if not self.new:
            self.read(path, where)
        self.notes = [what] * self.new + [f"{where}, {datetime.date.today()}: {how}"]

    def read(self, path, machine):
        lines = path.read_text().splitlines()
        table = csv.DictReader(line for line in lines if not line.startswith("#"))
        self.rows = list(table)
        if table.fieldnames != COLUMNS or any(None in row.values() for row in self.rows):
            fail(f"{path} is not what this script writes: name another file")
        if not any(line.startswith(f"# {machine}, ") for line in lines):
            fail(f"{path} is not of this machine, {machine}: name another file")

    def has(self, row):
        return any(all(old[k] == str(row[k]) for k in KEY) for old in self.rows)

    def add(self, row):
        """Writes the row, and before the first one where all that come are from."""
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            file.writelines(f"# {note}\n" for note in self.notes)
            if self.new:
                writer.writeheader()
            writer.writerow(row)
        self.notes, self.new = [], False
        self.rows.append({k: str(v) for k, v in row.items()})


def machine(device):
    """The GPU and its driver, as far as they are known."""
    if device == "cpu":
        return "the CPU"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    try:
        done = subprocess.run([*query, "-i", gpu], capture_output=True, text=True, check=True, timeout=60)
        name, driver = done.stdout.strip().split(", ")
        return f"{name}, driver {driver}"
    except (OSError, subprocess.SubprocessError, ValueError):
        say("nvidia-smi does not say what GPU this is, nor will the CSV; --device cpu does without one")
        return "an unknown GPU"


def columns(lines):
    """Rows of cells as lines of text, the first cell to the left."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join([line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]) for line in lines]


def shape_text(feat_dim, bsz, layers, gpus, precision):
    return f"{feat_dim}x{bsz}, {layers} layers, {precision}{on_gpus(gpus)}"


def epochs_of(rows):
    """The ms of an epoch by KEY."""
    return {tuple(row[k] for k in KEY): float(row["ms"]) for row in rows}


def table_of(rows):
    """Ours beside the others', a line for each shape and precision of ours."""
    ms = epochs_of(rows)
    shapes = dict.fromkeys(tuple(row[k] for k in KEY[2:]) for row in rows)

    def cell(v):
        return f"{v:.2f}" if v else "–"

    lines = [["ms an epoch"] + list(NAMES.values()) + ["JAX / mlpool", "PyTorch / mlpool"]]
    for precision in PRECISIONS:
        for shape in shapes:
            ours = ms.get(("ours", precision, *shape))
            others = [ms.get((name, theirs(precision), *shape)) for name in ("jax", "torch")]
            if ours is None and (precision == "3xtf32" or not any(others)):
                continue
            name = shape_text(*shape, precision)
            lines.append([name, cell(ours)] + [cell(v) for v in others] + [cell(ours and v and v / ours) for v in others])
    return "\n".join(columns(lines))


def scaling_of(rows, samples):
    """The rate of several GPUs beside that of one, where there is such a row; nothing where all are of one."""
    ms = epochs_of(rows)
    lines = [["several GPUs", "images a second, with validation", "/ one GPU, weak", "/ one GPU, strong"]]
    for (framework, precision, width, bsz, layers, gpus), several in ms.items():
        if gpus == "1":
            continue
        batches = bsz, str(int(bsz) * int(gpus))
        alone = [ms.get((framework, precision, width, batch, layers, "1")) for batch in batches]
        name = f"{NAMES[framework]} {shape_text(width, bsz, layers, gpus, precision)}"
        lines.append([name, f"{1e3 * samples / several:.0f}"] + [f"{one / several:.2f}" if one else "–" for one in alone])
    return "\n".join([""] + columns(lines)) if len(lines) > 1 else ""


def theirs(precision):
    """What the others have that is as exact."""
    return "tf32" if precision == "tf32" else "fp32"


def jobs_of(args, name):
    precisions = args.precisions if name == "ours" else list(dict.fromkeys(theirs(p) for p in args.precisions))
    jobs = [Job(p, *shape, args.gpus, args.epochs, args.pixels) for shape in args.shapes for p in precisions]
    return [job.within_a_second(args.samples) for job in jobs]


def measure(args, table):
    """Fills the table; returns how many trainings failed, and how many of them there were."""
    failed = tried = 0
    for name in args.frameworks:
        peer = Ours(args) if name == "ours" else Worker(name, args)
        try:
            for job in jobs_of(args, name):
                row = {"framework": name} | {k: getattr(job, k) for k in KEY[1:]}
                if table.has(row):
                    continue
                tried += 1
                try:
                    median, low, high, epochs, accuracy = peer.train(job)
                except Missing as err:
                    say(f"{NAMES[name]} is left out: {err}")
                    tried -= 1
                    break
                except Failed as err:
                    say(f"{NAMES[name]} {job}: {err}")
                    failed += 1
                    continue
                ms = {k: f"{v:.4g}" for k, v in (("ms", median), ("min", low), ("max", high))}
                figures = {"epochs": epochs, "accuracy": f"{accuracy:.4f}", "flop_step": job.flop_step()}
                table.add(row | {"version": peer.version} | ms | figures)
                say(f"{NAMES[name]} {job}: {ms['ms']} ms")
        finally:
            peer.close()
    return failed, tried


def choices(known):
    """The argument that lists some of these."""

    def parse(text):
        chosen = list(dict.fromkeys(text.split(",")))
        for one in chosen:
            if one not in known:
                raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(known)}")
        return chosen

    return parse


def parse_shape(text, layers):
    """WIDTHxBATCH or WIDTHxBATCHxLAYERS as three numbers."""
    try:
        numbers = [int(n) for n in text.split("x")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or min(numbers) < 1:
        fail(f"--shapes: {text!r} is not WIDTHxBATCH or WIDTHxBATCHxLAYERS")
    return (*numbers, layers)[:3]


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, help="the program; needed for ours")
    parser.add_argument("--mnist", type=Path, required=True, metavar="MNIST_DIR", help="the four IDX files, gzipped or plain")
    parser.add_argument("--csv", type=Path, default=Path("peers.csv"), help="default: %(default)s")
    parser.add_argument("--append", action="store_true", help="add to the CSV what it lacks")
    parser.add_argument("--shapes", default=",".join(SHAPES), metavar="WIDTHxBATCH[xLAYERS],...", help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=4, help="hidden layers where a shape names none; default: %(default)s")
    parser.add_argument(
        "--frameworks", type=choices(NAMES), default=list(NAMES), metavar="NAME,...", help=f"default: {','.join(NAMES)}"
    )
    parser.add_argument(
        "--precisions",
        type=choices(PRECISIONS),
        default=["tf32", "3xtf32"],
        metavar="NAME,...",
        help="of tf32, 3xtf32 and fp32, which the others have in 3xtf32's place; default: tf32,3xtf32",
    )
    parser.add_argument("--gpus", type=int, default=1, help="that train together; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=7, help="that are measured, at most; default: %(default)s")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of a training; default: %(default)s")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu computes in fp32")
    parser.add_argument("--worker", choices=["jax", "torch"], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        return args
    if args.device == "cpu":
        args.precisions = ["fp32"]
    args.shapes = list(dict.fromkeys(parse_shape(text, args.layers) for text in args.shapes.split(",")))
    if "ours" in args.frameworks and (args.train is None or not args.train.is_file()):
        fail(f"no program {args.train}: make build makes build/train, --frameworks jax,torch does without")
    if min(args.epochs, args.gpus) < 1 or not 0 < args.timeout <= threading.TIMEOUT_MAX:
        fail("--epochs, --gpus and --timeout are above 0, and no wait is without an end")
    try:
        (args.samples, *sides), _ = common.read_idx(args.mnist, "train-images-idx3-ubyte", 3)
        (args.validated, *_), _ = common.read_idx(args.mnist, "t10k-images-idx3-ubyte", 3)
    except Failed as err:
        fail(err)
    args.pixels = math.prod(sides)
    if (largest := args.gpus * max(bsz for _, bsz, _ in args.shapes)) > args.samples:
        fail(f"--shapes: a batch of {largest}, of {args.samples} samples")
    return args


def command(args):
    """The command line without the folders of this machine."""
    shapes = ",".join("x".join(map(str, shape)) for shape in args.shapes)
    return (
        f"peers.py --train train --mnist MNIST_DIR --csv {args.csv.name} --shapes {shapes} "
        f"--frameworks {','.join(args.frameworks)} --precisions {','.join(args.precisions)} "
        f"--gpus {args.gpus} --epochs {args.epochs} --timeout {args.timeout:g} --device {args.device}"
    )


def main(argv):
    args = parse_args(argv)
    if args.worker:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a library prints is no answer
        serve(args.worker, args, sys.stdin, answers)
        return 0
    what = NOTE.format(args.samples, args.validated, LEARNING_RATE)
    table = Table(args.csv, args.append, what, machine(args.device), command(args))
    try:
        failed, tried = measure(args, table)
    except KeyboardInterrupt:
        say(f"interrupted: {args.csv} has what was measured, and --append goes on")
        return 130
    finally:
        if table.rows:
            print(table_of(table.rows) + scaling_of(table.rows, args.samples))
    if failed:
        say(f"{failed} of {tried} trainings failed")
    elif not table.rows:
        say("nothing was measured")
    return int(failed > 0 or not table.rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
