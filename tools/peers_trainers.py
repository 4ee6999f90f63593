"""The trainers that peers.py compares. A training on several GPUs has a process for each or, in JAX, one."""

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

    def typical_epoch(self, samples):
        """About how many seconds an epoch of a large batch takes."""
        return samples / self.bsz * self.flop_step() / (TYPICAL_RATE * self.gpus)

    def within_a_second(self, epoch):
        """Returns the job with fewer epochs: as many as fit in a second if one takes epoch seconds, but at least three."""
        return dataclasses.replace(self, epochs=min(self.epochs, max(3, int(1 / epoch))))


def on_gpus(gpus):
    return "" if int(gpus) == 1 else f", {gpus} GPUs"


class Missing(Failed):
    """The framework is not installed, or does not support this device."""


def make_trainer(name, args):
    return Ours(args) if name == "ours" else Worker(name, args)


class Ours:
    """mlpool."""

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

    def train_all(self, jobs):
        """Returns for each job the figures of its training, or the Failed that it ended with."""
        if not self.checked:
            self.check()
        answers = []
        for job in jobs:
            try:
                answers.append(self.train(job))
            except Failed as err:
                answers.append(err)
        return answers

    def train(self, job):
        """Returns the median, the fastest and the slowest ms of an epoch, how many were measured, and the accuracy."""
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


def version_of(run):
    """The commit that train was built from, if known, and the toolkit of its kernels."""
    commit, _, modified = run.get("commit", "").partition(",")
    version = commit[:12] + ("-modified" if modified else "") or run["version"]
    toolkit = run.get("gpu", {}).get("cuda_runtime")
    return version + (f"+cuda{toolkit}" if toolkit else "")


def worker_command(name, args, jobs):
    all_jobs = json.dumps([dataclasses.asdict(job) for job in jobs])
    flags = {"worker": name, "mnist": args.mnist, "device": args.device, "jobs": all_jobs}
    return [sys.executable, str(Path(__file__).with_name("peers.py"))] + [word for k, v in flags.items() for word in (f"--{k}", str(v))]


class Worker:
    """JAX or PyTorch."""

    def __init__(self, name, args):
        self.name, self.args = name, args
        self.version = ""  # known after the first training

    def train_all(self, jobs):
        """Trains jobs of as many GPUs one after the other in one process, or in one for each GPU: see Ours."""
        ranks = common.rank_environments(jobs[0].gpus if self.name == "torch" else 1)
        command = worker_command(self.name, self.args, jobs)
        try:
            said = common.call(command, [os.environ | env for env in ranks], self.args.timeout * len(jobs))
        except Failed as err:
            return [err] * len(jobs)
        answer = json.loads(said)
        if "missing" in answer:
            raise Missing(answer["missing"])
        self.version = answer["version"]
        return [self.figures(training) for training in answer["trainings"]]

    @staticmethod
    def figures(training):
        if "failed" in training:
            return Failed(training["failed"])
        ms = training["ms"][1:]  # the first epoch compiled
        return [statistics.median(ms), min(ms), max(ms), len(ms), training["accuracy"]]


def work(name, args):
    """Trains jobs in a framework, and returns what Worker reads."""
    jobs, trainings = [Job(**job) for job in json.loads(args.jobs)], []
    try:
        module = importlib.import_module({"jax": "peers_jax", "torch": "torch_trainer"}[name])
        for job in jobs:
            try:
                ms, accuracy = module.measure(job, args.mnist, args.device)
                trainings.append({"ms": ms, "accuracy": accuracy})
            except (ImportError, Failed):
                raise
            except Exception as err:  # frameworks raise anything
                if len(jobs) == 1:
                    sys.exit(common.first_line(err))  # which ends the other ranks
                trainings.append({"failed": common.first_line(err)})
    except (ImportError, Failed) as err:
        return {"missing": str(err)}
    return {"version": module.VERSION, "trainings": trainings}
