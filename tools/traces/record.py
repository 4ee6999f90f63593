#!/usr/bin/env python3
"""Records what jobs ask of PyTorch's allocator on a GPU, to be replayed on others.

    tools/traces/record.py all OUT               every job, both settings, in minutes
    tools/traces/record.py transformer --steps 40 --seed 1 --out transformer.csv.gz

Needs torch and a GPU. A trace is a gzipped CSV in RMM's form, a call a line in the
order of the calls, after lines "# key: value" that say how it came to be and what
PyTorch itself reserved for it:

    Thread,Time,Action,Pointer,Size,Stream,Later

Action is allocate or free, Size the bytes asked for. Thread and Time are 0. Pointer
is a number that a block has until it is freed, Stream a number in the order of first
use. Later is empty where the memory was free at once. Where record_stream held it
back it is the number of lines after this one that came before PyTorch found the
memory to be free.
"""

import argparse
import collections
import concurrent.futures
import datetime
import gzip
import heapq
import json
import os
import random
import subprocess
import sys
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
COLUMNS = "Thread,Time,Action,Pointer,Size,Stream,Later"
MAX_ENTRIES = 5_000_000  # of the history; a job that has more is refused
MAX_BYTES = 150_000  # of a trace that `all` writes
CHILD_SECONDS = 150


class Refused(Exception):
    """An error that is told in one line."""


# ---- from a memory snapshot to a trace

Row = collections.namedtuple("Row", "action pointer size stream")


def rows_of(entries):
    """The calls in a device's trace entries, and for those frees whose memory came
    back later: index -> how many calls later, at least as many as there are if it
    never did. Refuses a trace that lacks its beginning."""
    rows, later = [], {}
    live, freed = {}, {}  # address -> row of the allocation; address -> index of the free
    spare, streams = [], {}  # numbers of blocks that are free again; stream -> number
    for entry in entries:
        action, address = entry["action"], entry["addr"]
        if action == "alloc":
            if address in live or address in freed:
                raise Refused(f"{address:#x} is allocated, and not freed before: the history is incomplete")
            pointer = heapq.heappop(spare) if spare else len(live) + 1
            stream = streams.setdefault(entry["stream"], len(streams))
            live[address] = Row("allocate", pointer, entry["size"], stream)
            rows.append(live[address])
        elif action == "free_requested":
            if address not in live:
                raise Refused(f"{address:#x} is freed, and not allocated before: the history is incomplete")
            row = live.pop(address)
            heapq.heappush(spare, row.pointer)
            freed[address] = len(rows)
            rows.append(row._replace(action="free"))
        elif action == "free_completed":
            if address not in freed:
                raise Refused(f"the free of {address:#x} ends, and never began: the history is incomplete")
            index = freed.pop(address)
            if index < len(rows) - 1:
                later[index] = len(rows) - 1 - index
    for index in freed.values():
        later[index] = len(rows)
    return rows, later


def peak_reserved(entries):
    """The most bytes that the segments in the entries held at once."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    held = peak = 0
    for entry in entries:
        held += signs.get(entry["action"], 0) * entry["size"]
        peak = max(peak, held)
    return peak


def peak_requested(rows):
    """The most bytes that were asked for and not freed at once."""
    held = peak = 0
    for row in rows:
        held += row.size if row.action == "allocate" else -row.size
        peak = max(peak, held)
    return peak


def trace_bytes(facts, rows, later):
    """The gzipped file; the same for the same arguments."""
    lines = [f"# {key}: {value}" for key, value in facts.items()]
    lines.append(COLUMNS)
    for index, row in enumerate(rows):
        lines.append(f"0,0,{row.action},{row.pointer:#x},{row.size},{row.stream},{later.get(index, '')}")
    return gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0)


# ---- the jobs: each takes torch, a source of random numbers and a number of steps

WIDTH, LAYERS, VOCABULARY = 512, 6, 4096


def encoder(torch):
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        torch.nn.Linear(WIDTH, VOCABULARY),
    ).cuda()


def transformer(torch, draw, steps):
    """Trains a transformer with AdamW; batch and length are drawn each step."""
    model = encoder(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        shape = (draw.randint(4, 16), draw.randint(64, 1024))
        tokens = torch.randint(VOCABULARY, shape, device="cuda")
        labels = torch.randint(VOCABULARY, shape, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def cnn(torch, draw, steps):
    """Trains a convolutional network with momentum; the images' side is drawn each step."""
    layers, channels = [], 3
    for _ in range(8):
        layers += [torch.nn.Conv2d(channels, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        channels = 64
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        side = draw.randint(96, 224)
        images = torch.randn(32, 3, side, side, device="cuda")
        labels = torch.randint(10, (32,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def cache(torch, draw, steps):
    """Keeps up to 400 blocks of 1 KiB to 64 MiB, log-uniform, and drops them at random."""
    live = []
    for _ in range(steps):
        if len(live) < 400 and (not live or draw.random() < 0.6):
            live.append(torch.empty(int(KIB * 2 ** draw.uniform(0, 16)), dtype=torch.uint8, device="cuda"))
        else:
            live[draw.randrange(len(live))] = live[-1]
            live.pop()


def streams(torch, draw, steps):
    """Up to 200 blocks of 0.5 KiB to 16 MiB on 8 streams, a fifth of them used on another."""
    all_streams = [torch.cuda.Stream() for _ in range(8)]
    live = []
    for _ in range(steps):
        if len(live) == 200 or live and draw.random() >= 0.6:
            live[draw.randrange(len(live))] = live[-1]
            live.pop()
            continue
        own, other = draw.sample(all_streams, 2)
        with torch.cuda.stream(own):
            block = torch.empty(int(KIB / 2 * 2 ** draw.uniform(0, 15)), dtype=torch.uint8, device="cuda")
            block.zero_()
        if draw.random() < 0.2:
            other.wait_stream(own)
            with torch.cuda.stream(other):
                block.add_(1)
            block.record_stream(other)
        live.append(block)


def inference(torch, draw, steps):
    """Runs a transformer forwards; batch and length are drawn each step."""
    model = encoder(torch).eval()
    with torch.no_grad():
        for _ in range(steps):
            shape = (draw.randint(1, 32), draw.randint(16, 512))
            model(torch.randint(VOCABULARY, shape, device="cuda")).argmax(-1)


# name -> the job, and steps whose trace is about MAX_BYTES
JOBS = {
    "transformer": (transformer, 30),
    "cnn": (cnn, 80),
    "cache": (cache, 12000),
    "streams": (streams, 12000),
    "inference": (inference, 120),
}


# ---- one job

def record(name, steps, seed, expandable):
    """Runs a job and returns the facts about it and its trace entries. It must be
    the first use of torch in the process."""
    for name_of_setting in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):  # the old name and the new one
        os.environ[name_of_setting] = f"expandable_segments:{expandable}"
    try:
        import torch
    except ImportError as error:
        raise Refused(f"needs torch: {error}") from error
    if not torch.cuda.is_available():
        raise Refused("needs a GPU that torch can use")
    torch.cuda.init()
    torch.cuda.set_device(0)
    torch.manual_seed(seed)
    memory = torch.cuda.memory
    memory._record_memory_history("all", context=None, stacks="python", max_entries=MAX_ENTRIES)
    JOBS[name][0](torch, random.Random(seed), steps)
    torch.cuda.synchronize()
    facts = {
        "job": name,
        "command": f"tools/traces/record.py {name} --steps {steps} --seed {seed}" + " --expandable" * expandable,
        "gpu": f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}",
        "date": datetime.date.today().isoformat(),
        "torch": str(torch.__version__),
        "expandable_segments": expandable,
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
    }
    snapshot = memory._snapshot()
    if len(snapshot["device_traces"][0]) >= MAX_ENTRIES:
        raise Refused(f"{steps} steps are more than the history holds")
    if expandable and not any(segment.get("is_expandable") for segment in snapshot["segments"]):
        raise Refused(f"torch did not keep to expandable_segments:{expandable}")
    return facts, snapshot


def convert(facts, entries):
    """The facts, with what follows from the entries, and the file of a trace. Where
    peak_of_history is not max_memory_reserved the history is incomplete."""
    rows, later = rows_of(entries)
    if not rows:
        raise Refused("the history has no call")
    facts = facts | {
        "peak_of_history": peak_reserved(entries),
        "peak_requested": peak_requested(rows),
        "calls": len(rows),
    }
    return facts, trace_bytes(facts, rows, later)


def run_job(name, steps, seed, expandable, out, snapshot_out):
    """Records a job, writes its files and prints its facts as a line of JSON."""
    facts, snapshot = record(name, steps, seed, expandable)
    facts, data = convert(facts, snapshot["device_traces"][0])
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_bytes(data)
    if snapshot_out:
        import torch
        Path(snapshot_out).parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(snapshot_out))
    print(json.dumps(facts | {"file_bytes": len(data)}))


# ---- all jobs

def child(arguments):
    """Runs this script, in a process of its own because a setting holds for a whole
    process, and returns the facts that it prints."""
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise Refused(f"{' '.join(command[2:])}: took more than {CHILD_SECONDS} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Refused(f"{' '.join(command[2:])}: exit status {done.returncode}: {last}")
    return json.loads(lines[-1])


def record_both(name, steps, seed, out, run=child):
    """Records a job with both settings, in fewer steps until both files are small
    enough, and returns the facts of each."""
    for _ in range(4):
        found = []
        for expandable in (False, True):
            path = Path(out) / f"{name}{'-expandable' * expandable}.csv.gz"
            arguments = [name, "--steps", steps, "--seed", seed, "--out", path] + ["--expandable"] * expandable
            found.append(run(arguments))
            if found[-1]["file_bytes"] > MAX_BYTES:
                break
        largest = max(facts["file_bytes"] for facts in found)
        if largest <= MAX_BYTES:
            return found
        steps = max(1, int(steps * 0.9 * MAX_BYTES / largest))
    raise Refused(f"{name}: {largest} bytes are more than {MAX_BYTES}, even with {found[0]['command']}")


def summary(found):
    """A table of what PyTorch reserved for each byte that was asked for."""
    lines = [f"{'job':24} {'calls':>7} {'requested':>12} {'reserved':>12} {'ratio':>6} {'file':>7}"]
    for facts in found:
        name = facts["job"] + "-expandable" * facts["expandable_segments"]
        ratio = facts["max_memory_reserved"] / facts["peak_requested"]
        lines.append(f"{name:24} {facts['calls']:7} {facts['peak_requested']:12} "
                     f"{facts['max_memory_reserved']:12} {ratio:6.3f} {facts['file_bytes']:7}")
        if facts["peak_of_history"] != facts["max_memory_reserved"]:
            lines.append(f"    but its history accounts for {facts['peak_of_history']} bytes reserved")
    return "\n".join(lines) + "\n"


def record_all(out, seed, parallel, run=child):
    """Records all jobs to a folder. Returns the number of those that failed."""
    Path(out).mkdir(parents=True, exist_ok=True)
    found, failed = [], 0
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        futures = [pool.submit(record_both, name, steps, seed, out, run) for name, (_, steps) in JOBS.items()]
        # A snapshot as PyTorch writes it, for those who read such files.
        futures.append(pool.submit(run, ["streams", "--steps", 400, "--seed", seed,
                                         "--snapshot", Path(out) / "snapshot.pickle"]))
        for future in futures:
            try:
                result = future.result()
            except Refused as error:
                print(f"record: {error}", file=sys.stderr)
                failed += 1
                continue
            found += result if isinstance(result, list) else []
    text = summary(found)
    (Path(out) / "summary.txt").write_text(text)
    print(text, end="")
    return failed


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (job, steps) in JOBS.items():
        p = commands.add_parser(name, help=job.__doc__)
        p.add_argument("--steps", type=int, default=steps, help="default %(default)s")
        p.add_argument("--seed", type=int, default=1, help="default %(default)s")
        p.add_argument("--expandable", action="store_true", help="with expandable_segments:True")
        p.add_argument("--out", help="write the trace to this file")
        p.add_argument("--snapshot", help="write PyTorch's own snapshot to this file")
    p = commands.add_parser("all", help="every job with both settings")
    p.add_argument("out", help="folder for the traces, summary.txt and snapshot.pickle")
    p.add_argument("--seed", type=int, default=1, help="default %(default)s")
    p.add_argument("--parallel", type=int, default=3, help="jobs at once; default %(default)s")
    args = parser.parse_args(argv)
    if getattr(args, "steps", 1) < 1 or getattr(args, "parallel", 1) < 1:
        parser.error("--steps and --parallel are 1 or more")
    try:
        if args.command == "all":
            return 1 if record_all(args.out, args.seed, args.parallel) else 0
        run_job(args.command, args.steps, args.seed, args.expandable, args.out, args.snapshot)
    except (Refused, OSError) as error:
        print(f"record: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
