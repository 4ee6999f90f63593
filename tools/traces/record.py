#!/usr/bin/env python3
"""Records the requests of jobs to PyTorch's allocator on a GPU, for replay on others.

    tools/traces/record.py all OUT               every job, both settings, takes minutes
    tools/traces/record.py all OUT --jobs moe lora --snapshots FOLDER
    tools/traces/record.py transformer --steps 40 --seed 1 --out transformer.csv.gz
    PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 tools/traces/record.py --measure moe lora

Needs torch and a GPU. A trace is a gzipped CSV in RMM's format, one call a line in the
order of the calls. Lines "# key: value" before it say how it was recorded and how much
PyTorch itself reserved:

    Thread,Time,Action,Pointer,Size,Stream,Later

Action is allocate or free; Size is the requested bytes. Thread and Time are 0. Pointer
numbers the live blocks, Stream the streams in the order of first use. Later is empty if
the memory was free at once. If record_stream delayed it, Later counts the calls after
this line until PyTorch found the memory free.

--measure records nothing. It runs jobs with the allocator settings of the environment and
prints a line of JSON for each, with its peaks in bytes.
"""

import argparse
import collections
import concurrent.futures
import datetime
import gzip
import heapq
import itertools
import json
import os
import random
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
from common import Failed
from jobs import JOBS

COLUMNS = "Thread,Time,Action,Pointer,Size,Stream,Later"
MAX_ENTRIES = 5_000_000  # of the history; a longer job is refused
MAX_BYTES = 150_000  # of a trace that `all` writes
CHILD_SECONDS = 150
SEED, PARALLEL = 1, 3  # unless given
SETTINGS = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"  # the old name and the new one


# ---- from a memory snapshot to a trace

Row = collections.namedtuple("Row", "action pointer size stream")


def rows_of(entries):
    """Returns the calls in a device's trace entries, and for each delayed free its index
    -> the number of calls until the memory was free, or of all calls if it never was.
    Refuses a trace whose beginning is missing."""
    rows, later = [], {}
    live, freed = {}, {}  # address -> row of the allocation; address -> index of the free
    spare, streams = [], {}  # numbers of freed blocks; stream -> number
    for entry in entries:
        action, address = entry["action"], entry["addr"]
        if action == "alloc":
            if address in live or address in freed:
                raise Failed(f"{address:#x} is allocated twice: the history is incomplete")
            pointer = heapq.heappop(spare) if spare else len(live) + 1
            stream = streams.setdefault(entry["stream"], len(streams))
            live[address] = Row("allocate", pointer, entry["size"], stream)
            rows.append(live[address])
        elif action == "free_requested":
            if address not in live:
                raise Failed(f"{address:#x} is freed but was not allocated: the history is incomplete")
            row = live.pop(address)
            heapq.heappush(spare, row.pointer)
            freed[address] = len(rows)
            rows.append(row._replace(action="free"))
        elif action == "free_completed":
            if address not in freed:
                raise Failed(f"the free of {address:#x} ends but never began: the history is incomplete")
            index = freed.pop(address)
            if index < len(rows) - 1:
                later[index] = len(rows) - 1 - index
    for index in freed.values():
        later[index] = len(rows)
    return rows, later


def peak_reserved(entries):
    """Returns the peak bytes of the segments in the entries."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    return max(itertools.accumulate((signs.get(entry["action"], 0) * entry["size"] for entry in entries), initial=0))


def peak_requested(rows):
    """Returns the peak bytes of live requests."""
    return max(itertools.accumulate((row.size if row.action == "allocate" else -row.size for row in rows), initial=0))


def trace_bytes(facts, rows, later):
    """Returns the gzipped file, which depends only on the arguments."""
    lines = [f"# {key}: {value}" for key, value in facts.items()]
    lines.append(COLUMNS)
    for index, row in enumerate(rows):
        lines.append(f"0,0,{row.action},{row.pointer:#x},{row.size},{row.stream},{later.get(index, '')}")
    return gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0)


# ---- one job

def start(seed, settings):
    """Returns torch, ready for a job. It must be the first use of torch in the process,
    since torch reads the allocator settings only once. Empty settings are the defaults."""
    if settings:
        os.environ |= dict.fromkeys(SETTINGS, settings)
    common.need("torch")
    import torch

    if not torch.cuda.is_available():
        raise Failed("needs a GPU that torch can use")
    try:
        torch.cuda.init()
    except (RuntimeError, ValueError) as error:
        raise Failed(f"torch does not start with {settings!r}: {str(error).splitlines()[0]}") from error
    torch.cuda.set_device(0)
    torch.manual_seed(seed)
    return torch


def peaks_of(torch, name, steps, seed):
    """Runs a job and returns its peaks in bytes, as PyTorch counts them."""
    try:
        JOBS[name][0](torch, random.Random(seed), steps)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        raise Failed(f"{name}: {str(error).splitlines()[0]}") from error
    return {
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
    }


def record(name, steps, seed, expandable, stacks):
    """Runs a job and returns facts about it and PyTorch's snapshot, whose entries have
    the Python stack of each call if stacks is true."""
    torch = start(seed, f"expandable_segments:{expandable}")
    memory = torch.cuda.memory
    memory._record_memory_history("all", context="all" if stacks else None, stacks="python", max_entries=MAX_ENTRIES)
    peaks = peaks_of(torch, name, steps, seed)
    facts = {
        "job": name,
        "command": f"tools/traces/record.py {name} --steps {steps} --seed {seed}" + " --expandable" * expandable,
        "gpu": f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}",
        "date": datetime.date.today().isoformat(),
        "torch": str(torch.__version__),
        "expandable_segments": expandable,
    } | peaks
    snapshot = memory._snapshot()
    if len(snapshot["device_traces"][0]) >= MAX_ENTRIES:
        raise Failed(f"{steps} steps exceed the history")
    if expandable and not any(segment.get("is_expandable") for segment in snapshot["segments"]):
        raise Failed(f"torch ignored expandable_segments:{expandable}")
    return facts, snapshot


def convert(facts, entries):
    """Returns the facts, completed from the entries, and the trace file. If
    peak_of_history differs from max_memory_reserved, the history is incomplete."""
    rows, later = rows_of(entries)
    if not rows:
        raise Failed("the history has no call")
    facts = facts | {
        "peak_of_history": peak_reserved(entries),
        "peak_requested": peak_requested(rows),
        "calls": len(rows),
    }
    return facts, trace_bytes(facts, rows, later)


def run_job(name, steps, seed, expandable, out, snapshot_out):
    """Records a job, writes its files and prints its facts as a line of JSON."""
    facts, snapshot = record(name, steps, seed, expandable, stacks=bool(snapshot_out))
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

def child(*arguments):
    """Runs this script in a child, since a setting holds for a whole process, and
    returns the facts that it prints."""
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]
    return json.loads(common.last_line(common.call(command, timeout=CHILD_SECONDS)))


def record_both(name, steps, seed, out, snapshots):
    """Records a job with both settings and returns the facts of each. It reduces the
    number of steps until both files are small enough. If snapshots is a folder, it gets
    the snapshot with the default setting."""
    for _ in range(4):
        found = []
        for expandable in (False, True):
            path = Path(out) / f"{name}{'-expandable' * expandable}.csv.gz"
            arguments = [name, "--steps", steps, "--seed", seed, "--out", path] + ["--expandable"] * expandable
            if snapshots and not expandable:
                arguments += ["--snapshot", Path(snapshots) / f"{name}.pickle"]
            found.append(child(*arguments))
            if found[-1]["file_bytes"] > MAX_BYTES:
                break
        largest = max(facts["file_bytes"] for facts in found)
        if largest <= MAX_BYTES:
            return found
        steps = max(1, int(steps * 0.9 * MAX_BYTES / largest))
    raise Failed(f"{largest} bytes exceed {MAX_BYTES}, even with {found[0]['command']}")


def summary(found):
    """Returns a table of reserved bytes for each requested byte."""
    lines = [f"{'job':24} {'calls':>7} {'requested':>12} {'reserved':>12} {'ratio':>6} {'file':>7}"]
    for facts in found:
        name = facts["job"] + "-expandable" * facts["expandable_segments"]
        ratio = facts["max_memory_reserved"] / facts["peak_requested"]
        lines.append(f"{name:24} {facts['calls']:7} {facts['peak_requested']:12} "
                     f"{facts['max_memory_reserved']:12} {ratio:6.3f} {facts['file_bytes']:7}")
        if facts["peak_of_history"] != facts["max_memory_reserved"]:
            lines.append(f"    but its history accounts for {facts['peak_of_history']} bytes reserved")
    return "\n".join(lines) + "\n"


def record_all(names, out, seed, parallel, snapshots):
    """Records jobs to a folder, says on stderr when each ends, and returns how many failed."""
    Path(out).mkdir(parents=True, exist_ok=True)
    found, failed = {}, 0
    with common.threads(parallel) as pool:
        futures = {pool.submit(record_both, name, JOBS[name][1], seed, out, snapshots): name for name in names}
        for count, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name = futures[future]
            try:
                found[name] = future.result()
                news = f"{found[name][0]['calls']} calls"
            except Failed as error:
                failed += 1
                news = error
            print(f"record: {count} of {len(names)}: {name}: {news}", file=sys.stderr, flush=True)
    text = summary([facts for name in names for facts in found.get(name, [])])
    (Path(out) / "summary.txt").write_text(text)
    print(text, end="")
    return failed


# ---- peaks without a recording

def measure(names):
    """Prints the peaks of jobs with the allocator settings of the environment, a line of
    JSON each, and returns how many failed. Several jobs run in a child each, since a job
    must not find memory that another has left."""
    if len(names) == 1:
        settings = next((os.environ[key] for key in SETTINGS if os.environ.get(key)), "")
        peaks = peaks_of(start(SEED, settings), names[0], JOBS[names[0]][1], SEED)
        print(json.dumps({"job": names[0], "PYTORCH_CUDA_ALLOC_CONF": settings} | peaks))
        return 0
    failed = 0
    with common.threads(PARALLEL) as pool:
        for name, future in [(name, pool.submit(child, "--measure", name)) for name in names]:
            try:
                print(json.dumps(future.result()), flush=True)
            except Failed as error:
                print(f"record: {name}: {error}", file=sys.stderr, flush=True)
                failed += 1
    return failed


def arguments_of(argv):
    """Returns the parsed arguments; it exits if they are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", choices=JOBS, metavar="JOB", help="print the peaks of these jobs")
    seeded = argparse.ArgumentParser(add_help=False)
    seeded.add_argument("--seed", type=int, default=SEED, help="default %(default)s")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (job, steps) in JOBS.items():
        p = commands.add_parser(name, help=job.__doc__, parents=[seeded])
        p.add_argument("--steps", type=int, default=steps, help="default %(default)s")
        p.add_argument("--expandable", action="store_true", help="with expandable_segments:True")
        p.add_argument("--out", help="write the trace to this file")
        p.add_argument("--snapshot", help="write PyTorch's own snapshot, with stacks, to this file")
    p = commands.add_parser("all", help="every job with both settings", parents=[seeded])
    p.add_argument("out", help="folder for the traces and summary.txt")
    p.add_argument("--parallel", type=int, default=PARALLEL, help="jobs at once; default %(default)s")
    p.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help="only these jobs")
    p.add_argument("--snapshots", help="write PyTorch's own snapshot of each job, with stacks, to this folder")
    args = parser.parse_args(argv)
    if bool(args.measure) == bool(args.command):
        parser.error("needs either a COMMAND or --measure")
    if getattr(args, "steps", 1) < 1 or getattr(args, "parallel", 1) < 1:
        parser.error("--steps and --parallel must be 1 or more")
    return args


def main(argv):
    args = arguments_of(argv)
    try:
        if args.measure:
            return 1 if measure(args.measure) else 0
        if args.command == "all":
            return 1 if record_all(args.jobs, args.out, args.seed, args.parallel, args.snapshots) else 0
        run_job(args.command, args.steps, args.seed, args.expandable, args.out, args.snapshot)
    except (Failed, OSError) as error:
        print(f"record: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
