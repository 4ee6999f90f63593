# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""Compiles the C++ class that is PyTorch's allocator against the PyTorch at hand, and installs it."""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

from . import _library

SOURCES = os.path.join(_library.FOLDER, "pytorch")
SECONDS = 60  # that a compilation may take
AGAIN = 60  # seconds until one that failed is tried again


class Unavailable(Exception):
    """The class cannot serve; the text says why, in one line."""


class Failed(Unavailable):
    """The compiler failed, and would fail again."""


def install(torch: Any) -> None:
    """Make the class PyTorch's allocator."""
    ctypes.CDLL(_library.path(), mode=ctypes.RTLD_GLOBAL)  # the class calls the functions of mlpool.h
    try:
        install_class = ctypes.CDLL(compiled(torch)).mlpool_torch_install
    except OSError as e:
        raise Unavailable(str(e)) from None
    install_class.restype = ctypes.c_char_p
    error = install_class()
    if error:
        raise Unavailable(error.decode(errors="replace").splitlines()[0])


def compiled(torch: Any) -> str:
    """Return the file of the compiled class; the first call for a PyTorch compiles it."""
    files = sorted(glob.glob(os.path.join(SOURCES, "*")))
    if not files:
        raise Unavailable(f"{SOURCES} has no sources")
    root = os.path.dirname(os.path.abspath(torch.__file__))
    abi = int(torch.compiled_with_cxx11_abi())
    key = hashlib.sha256(repr((torch.__version__, torch.version.git_version, torch.version.cuda, abi, platform.machine(), root)).encode())
    headers = ("c10/core/Allocator.h", "c10/core/CachingDeviceAllocator.h", "c10/cuda/CUDACachingAllocator.h")
    for name in [__file__, *files, os.path.join(_library.get_include(), "mlpool.h"), *(os.path.join(root, "include", h) for h in headers)]:
        if os.path.exists(name):
            with open(name, "rb") as f:
                key.update(f.read())
    try:
        return _compile_once(torch.__version__, root, abi, key.hexdigest()[:16])
    except OSError as e:
        raise Unavailable(str(e)) from None


def _compile_once(version: str, root: str, abi: int, key: str) -> str:
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "mlpool")
    target = os.path.join(folder, f"torch-{version}-{key}.so")
    if os.path.exists(target):  # whole, and maybe in a folder that cannot be written to
        return target
    os.makedirs(folder, exist_ok=True)
    with open(target + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one compiles
        failed = target + ".failed"
        if os.path.exists(target):
            return target
        if os.path.exists(failed) and time.time() - os.path.getmtime(failed) < AGAIN:
            with open(failed, errors="replace") as f:
                raise Unavailable(f.read())
        print(f"mlpool: compiling for PyTorch {version}, once", file=sys.stderr, flush=True)
        try:
            _compile(root, abi, target)
        except Failed as e:
            with open(failed, "w", errors="replace") as f:
                f.write(str(e))
            raise
    return target


def _compile(root: str, abi: int, target: str) -> None:
    compiler, headers = os.environ.get("CXX") or "g++", _cuda_headers(root)
    handle, part = tempfile.mkstemp(suffix=".so", dir=os.path.dirname(target))
    os.close(handle)
    command = [*shlex.split(compiler), "-shared", "-fPIC", "-O2", "-w", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-I" + _library.get_include(),
               "-I" + os.path.join(root, "include"), *("-I" + folder for folder in headers), os.path.join(SOURCES, "all.cpp"), "-o", part,
               "-L" + os.path.join(root, "lib"), "-lc10", "-lc10_cuda", "-ltorch_cuda",
               "-nodefaultlibs", "-lgcc", "-lc"]  # the C++ library is PyTorch's, of which a process must have one
    try:
        for standard in ("-std=gnu++17", "-std=gnu++20"):  # what PyTorch's headers need
            done = subprocess.run([*command, standard], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, errors="replace", timeout=SECONDS, check=False)
            if done.returncode == 0:
                os.replace(part, target)
                return
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no error text"]
        raise Failed(f"{compiler}: {errors[0]}")
    except FileNotFoundError:
        raise Unavailable(f"there is no {compiler}: install g++") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"{compiler} took more than {SECONDS} s") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _cuda_headers(root: str) -> list[str]:
    """Return the folders of CUDA's headers: those of PyTorch's own packages if they are complete, else of a toolkit."""
    packages = sorted(glob.glob(os.path.join(os.path.dirname(root), "nvidia", "*", "include")), reverse=True)
    toolkits = [[os.path.join(home, "include")] for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if home]
    needed = ("cuda_runtime_api.h", os.path.join("crt", "host_config.h"))
    for folders in (packages, *toolkits):
        if all(any(os.path.exists(os.path.join(folder, name)) for folder in folders) for name in needed):
            return folders
    raise Unavailable(f"there is no {' or '.join(needed)}: install nvidia-cuda-runtime and nvidia-cuda-crt, or a CUDA toolkit")
