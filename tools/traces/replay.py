#!/usr/bin/env python3
"""Replays traces on PyTorch's own allocator, for comparison with allocbench -traces.

    tools/traces/replay.py tools/traces/testdata/*.csv.gz
    tools/traces/replay.py --json FILE ...

Needs torch and a GPU. Reads traces of record.py and of allocbench -export-rmm. A child
process replays each with and without expandable_segments, once cold and then warm,
through the calls that torch offers to other libraries (caching_allocator_alloc without
its checks). The time of the same Python loop without the calls is subtracted.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

WARM = 7  # warm replays, for their median
SETTINGS = {"torch": "False", "torch-expandable": "True"}


def read(path):
    """Returns the calls of a trace as (is free, slot, bytes, stream), the number of slots, the slots never freed, and the peak in bytes."""
    opener = gzip.open if str(path).endswith(".gz") else open
    calls, slots, spare, live, peak = [], {}, [], 0, 0
    sizes = {}
    with opener(path, "rt") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(",")
            if line.startswith("#") or fields[0] == "Thread":
                continue
            free, pointer, size, stream = fields[2] != "allocate", fields[3], int(fields[4]), int(fields[5], 0)
            if free:
                slot = slots.pop(pointer)
                spare.append(slot)
                live -= sizes[slot]
            else:
                slot = slots[pointer] = spare.pop() if spare else len(slots)
                sizes[slot] = size
                live += size
                peak = max(peak, live)
            calls.append((free, slot, size, stream))
    return calls, len(slots) + len(spare) + 1, list(slots.values()), peak


def replay(path):
    """Replays one trace in this process and returns its figures."""
    import torch

    calls, slots, unfreed, peak = read(path)
    torch.cuda.init()
    device = torch.cuda.current_device()
    torch.cuda.synchronize()
    streams = {}
    for _, _, _, stream in calls:
        if stream not in streams:
            streams[stream] = torch.cuda.Stream() if streams else torch.cuda.default_stream()
    work = [(free, slot, size, streams[stream].cuda_stream) for free, slot, size, stream in calls]
    alloc, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete

    def once(alloc, delete):
        blocks = [0] * slots
        start = time.perf_counter()
        for free, slot, size, stream in work:
            if free:
                delete(blocks[slot])
            else:
                blocks[slot] = alloc(size, stream)
        elapsed = time.perf_counter() - start
        for slot in unfreed:
            delete(blocks[slot])
        return elapsed

    nothing = statistics.median(once(lambda size, stream: 1, lambda block: None) for _ in range(3))
    torch.cuda.reset_peak_memory_stats(device)
    cold = once(alloc, delete)
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_stats(device)["reserved_bytes.all.peak"]
    warm = statistics.median(once(alloc, delete) for _ in range(WARM))
    return {
        "cold_ms": 1e3 * (cold - nothing), "cold_ms_with_python": 1e3 * cold,
        "warm_ns_a_call": 1e9 * (warm - nothing) / len(work),
        "reserved": reserved, "ratio": reserved / peak,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(replay(args.traces[0])))
        return
    figures = []
    print(f"{'trace':24} {'allocator':18} {'cold ms':>9} {'(Python)':>9} {'warm ns':>9} {'res./live':>9}")
    for path in args.traces:
        for name, expandable in SETTINGS.items():
            child = subprocess.run(
                [sys.executable, __file__, "--one", str(path)], capture_output=True, text=True, check=False,
                env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"})
            if child.returncode != 0:
                sys.exit(f"{path} on {name}: {child.stderr.strip().splitlines()[-1:] or child.returncode}")
            f = json.loads(child.stdout)
            figures.append({"trace": path.name, "allocator": name, **f})
            print(f"{path.name.split('.')[0]:24} {name:18} {f['cold_ms']:9.2f} {f['cold_ms_with_python']:9.2f} "
                  f"{f['warm_ns_a_call']:9.0f} {f['ratio']:9.3f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
