# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""The pool in CuPy and RMM."""

from __future__ import annotations

from typing import Any, Callable

from ._library import OutOfMemoryError
from ._pool import Pool

_kept: list[Any] = []  # objects that C functions use


def cupy_allocator(**options: Any) -> Callable[[int], Any]:
    """Return an allocator for cupy.cuda.set_allocator: a pool for each device that CuPy uses."""
    import cupy
    pools: dict[int, Pool] = {}
    streams: dict[int, int] = {}

    def malloc(size: int, index: int) -> int:
        if index not in pools:
            pools[index] = Pool(index, **options)
        stream = cupy.cuda.get_current_stream().ptr
        try:
            address = pools[index].alloc(size, stream, "cupy")
        except OutOfMemoryError as e:
            raise cupy.cuda.memory.OutOfMemoryError(size, pools[index].stats()["allocated"]) from e
        streams[address] = stream
        return address

    def free(address: int, index: int) -> None:
        pools[index].free(address, streams.pop(address))

    allocator = cupy.cuda.PythonFunctionAllocator(malloc, free)
    _kept.append(allocator)
    malloc_of_cupy: Callable[[int], Any] = allocator.malloc
    return malloc_of_cupy


def rmm_resource(device: int = 0, **options: Any) -> Any:
    """Return an rmm.mr.CallbackMemoryResource over a pool of a device."""
    import rmm
    p = Pool(device, **options)

    def handle(stream: Any) -> int:
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
        return int(stream.value()) if hasattr(stream, "value") else int(stream)

    resource = rmm.mr.CallbackMemoryResource(lambda size, stream=0: p.alloc(size, handle(stream), "rmm"),
                                             lambda address, size, stream=0: p.free(address, handle(stream)))
    _kept.append(p)
    return resource
