"""Shared by the scripts of this folder: running train and workers, the GPU's name, tables, data sets. Needs no package."""

import argparse
import contextlib
import gzip
import importlib.util
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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


def rank_environments(ranks):
    """Returns the environment of each rank, as torchrun sets it; it is empty for a single process."""
    if ranks == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{k: str(v) for k, v in (world | {"RANK": rank, "LOCAL_RANK": rank}).items()} for rank in range(ranks)]


def call_train(train, *arguments, timeout=None, ranks=1):
    """Runs train as ranks processes on the default allocator and returns the standard output of rank 0. timeout is in seconds."""
    inherited = {k: v for k, v in os.environ.items() if k != "ALLOCATOR_TYPE"}
    started = []
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            for env in rank_environments(ranks):
                process = subprocess.Popen(
                    [str(train.resolve()), *map(str, arguments)],
                    env=inherited | env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if started else subprocess.PIPE,
                    stderr=said,
                    text=True,
                    errors="replace",
                )
                started.append(process)
            stdout, _ = started[0].communicate(timeout=timeout)
            statuses = [process.wait(timeout) for process in started]
        except OSError as err:
            raise Failed(f"{train.name} does not start: {err.strerror}") from err
        except subprocess.TimeoutExpired as err:
            raise Failed(f"not done after {timeout:g} s") from err
        finally:
            for process in started:
                with process:
                    process.kill()
        said.seek(0)
        if failed := [status for status in statuses if status != 0]:
            raise Failed(last_line(said.read()) or f"exit status {failed[0]}")
    return stdout


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


class Workers:
    """Processes that answer each request, a line of JSON, with a line of JSON: one process for each environment, which
    all get the request, and of which the first answers. Each is the leader of a process group, which ends with it."""

    def __init__(self, command, environments, timeout):
        """Starts the processes. timeout is the limit of an answer in seconds."""
        self.timeout = timeout
        self.processes = []
        self.said = tempfile.TemporaryFile("w+", errors="replace")
        answers, end = os.pipe()
        self.answers = open(answers, errors="replace")
        try:
            for env in environments:
                process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=end,
                    stderr=self.said,
                    text=True,
                    start_new_session=True,  # Ctrl-C goes to the script, which ends the group
                )
                self.processes.append(process)
        finally:
            os.close(end)

    def ask(self, request=None):
        """Sends a request and returns the answer; without a request it reads a worker's first message."""
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
        """The last line of output once a process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes[0].wait(5)
        statuses = [process.poll() for process in self.processes]
        self.said.seek(0)
        return last_line(self.said.read()) or f"ended with exit status {next(filter(None, statuses), 0)}"

    def kill(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self):
        self.kill()
        for process in self.processes:
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # an unread request
                process.stdin.close()
        self.answers.close()
        self.said.close()


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
