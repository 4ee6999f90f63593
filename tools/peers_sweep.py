"""The sweep of peers.py: random shapes, and both sides of bounds in the code, against JAX and against a floor."""

import contextlib
import dataclasses
import functools
import itertools
import random
import statistics
import tempfile
import time
from pathlib import Path

import common
from common import Failed, columns
from peers_table import COLUMNS, KEY, NAMES, figures_of, key_of, say, theirs
from peers_trainers import Job, Missing, make_trainer

SWEEP_KEY = KEY + ["pixels", "samples"]
SWEEP_COLUMNS = COLUMNS + ["pixels", "samples", "floor_ms"]
SWEEP_NOTE = (
    "A sweep: median ms of an epoch of samples, in whole batches, and of a sixth as many to validate, of images cut to pixels "
    "bytes. JAX trains every third random shape. floor_ms: the least that an H200 could take. A training that failed has no ms; "
    "without its row it is tried again."
)
MOST_WIDTH, MOST_BATCH, MOST_LAYERS = 12288, 16384, 8
SECONDS = 0.5  # of an epoch, at most; larger ones have fewer samples
COMPARED = 3  # JAX, which compiles for seconds, trains one of this many random shapes
CLIFF = 1.15  # how much of its share of the floor a shape may lose to a neighbour, as a factor

# An H200 at its power limit, by microbenchmarks: FLOP/s, bytes/s of L2 and of memory; seconds from one kernel of a graph
# to the next. What takes half of the L2 bytes stays there, what takes all does not. JAX takes LAYER seconds for a small
# layer.
RATES = {"tf32": 450e12, "3xtf32": 150e12, "fp32": 66e12, "bf16": 867e12}
L2, L2_RATE, MEMORY_RATE, EDGE, LAYER = 50e6, 9.3e12, 4.2e12, 0.5e-6, 15e-6

ALL, FLOATS, TENSOR, BF16 = ("tf32", "3xtf32", "fp32", "bf16"), ("tf32", "3xtf32", "fp32"), ("tf32", "3xtf32"), ("bf16",)

# Shapes on both sides of the bounds beyond which the code takes another path: WIDTHxBATCHxLAYERS. Widths differ
# by eight, or by more where the device pads both to the same. Bounds are those of an H200, with 132 SMs.
BOUNDS = [
    ("classifier: k of 256 threads; tensor-core skinny: k", ALL, "1024x64x4", "1032x64x4"),
    ("classifier: k of 512 threads", ALL, "2048x64x2", "2056x64x2"),
    ("classifier: k in shared memory", ALL, "2048x512x2", "2056x512x2"),
    ("classifier: a warp for each row", ALL, "1024x264x2", "1024x265x2"),
    ("classifier: rows by k", ALL, "1024x2048x2", "1024x2049x2"),
    ("viewRows: images are gathered", ALL, "784x192x4", "784x193x4"),
    ("SMALL_BATCH of wgrads", FLOATS, "784x128x4", "784x129x4"),
    ("SMALL_BATCH of wgrads that fill the GPU", ALL, "2048x128x4", "2048x129x4"),
    ("warpgroup: weights for up to 64 rows", ("tf32",), "2208x64x2", "2240x64x2"),
    ("warpgroup: weights for up to 64 rows, in bf16", BF16, "1976x64x2", "2000x64x2"),
    ("SMALL_BATCH of forward and dgrad in 3xtf32", ("3xtf32",), "2048x127x4", "2048x128x4"),
    ("SMALL_BATCH of wgrads by large weights", TENSOR, "5600x128x6", "5600x129x6"),
    ("warpgroup: tiles of 192 shared by two", TENSOR, "4224x192x4", "4232x192x4"),
    ("twice SMALL_BATCH of wgrads; low", ALL, "784x256x4", "784x257x4"),
    ("small_wgrads_enough: rows of small weights", ("tf32",), "64x192x4", "64x193x4"),
    ("skinny tiles", ALL, "1024x96x4", "1024x97x4"),
    ("skinny tiles, 64 rows", ("fp32",), "1568x64x2", "1600x64x2"),
    ("wgrads on an SM; skinny k-tiles at once", ALL, "784x64x4", "792x64x4"),
    ("bf16-skinny: k", BF16, "1024x16x2", "1032x16x2"),
    ("wgrad-tensorop tiles", TENSOR, "1152x100x2", "1160x100x2"),
    ("dgrad_wgrad: width", TENSOR + BF16, "1008x64x4", "1024x64x4"),
    ("dgrad_wgrad: 16 rows", TENSOR + BF16, "2048x16x4", "2048x17x4"),
    ("dgrad_wgrad: 32 rows; low: rows", TENSOR + BF16, "2048x32x4", "2048x33x4"),
    ("dgrad_wgrad: rows", TENSOR + BF16, "2048x64x4", "2048x65x4"),
    ("dgrad_wgrad: fewest CTAs", ("3xtf32",), "1888x64x4", "1896x64x4"),
    ("dgrad_wgrad: most CTAs", ("3xtf32",), "2112x64x4", "2120x64x4"),
    ("bf16_fills: wgrads", BF16, "1152x200x2", "1160x200x2"),
    ("wide: columns", ("3xtf32",), "2752x64x2", "2760x64x2"),
    ("dgrad_wgrad: rows, of large weights", TENSOR + BF16, "4320x64x2", "4320x65x2"),
    ("WARPGROUP_MIN_WORK", TENSOR, "880x256x4", "888x256x4"),
    ("WARPGROUP_MIN_WORK in bf16", BF16, "1040x128x4", "1056x128x4"),
    ("warpgroup: columns", TENSOR, "128x4096x4", "136x4096x4"),
    ("warpgroup-wgrad: weights", TENSOR, "248x4096x4", "256x4096x4"),
    ("bf16-warpgroup: rows of wgrads", BF16, "2048x255x4", "2048x256x4"),
    ("bf16-warpgroup: columns", BF16, "120x16384x4", "128x16384x4"),
    ("low-tensorop, bf16-low: rows", TENSOR + BF16, "512x256x4", "512x257x4"),
    ("low-tensorop: split-K", TENSOR, "512x200x4", "520x200x4"),
    ("wgrad-large: a wave of tiles", TENSOR, "320x320x4", "328x320x4"),
    ("wgrad-large: two waves of tiles", TENSOR, "448x512x5", "456x512x5"),
    ("wgrad-wave: tiles", TENSOR, "848x200x1", "856x200x1"),
    ("low-tensorop: one wave of tiles", TENSOR, "512x512x2", "512x513x2"),
    ("low-tensorop: one column of tiles", TENSOR, "32x16384x4", "40x16384x4"),
    ("thin-simt: columns", TENSOR, "96x8192x4", "104x8192x4"),
    ("chain: columns", ALL, "64x256x4", "72x256x4"),
    ("chain: multiplications", FLOATS, "64x1024x4", "64x1025x4"),
    ("chain: multiplications in bf16", BF16, "64x512x4", "64x513x4"),
    ("chain: multiplications of 32 columns in bf16", BF16, "32x2048x4", "32x2049x4"),
    ("bf16-skinny: tiles, 32 columns", BF16, "32x1056x4", "32x1057x4"),
    ("bf16-low: rows, one wave of tiles", BF16, "512x320x4", "512x321x4"),
    ("bf16-wgrads: weights", BF16, "120x1024x4", "128x1024x4"),
    ("Width: whole lines", ALL, "1920x1024x4", "1928x1024x4"),
    ("warpgroup: one wave of tiles", ALL, "1024x4096x2", "1032x4096x2"),
    ("warpgroup: PDL", TENSOR, "1920x2048x2", "1928x2048x2"),
    ("Group::MAX: wgrads in one launch", ALL, "784x64x6", "784x64x7"),
    ("KERNELS_MAX_GROUP", ALL, "128x64x15", "128x64x16"),
]
BOUNDS_OF_RANKS = [
    ("bucketBytes", ALL, "1248x1024x4", "1256x1024x4"),
    ("half of bucketBytes", ALL, "880x1024x4", "888x1024x4"),
    ("lateRows", ALL, "2048x2047x4", "2048x2048x4"),
    ("partBytes", ALL, "3520x1024x2", "3552x1024x2"),
    ("partRows", ALL, "5000x1023x2", "5000x1024x2"),
]


@dataclasses.dataclass(frozen=True)
class Probe:
    """Shapes to compare: the first with its neighbours, or both sides of a bound. Jobs have no samples yet."""

    bound: str  # empty: a random shape
    shapes: tuple  # of Job's fields from feat_dim to layers, and pixels
    precisions: tuple
    compared: tuple = ()  # the precisions in which JAX trains the first shape


def points(seed):
    """Yields points of a cube. Their first two coordinates are a Roberts sequence: any number of points from the start
    spreads evenly over the square. The other coordinates are random."""
    draw = random.Random(seed)
    at = [draw.random(), draw.random()]
    while True:
        yield at + [draw.random() for _ in range(3)]
        at = [(x + step) % 1 for x, step in zip(at, (0.7548776662466927, 0.5698402909980532))]


def random_probe(number, at, args):
    """The shape at a point, by the logarithms of width and batch, and the same at 95 and 105 % of one of the two. Every
    other shape has round numbers, as people choose, and half of them whole images."""
    limits = MOST_WIDTH, min(MOST_BATCH, args.samples // args.gpus)
    sizes = [round(most**x) for most, x in zip(limits, at)]
    if number % 2:
        sizes = [min(most, max(32, 32 * round(n / 32))) if n > 16 else n for most, n in zip(limits, sizes)]
    rest = 1 + int(MOST_LAYERS * at[2]), args.pixels if at[3] < 0.5 else 1 + int((2 * at[3] - 1) * args.pixels)
    which, shapes = int(2 * at[4]), [(*sizes, *rest)]
    for factor in (0.95, 1.05):
        other = list(sizes)
        other[which] = round(factor * sizes[which])
        if other != sizes and other[which] <= limits[which]:
            shapes.append((*other, *rest))
    compared = () if number % COMPARED else dict.fromkeys(map(theirs, args.precisions))
    return Probe("", tuple(shapes), tuple(args.precisions), tuple(p for p in compared if p != "fp32" or not args.all_precisions))


def bound_probe(bound, args):
    name, precisions, *sides = bound
    shapes = [(*map(int, side.split("x")), args.pixels) for side in sides]
    return Probe(name, tuple(shapes), tuple(p for p in args.precisions if p in precisions))


def probes_of(args):
    """The probes in an order of which each beginning is a fair sample: a random shape, a bound, and so on."""
    spread = [random_probe(i, at, args) for i, at in enumerate(itertools.islice(points(args.seed), args.sweep))]
    bounds = [bound_probe(bound, args) for bound in BOUNDS + BOUNDS_OF_RANKS * (args.gpus > 1)]
    bounds = [probe for probe in bounds if max(bsz for _, bsz, *_ in probe.shapes) * args.gpus <= args.samples]
    random.Random(args.seed).shuffle(bounds)
    both = itertools.chain.from_iterable(itertools.zip_longest(spread, bounds))
    return [probe for probe in both if probe and probe.precisions]


def floor(job, samples, validated):
    """The least seconds of an epoch on an H200: multiplications at their rate, or bytes at that of L2 and of memory,
    whichever takes longer, and the edges between kernels, which wait for each other. An update reads a weight twice and
    writes it; an output of a layer is written and read three times, and its gradient written and read twice."""
    widths, value = job.widths(), 2 if job.precision == "bf16" else 4
    weights = sum(inputs * outputs for inputs, outputs in zip(widths, widths[1:]))
    outputs = job.bsz * job.feat_dim * job.layers * value
    cached = min(1, max(0, 2 - 2 * (4 * weights + 2 * outputs) / L2))

    def seconds(flop, moved, kernels):
        return max(flop / RATES[job.precision], moved * (cached / L2_RATE + (1 - cached) / MEMORY_RATE)) + kernels * EDGE

    step = seconds(job.flop_step(), 12 * weights + 7 * outputs + 2 * job.bsz * job.pixels, 2 * job.layers + 1)
    evaluation = seconds(2 * job.bsz * weights, value * weights + 2 * outputs + job.bsz * job.pixels, job.layers + 1)
    return (samples * step + validated * evaluation) / (job.bsz * job.gpus)


def sized(shape, args):
    """The job of a shape in the slowest precision, with fewer epochs if they take long, and how many samples to train on
    and to validate, so that an epoch takes at most SECONDS by the floor and JAX's time for layers. Batches are whole: for
    a short last one JAX would compile a second step."""
    *sizes, pixels = shape
    slowest = min(map(theirs, args.precisions), key=RATES.get)
    job = Job(slowest, *sizes, args.gpus, args.epochs, pixels, learning_rate=0.01)
    samples, validated, batch = args.samples, args.validated, job.bsz * job.gpus
    epoch = floor(job, samples, validated) + samples / batch * LAYER * (job.layers + 1)
    samples = batch * max(1, int(samples * min(1, SECONDS / epoch) / batch))
    validated = max(1, validated * samples // args.samples)
    return job.within_a_second(epoch * samples / args.samples), samples, validated


read_idx = functools.lru_cache(maxsize=None)(common.read_idx)


@contextlib.contextmanager
def cut(mnist, samples, validated, pixels):
    """A folder with the first samples of a data set and the middle pixels of each image."""
    with tempfile.TemporaryDirectory() as folder:
        for prefix, count in (("train", samples), ("t10k", validated)):
            (_, *sides), images = read_idx(mnist, f"{prefix}-images-idx3-ubyte", 3)
            _, labels = read_idx(mnist, f"{prefix}-labels-idx1-ubyte", 1)
            all_pixels = sides[0] * sides[1]
            starts = range((all_pixels - pixels) // 2, count * all_pixels, all_pixels)
            common.write_idx(folder, f"{prefix}-images-idx3-ubyte", (count, 1, pixels), b"".join(images[i : i + pixels] for i in starts))
            common.write_idx(folder, f"{prefix}-labels-idx1-ubyte", (count,), labels[:count])
        yield Path(folder)


class Sweep:
    """Measures probes, as far as the table lacks them."""

    def __init__(self, args, table):
        self.args, self.table, self.whole = args, table, args.mnist
        self.trainers = {name: make_trainer(name, args) for name in args.frameworks}
        self.failed = self.tried = 0

    def missing(self, probe):
        """Yields, for each shape and trainer, the jobs that the table lacks."""
        for shape in probe.shapes:
            base, *counts = sized(shape, self.args)
            for name in list(self.trainers):
                precisions = probe.precisions if name == "ours" else probe.compared if shape == probe.shapes[0] else ()
                jobs = [dataclasses.replace(base, precision=p) for p in precisions]
                jobs = [job for job in jobs if not self.table.has(self.key(name, job, counts[0]))]
                if jobs:
                    yield name, jobs, counts

    @staticmethod
    def key(name, job, samples):
        return key_of(name, job) | {"pixels": job.pixels, "samples": samples}

    def measure(self, progress, name, jobs, counts):
        with cut(self.whole, *counts, jobs[0].pixels) as self.args.mnist:
            try:
                answers = self.trainers[name].train_all(jobs)
            except Missing as err:
                say(f"{NAMES[name]} is left out: {err}")
                del self.trainers[name]
                return
        for job, answer in zip(jobs, answers):
            self.tried += 1
            least = 1e3 * floor(job, *counts)
            row = self.key(name, job, counts[0]) | {"floor_ms": f"{least:.4g}"}
            what = f"{progress} {NAMES[name]} {job}, {job.pixels} inputs"
            if isinstance(answer, Failed):
                self.failed += 1
                say(f"{what}: {answer}")
            else:
                row |= figures_of(job, self.trainers[name], answer)
                say(f"{what}: {row['ms']} ms, {least / answer[0]:.0%} of the floor's speed")
            self.table.add(row)

    def run(self):
        """Returns how many trainings failed and how many were tried."""
        end, probes = time.monotonic() + 60 * self.args.minutes, probes_of(self.args)
        for i, probe in enumerate(probes):
            for name, jobs, counts in list(self.missing(probe)):  # a probe is measured in one run
                if name in self.trainers:
                    self.measure(f"[{i + 1}/{len(probes)}]", name, jobs, counts)
            if time.monotonic() > end:
                say(f"stopped after {self.args.minutes:g} minutes: the same command continues")
                break
        return self.failed, self.tried


def report(args, rows):
    """Says where JAX is faster and where a shape falls off a cliff, the worst first, and how near the floor shapes are."""
    known = {tuple(str(row[k]) for k in SWEEP_KEY): row for row in rows if row["ms"]}

    def find(name, shape, precision):
        job, samples, _ = sized(shape, args)
        key = Sweep.key(name, dataclasses.replace(job, precision=precision), samples)
        return known.get(tuple(str(key[k]) for k in SWEEP_KEY))

    def text(shape):
        return "{}x{}, {} layers, {} inputs".format(*shape)

    slower, cliffs, compared, shares = [], [], 0, {}
    for probe in probes_of(args):
        for precision in probe.precisions:
            first, *others = [find("ours", shape, precision) for shape in probe.shapes]
            if first is None:
                continue
            share = float(first["floor_ms"]) / float(first["ms"])
            shares.setdefault(precision, []).append(share)
            if not probe.bound and (jax := find("jax", probe.shapes[0], theirs(precision))):
                compared += 1
                ratio = float(first["ms"]) / float(jax["ms"])
                if ratio > 1:
                    slower.append((ratio, [f"{text(probe.shapes[0])}, {precision}", first["ms"], jax["ms"], f"{ratio:.2f}"]))
            for shape, other in zip(probe.shapes[1:], others):
                if other is None:
                    continue
                pair = sorted([(share, probe.shapes[0]), (float(other["floor_ms"]) / float(other["ms"]), shape)])
                (low, at), (high, beside) = pair
                if high > CLIFF * low:
                    cells = ["x".join(map(str, beside)), f"{low:.0%}", f"{high:.0%}", f"{high / low:.2f}", probe.bound]
                    cliffs.append((high / low, [f"{text(at)}, {precision}", *cells]))
    parts = [(f"slower than JAX: {len(slower)} of {compared} compared", ["mlpool", "JAX", "mlpool / JAX"], slower)]
    parts += [(f"cliffs: {len(cliffs)}", ["beside", "share of the floor", "beside", "factor", "bound"], cliffs)]
    lines = []
    for title, head, found in parts:
        found.sort(key=lambda one: -one[0])
        lines += columns([[title, *head]] + [line for _, line in found]) + [""]
    for precision, of in shares.items():
        lines.append(f"share of the floor in {precision}: median {statistics.median(of):.0%}, least {min(of):.0%}, of {len(of)} shapes")
    failed = sum(not row["ms"] for row in rows)
    return "\n".join(lines + [f"failed: {failed} of {len(rows)} trainings"] * (failed > 0))
