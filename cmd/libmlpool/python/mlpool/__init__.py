# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""mlpool: a pool of GPU memory for PyTorch, CuPy, RMM and other Python programs.

PyTorch, before the first CUDA call of the process:

    import mlpool
    mlpool.install()

or without a change of the program: "python -m mlpool train.py ARGUMENTS"; or for a part of a program, as a
torch.cuda.MemPool: "with mlpool.pool():". mlpool.torch_allocator() is for PyTorch's own functions, as
rmm_torch_allocator is. CuPy:

    cupy.cuda.set_allocator(mlpool.cupy_allocator())

RMM: rmm.mr.set_current_device_resource(mlpool.rmm_resource()). JAX offers no way: XLA chooses among
allocators of its own (XLA_PYTHON_CLIENT_ALLOCATOR). Any other program: mlpool.Pool. Programs in C and C++:
mlpool.get_include() has mlpool.h and mlpool.hpp, and mlpool_rmm.hpp for RMM's C++ interface.

Options are those of mlpool_create in mlpool.h, as keywords: mlpool.install(slack=0.1, max_bytes=8 << 30).
libmlpool.so is loaded from this package's folder, or from where the environment variable MLPOOL_LIBRARY says.

After install(), torch.cuda's functions for statistics, limits and snapshots work on the pool. docs/pytorch.md
of the sources says what works.
"""

from ._arrays import cupy_allocator, rmm_resource
from ._library import Error, OutOfMemoryError, get_include
from ._plugin import pool, torch_allocator
from ._pool import Pool, receive
from ._torch import empty_cache, install, on_out_of_memory, report, sleep, snapshot, stats, tag, wake

__version__ = "0.0.0"

__all__ = ["Error", "OutOfMemoryError", "Pool", "cupy_allocator", "empty_cache", "get_include", "install",
           "on_out_of_memory", "pool", "receive", "report", "rmm_resource", "sleep", "snapshot", "stats", "tag",
           "torch_allocator", "wake"]
