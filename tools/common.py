"""What the scripts of this folder share: calls of train, and the files of a data set. Needs no package."""

import gzip
import math
import os
import subprocess
import zlib
from pathlib import Path


class Failed(Exception):
    """Ends what was asked for; one line says why."""


def last_line(text):
    """The last line of what a program said."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def call_train(train, *arguments, timeout=None):
    """Runs train on the default allocator, and returns its standard output; timeout is in seconds."""
    try:
        done = subprocess.run(
            [str(train.resolve()), *map(str, arguments)],
            env={k: v for k, v in os.environ.items() if k != "ALLOCATOR_TYPE"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except OSError as err:
        raise Failed(f"{train.name} does not start: {err.strerror}") from err
    except subprocess.TimeoutExpired as err:
        raise Failed(f"not done after {timeout:g} s") from err
    if done.returncode != 0:
        raise Failed(last_line(done.stderr) or f"exit status {done.returncode}")
    return done.stdout


def read_idx(folder, name, dims):
    """The shape and the bytes of the uint8 array in an IDX file, gzipped or plain."""
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
