"""The CSV that peers.py writes, and its comparison as text."""

import csv
import datetime
import sys

from common import columns, gpu_and_driver
from peers_trainers import on_gpus

NAMES = {"ours": "mlpool", "jax": "JAX", "torch": "PyTorch"}
PRECISIONS = ["tf32", "3xtf32", "fp32", "bf16"]
COLUMNS = "framework,version,precision,feat_dim,bsz,layers,gpus,ms,min,max,epochs,accuracy,flop_step".split(",")
KEY = ["framework", "precision", "feat_dim", "bsz", "layers", "gpus"]  # of a row


def fail(message):
    sys.exit(f"peers: {message}")


def say(message):
    print(f"peers: {message}", file=sys.stderr, flush=True)


class Table:
    """The CSV, with the rows already in it. No two rows have the same values of key."""

    def __init__(self, path, append, what, where, how, columns=COLUMNS, key=KEY):
        self.rows, self.columns, self.key = [], columns, key
        if path.exists() and not append:
            fail(f"{path} exists: --append adds the rows it lacks")
        if not path.absolute().parent.is_dir():
            fail(f"the folder of {path} does not exist")
        self.path, self.new = path, not path.exists()
        known = [] if self.new else self.read(path, where)
        notes = [what] * self.new + [f"{where}, {datetime.date.today()}: {how}"]
        self.notes = [note for note in notes if f"# {note}" not in known]

    def read(self, path, machine):
        """Reads the rows, and returns all lines."""
        lines = path.read_text().splitlines()
        table = csv.DictReader(line for line in lines if not line.startswith("#"))
        self.rows = list(table)
        if table.fieldnames != self.columns or any(None in row.values() for row in self.rows):
            fail(f"{path} was not written by this script: name another file")
        if not any(line.startswith(f"# {machine}, ") for line in lines):
            fail(f"{path} is of another machine than {machine}: name another file")
        return lines

    def has(self, row):
        return any(all(old[k] == str(row[k]) for k in self.key) for old in self.rows)

    def add(self, row):
        """Appends the row. Before the first row it writes where and how the rows were measured."""
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            file.writelines(f"# {note}\n" for note in self.notes)
            if self.new:
                writer.writeheader()
            writer.writerow(row)
        self.notes, self.new = [], False
        self.rows.append({k: str(row.get(k, "")) for k in self.columns})


def key_of(framework, job):
    """The columns of KEY."""
    return {"framework": framework} | {k: getattr(job, k) for k in KEY[1:]}


def figures_of(job, trainer, answer):
    """The other columns, from what trainer.train_all returned for the job."""
    median, low, high, epochs, accuracy = answer
    ms = {k: f"{v:.4g}" for k, v in (("ms", median), ("min", low), ("max", high))}
    return {"version": trainer.version} | ms | {"epochs": epochs, "accuracy": f"{accuracy:.4f}", "flop_step": job.flop_step()}


def machine(device):
    """The GPU and its driver, if known."""
    if device == "cpu":
        return "the CPU"
    if name := gpu_and_driver():
        return name
    say("nvidia-smi does not name the GPU, so the CSV will not either; --device cpu needs none")
    return "an unknown GPU"


def shape_text(feat_dim, bsz, layers, gpus, precision):
    return f"{feat_dim}x{bsz}, {layers} layers, {precision}{on_gpus(gpus)}"


def epochs_of(rows):
    """Milliseconds of an epoch by KEY, of the frameworks that this script knows."""
    return {tuple(row[k] for k in KEY): float(row["ms"]) for row in rows if row["framework"] in NAMES}


def table_of(rows):
    """A table of mlpool and the others, one line per shape and precision."""
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
    """A table of the speedup over one GPU; empty if every row is of one GPU."""
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
    """The precision of the others that is as exact."""
    return "fp32" if precision == "3xtf32" else precision
