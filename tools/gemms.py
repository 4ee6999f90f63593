#!/usr/bin/env python3
r"""Times the GEMMs of a hidden layer, forward, dgrad and wgrad, with mlpool's kernels and with
cuBLASLt through torch.mm, in turns on one GPU, and writes the microseconds of each to a CSV.

    make kernels && go test -c -tags cuda -o build/kernels.test -ldflags \
        "-X 'mlpool/internal/program.stamp=$(git log -1 --format='%H %cs')'" ./kernels
    tools/gemms.py --kernels build/kernels.test --csv assets/gemms_h200.csv

mlpool's are BenchmarkGEMMs of package kernels, with what they do beside the product in training:
forward applies ReLU; dgrad reads outputs and applies the gradient of ReLU and, where the wgrad
wants it, stores a second, transposed result; wgrad adds to float32 weights and, in bf16, also
stores them rounded. cuBLASLt only multiplies. On both sides numbers are random, 500 launches are
queued at once, in PyTorch by a CUDA graph, and operands rotate over more bytes than L2 holds.

The floor is what the product alone would take on an H200: its multiplications at their rate, or
its operands and its result at that of memory, whichever takes longer. Needs torch and a GPU.
"""

import argparse
import datetime
import re
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common
from common import Failed
from peers_sweep import MEMORY_RATE, RATES

NOTE = (
    "Microseconds of a GEMM: the median of the rounds, with the fastest and the slowest. mlpool's include ReLU, its gradient with a "
    "transposed store where the wgrad reads it, or SGD with a rounded copy in bf16; cuBLASLt's, by torch.mm, only the product. Operands "
    "come from memory. floor_us: multiplications or bytes of the product, on an H200."
)
SIDES = ["mlpool", "cublaslt"]
COLUMNS = ["feat_dim", "bsz", "gemm", "precision"] + [f"{side}_{k}" for side in SIDES for k in ("us", "min", "max")] + ["floor_us"]
ROTATED, LAUNCHES = 128 << 20, 500  # as in BenchmarkGEMMs
RESULT = re.compile(r"^BenchmarkGEMMs/(\d+)x(\d+)/(\w+)/(\w+?)(?:-\d+)?\s.*\s([\d.]+) µs", re.MULTILINE)
BUILD = re.compile(r"^build: (.*)$", re.MULTILINE)


def mlpool(kernels, timeout):
    """The build of the kernels, and the microseconds of each GEMM by width, batch, name and precision."""
    said = common.call([str(kernels.resolve()), "-test.run=^$", "-test.bench=^BenchmarkGEMMs$", "-test.benchtime=1x"], timeout=timeout)
    found = {(int(width), int(batch), gemm, precision): float(us) for width, batch, gemm, precision, us in RESULT.findall(said)}
    if not found or not (build := BUILD.search(said)):
        raise Failed(f"{kernels.name} has no BenchmarkGEMMs, or found no GPU: {common.last_line(said)}")
    return build[1], found


def cublaslt(torch, width, batch, gemm, precision):
    """The microseconds of the same product by torch.mm."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32

    def random(rows):
        return torch.rand(rows, width, device="cuda").mul_(2).sub_(1).to(kind)

    sets, size = [], 0
    while size <= ROTATED:
        if gemm == "wgrad":
            a, b = random(batch).t(), random(batch)
        else:
            a, b = random(batch), random(width) if gemm == "forward" else random(width).t()
        sets.append((a, b, torch.empty(len(a), width, device="cuda", dtype=kind)))
        size += sum(x.numel() * x.element_size() for x in sets[-1])

    def launch(count):
        for i in range(count):
            a, b, out = sets[i % len(sets)]
            torch.mm(a, b, out=out)

    graph, start, end = torch.cuda.CUDAGraph(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    launch(3)  # cuBLASLt cannot start in a capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        launch(LAUNCHES)
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / LAUNCHES


def floor(width, batch, precision):
    """The least microseconds of any of the three products on an H200."""
    value = 2 if precision == "bf16" else 4
    return 1e6 * max(2 * batch * width**2 / RATES[precision], value * (2 * batch * width + width**2) / MEMORY_RATE)


def start_torch():
    """Imports torch, and has it use cuBLASLt and TF32."""
    common.need("torch")
    import torch

    if not torch.cuda.is_available():
        raise Failed("PyTorch finds no GPU")
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.set_float32_matmul_precision("high")
    return torch


def measure(args, torch):
    """Runs the rounds. Returns the build of the kernels, and the rows of the CSV."""
    times = {}
    for i in range(args.rounds):
        build, found = mlpool(args.kernels, args.timeout)
        for gemm, us in found.items():
            of = times.setdefault(gemm, {side: [] for side in SIDES})
            of["mlpool"].append(us)
            of["cublaslt"].append(cublaslt(torch, *gemm))
        print(f"gemms: {i + 1} of {args.rounds} rounds", file=sys.stderr, flush=True)
    rows = []
    for gemm, of in times.items():
        us = [f"{pick(of[side]):.4g}" for side in SIDES for pick in (statistics.median, min, max)]
        width, batch, _, precision = gemm
        rows.append(dict(zip(COLUMNS, [*gemm, *us, f"{floor(width, batch, precision):.4g}"])))
    return build, rows


def table_of(rows):
    lines = [["µs a GEMM", "mlpool", "cuBLASLt", "cuBLASLt / mlpool", "floor", "share of mlpool", "of cuBLASLt"]]
    for row in rows:
        ours, theirs, least = (float(row[k]) for k in ("mlpool_us", "cublaslt_us", "floor_us"))
        cells = [f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}", f"{least:.1f}", f"{least / ours:.0%}", f"{least / theirs:.0%}"]
        lines.append(["{feat_dim}x{bsz}, {gemm}, {precision}".format(**row)] + cells)
    return "\n".join(common.columns(lines))


def main(argv):
    parser = argparse.ArgumentParser(prog="gemms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, required=True, metavar="TEST", help="the compiled tests of package kernels")
    parser.add_argument("--csv", type=Path, default=Path("gemms.csv"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="limit of mlpool's part of a round; default: %(default)s")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be above 0")
    try:
        torch = start_torch()
        build, rows = measure(args, torch)
        where = f"{common.gpu_and_driver() or 'an unknown GPU'}; {build}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
        how = f"gemms.py --kernels kernels.test --csv {args.csv.name} --rounds {args.rounds}"
        common.write_csv(args.csv, [NOTE, f"{where}, {datetime.date.today()}: {how}"], COLUMNS, rows)
    except Failed as err:
        sys.exit(f"gemms: {err}")
    print(table_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
