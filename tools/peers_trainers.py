"""The trainers that peers.py compares: mlpool, and a worker process for JAX or PyTorch."""

import dataclasses
import importlib
import json
import os
import statistics
import sys
from pathlib import Path

import common
from common import Failed

CLASSES = 10
LEARNING_RATE = 0.1
TYPICAL_RATE = 50e12  # FLOP/s, to estimate how many epochs fit in a second


@dataclasses.dataclass(frozen=True)
class Job:
    """One training."""

    precision: str
    feat_dim: int
    bsz: int  # per GPU
    layers: int  # hidden layers
    gpus: int
    epochs: int  # measured epochs
    pixels: int  # per image
    learning_rate: float = LEARNING_RATE

    def __str__(self):
        return f"{self.feat_dim}x{self.bsz}, {self.layers} hidden layers, {self.precision}{on_gpus(self.gpus)}"

    def widths(self):
        return [self.pixels] + [self.feat_dim] * self.layers + [CLASSES]

    def flop_step(self):
        """FLOP of a whole batch on one GPU; the first layer has no dgrad."""
        first, *others = (inputs * outputs for inputs, outputs in zip(self.widths(), self.widths()[1:]))
        return 2 * self.bsz * (2 * first + 3 * sum(others))

    def within_a_second(self, samples):
        """The same job with as many epochs as fit in a second, but at least three."""
        epoch = samples / self.bsz * self.flop_step() / (TYPICAL_RATE * self.gpus)
        return dataclasses.replace(self, epochs=min(self.epochs, max(3, int(1 / epoch))))


def on_gpus(gpus):
    return "" if int(gpus) == 1 else f", {gpus} GPUs"


class Missing(Failed):
    """The framework is not installed, or does not support this device."""


class Ours:
    """mlpool: a process for each training, and for each of its GPUs."""

    def __init__(self, args):
        self.args = args
        self.version = ""  # known after the first training
        self.checked = False

    def check(self):
        if self.args.gpus > 1 and self.args.device == "cpu":
            raise Missing("--gpus needs --device cuda")
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
            if job.precision != (precision := run.get("precision", "fp32")):
                raise Failed(f"{self.args.train.name} computed in {precision}")
            if job.gpus != run.get("ranks", 1):
                raise Failed(f"{self.args.train.name} trained as {run.get('ranks', 1)} ranks, not {job.gpus}")
            return [figures[k] for k in ms] + [figures["epochs"], figures["val_acc"]]
        except (ValueError, KeyError, IndexError) as err:
            raise Failed(f"{self.args.train.name} -json has another format: {err!r}") from err

    def close(self):
        pass


def version_of(run):
    """The commit that train was built from, if known, and the toolkit of its kernels."""
    commit, _, modified = run.get("commit", "").partition(",")
    version = commit[:12] + ("-modified" if modified else "") or run["version"]
    toolkit = run.get("gpu", {}).get("cuda_runtime")
    return version + (f"+cuda{toolkit}" if toolkit else "")


def worker_command(name, args):
    flags = {"worker": name, "mnist": args.mnist, "device": args.device, "gpus": args.gpus}
    return [sys.executable, str(Path(__file__).with_name("peers.py"))] + [word for k, v in flags.items() for word in (f"--{k}", str(v))]


class Worker:
    """JAX or PyTorch: one process for all trainings, or one per GPU for PyTorch. They start again after a failure."""

    def __init__(self, name, args):
        self.command = worker_command(name, args)
        self.ranks = args.gpus if name == "torch" else 1
        self.timeout = args.timeout
        self.workers = None
        self.version = ""  # known once the process has started

    def train(self, job):
        try:
            if not self.workers:
                self.start()
            answer = self.workers.ask(dataclasses.asdict(job))
            if "failed" in answer:
                raise Failed(answer["failed"])
        except Failed:
            self.close()
            raise
        ms = answer["ms"][1:]  # the first epoch compiled
        return [statistics.median(ms), min(ms), max(ms), len(ms), answer["accuracy"]]

    def start(self):
        environments = [os.environ | env for env in common.rank_environments(self.ranks)]
        self.workers = common.Workers(self.command, environments, self.timeout)
        try:
            hello = self.workers.ask()
        except Failed as err:
            raise Missing(str(err)) from err
        if "failed" in hello:
            raise Missing(hello["failed"])
        self.version = hello["version"]

    def close(self):
        if self.workers:
            self.workers.close()
        self.workers = None


def serve(name, args, requests, answers):
    """Runs a worker: prints its version, then one line of JSON per request. Only rank 0 and ranks that fail answer."""
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
        except Exception as err:  # frameworks raise anything
            text = str(err).strip().partition("\n")[0]
            answer(failed=f"{type(err).__name__}: {text}"[:300])
            continue
        answer(ms=ms, accuracy=accuracy)
