# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""The pool in CuPy and RMM."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

from ._library import FREE, OutOfMemoryError, Visitor, call
from ._pool import Pool

_PER_THREAD = 2  # cudaStreamPerThread: the default stream of the thread that names it

_kept: list[Any] = []  # objects that C functions use


class _CupyPool:
    """A pool for each device, as cupy.cuda.MemoryPool is. Functions are about the current device, and count the memory of
    the pool that CuPy had before, since arrays may be older."""

    def __init__(self, cupy: Any, options: dict[str, Any]) -> None:
        self._device, self._stream, self._error = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream, cupy.cuda.memory.OutOfMemoryError
        self._options = options
        self._pools: dict[int, Pool] = {}
        self._streams: dict[int, tuple[int, Any]] = {}  # of live blocks, and the thread if it is a thread's own
        self._thread = threading.local()
        self._before = cupy.get_default_memory_pool()  # its arrays would not outlive it; it also keeps the limit
        self._allocator = cupy.cuda.PythonFunctionAllocator(self._alloc, self._free)

    def _pool(self, index: int) -> Pool:
        pool = self._pools.get(index)
        if pool is None:
            made = Pool(index, **self._options)
            pool = self._pools.setdefault(index, made)
            if pool is not made:  # another thread was faster
                made.close()
            elif "max_bytes" in self._options:
                self._before.set_limit(int(self._options["max_bytes"]))
            elif limit := int(self._before.get_limit()):  # of CUPY_GPU_MEMORY_LIMIT
                made.set_limit(limit)
        return pool

    def _owner(self) -> object:
        """Return an object that stands for the calling thread, also after it has ended."""
        owner: object = self._thread.__dict__.setdefault("owner", object())
        return owner

    def _alloc(self, size: int, index: int) -> int:
        stream = self._stream().ptr
        pool = self._pool(index)
        try:
            address = pool.alloc(size, stream, "cupy")
        except OutOfMemoryError as e:
            raise self._error(size, pool.stats()["allocated"], self.get_limit()) from e
        self._streams[address] = stream, self._owner() if stream == _PER_THREAD else None
        return address

    def _free(self, address: int, index: int) -> None:
        stream, owner = self._streams.pop(address)
        if owner is not None and owner is not self._owner():
            stream = 0  # this thread cannot name the stream of the other, for which the default stream waits
        self._pools[index].free(address, stream)

    def _sum(self, name: str) -> int:
        pool = self._pools.get(self._device())
        return pool.stats()[name] if pool else 0

    def malloc(self, size: int) -> Any:
        """Return a cupy.cuda.MemoryPointer."""
        return self._allocator.malloc(size)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Return unused memory, of whatever stream, to the driver."""
        pool = self._pools.get(self._device())
        if pool:
            pool.trim()
        self._before.free_all_blocks(stream)

    free_all_free = free_all_blocks

    def n_free_blocks(self) -> int:
        """Return the number of free blocks."""
        kinds: list[int] = []
        pool = self._pools.get(self._device())
        if pool:
            call("visit", pool._handle, Visitor(lambda _, region: kinds.append(region[0].kind)), None)
        return kinds.count(FREE) + int(self._before.n_free_blocks())

    def used_bytes(self) -> int:
        """Return the bytes of live blocks."""
        return self._sum("allocated") + int(self._before.used_bytes())

    def total_bytes(self) -> int:
        """Return the bytes held from the driver."""
        return self._sum("reserved") + int(self._before.total_bytes())

    def free_bytes(self) -> int:
        """Return the bytes held from the driver that are in no live block."""
        return self.total_bytes() - self.used_bytes()

    def set_limit(self, size: Optional[int] = None, fraction: Optional[float] = None) -> None:
        """Limit the bytes held from the driver, or their part of the device's memory; 0: no limit."""
        pool = self._pool(self._device())
        self._before.set_limit(size, fraction)
        pool.set_limit(self.get_limit())

    def get_limit(self) -> int:
        """Return the limit in bytes."""
        self._pool(self._device())  # the options may set it
        return int(self._before.get_limit())


def cupy_allocator(**options: Any) -> Callable[[int], Any]:
    """Return an allocator for cupy.cuda.set_allocator: a pool for each device that CuPy uses. Then the functions of
    cupy.get_default_memory_pool() are about it."""
    import cupy
    cupy._default_memory_pool = _CupyPool(cupy, options)
    malloc: Callable[[int], Any] = cupy._default_memory_pool.malloc
    return malloc


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
