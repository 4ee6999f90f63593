"""Shared by the scripts of this folder: running train and workers, the GPU's name, tables, data sets. Needs no package."""

import argparse
import concurrent.futures
import contextlib
import csv
import gzip
import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path


class Failed(Exception):
    """A failure whose message is one line for the user."""


def need(*modules):
    """Exits with one line if a module is not installed."""
    if missing := [name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None]:
        names = " ".join(missing)
        sys.exit(f"{Path(sys.argv[0]).stem}: needs {names}: install with python3 -m pip install {names}")


def choices(known):
    """Returns a parser, for argparse, of a list of names out of known."""

    def parse(text):
        chosen = list(dict.fromkeys(text.split(",")))
        for one in chosen:
            if one not in known:
                raise argparse.ArgumentTypeError(f"{one!r} is not one of {', '.join(known)}")
        return chosen

    return parse


def last_line(text):
    """Returns the last line of a program's output."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def first_line(error):
    """Returns the type and the first line of an exception, at most 300 characters."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def rank_environments(ranks):
    """Returns the environment of each rank, as torchrun sets it; it is empty for a single process."""
    if ranks == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{k: str(v) for k, v in (world | {"RANK": rank, "LOCAL_RANK": rank}).items()} for rank in range(ranks)]


stopped = threading.Event()  # ends all calls


def call(command, environments=(None,), timeout=math.inf):
    """Runs a command once with each environment, all at the same time, and returns what the first prints. timeout is in
    seconds. If one fails or none is done in time, it ends them all, each with its process group."""
    processes = []
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            for env in environments:
                to = subprocess.DEVNULL if processes else out
                # In a session of its own, Ctrl-C goes to this script alone, which ends the group.
                process = subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stdout=to, stderr=said, start_new_session=True
                )
                processes.append(process)
            end, failed = time.monotonic() + timeout, False
            while None in (statuses := [process.poll() for process in processes]):
                if any(statuses) and not failed:
                    end, failed = min(end, time.monotonic() + 5), True  # the others may say why
                if time.monotonic() > end or stopped.is_set():
                    break
                time.sleep(0.02)
        except OSError as err:
            raise Failed(f"{Path(command[0]).name} does not start: {err.strerror}") from err
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        said.seek(0)
        if any(statuses):
            status = next(filter(None, statuses))
            why = f"ended with exit status {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
            said_last = last_line(said.read())
            raise Failed(said_last if said_last and status > 0 else ": ".join(filter(None, [why, said_last])))
        if None in statuses:
            raise Failed("interrupted" if stopped.is_set() else f"not done after {timeout:g} s")
        return out.read()


@contextlib.contextmanager
def threads(count):
    """A pool of threads that call. An exception, such as that of Ctrl-C, ends all calls."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def call_train(train, *arguments, timeout=math.inf, ranks=1):
    """Runs train as ranks processes on the default allocator and returns the standard output of rank 0."""
    inherited = {k: v for k, v in os.environ.items() if k != "ALLOCATOR_TYPE"}
    command = [str(train.resolve()), *map(str, arguments)]
    return call(command, [inherited | env for env in rank_environments(ranks)], timeout)


def gpu_and_driver(gpu=None):
    """The name and the driver of a GPU, by default of the first in CUDA_VISIBLE_DEVICES; None if unknown."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    try:
        done = subprocess.run([*query, "-i", gpu], capture_output=True, text=True, check=True, timeout=60)
        name, driver = done.stdout.strip().split(", ")
        return f"{name}, driver {driver}"
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def columns(lines):
    """Rows of cells as aligned lines; the first column is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join([line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]) for line in lines]


def write_csv(path, notes, names, rows):
    """Writes a CSV with notes, all or nothing. Floats have six digits."""
    half = path.with_name(path.name + ".half")
    try:
        with half.open("w", newline="") as file:
            file.writelines(f"# {note}\n" for note in notes)
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
        os.replace(half, path)
    except OSError as err:
        half.unlink(missing_ok=True)
        raise Failed(f"{path} cannot be written: {err.strerror}") from err


def read_idx(folder, name, dims):
    """Returns the shape and the bytes of the uint8 array in an IDX file, gzipped or plain."""
    path = Path(folder) / f"{name}.gz"
    try:
        if path.exists():
            raw = gzip.decompress(path.read_bytes())
        elif (path := Path(folder) / name).exists():
            raw = path.read_bytes()
        else:
            raise Failed(f"{folder} has neither {name} nor {name}.gz")
    except (OSError, EOFError, zlib.error) as err:
        raise Failed(f"{path} cannot be read: {err}") from err
    magic = bytes([0, 0, 8, dims])  # 8: uint8
    header = 4 + 4 * dims
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, header, 4))
    if raw[:4] != magic or len(raw) != header + math.prod(shape):
        raise Failed(f"{path} is not a whole IDX file of {dims} dimensions")
    return shape, memoryview(raw)[header:]


def write_idx(folder, name, shape, values):
    """Writes an array of uint8 as the IDX file that read_idx reads."""
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    (Path(folder) / name).write_bytes(header + values)
