# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""PyTorch's plugin interface for allocators, and torch.cuda.MemPool over it."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any, Optional

from ._library import Int, Pointer, call, load, option_list, path
from ._pool import Pool

_made: list[Any] = []  # what C functions use; the first call chose the options
_allocator: Any = None


def choose(torch: Any, options: dict[str, Any], peers: bool = True) -> None:
    """Set the options of the pools of PyTorch. With peers, every device can use the memory of every other."""
    if options and _made:
        raise RuntimeError("mlpool: the first call of install(), pool() or torch_allocator() has chosen the options")
    if peers and torch.cuda.device_count() > 1 and options.get("segments") != "malloc":
        options = {"peers": "all", **options}  # PyTorch copies between any two
    if not _made:
        call("check_options", option_list(options))
        call("torch_options", option_list(options))


def chosen() -> None:
    """Note that the options are chosen."""
    _made.append(None)


def torch_allocator(**options: Any) -> Any:
    """Return the pool as a torch.cuda.memory.CUDAPluggableAllocator: for torch.cuda.memory.change_current_allocator, whose
    statistics and snapshots then do not work, or its allocator() for torch.cuda.MemPool. The first call may have options; all
    share one pool for each device."""
    import torch
    global _allocator
    choose(torch, options)
    if _allocator is None:
        _allocator = _new_allocator(torch)
    return _allocator


def _new_allocator(torch: Any) -> Any:
    library = load()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path(), "mlpool_torch_alloc", "mlpool_torch_free")
    hooks = allocator.allocator()
    for hook, function in (("set_record_stream_fn", library.mlpool_torch_record_stream),
                           ("set_reset_fn", library.mlpool_torch_empty_cache),
                           ("set_begin_allocate_to_pool", library.mlpool_torch_begin),
                           ("set_end_allocate_to_pool_fn", library.mlpool_torch_end),
                           ("set_release_pool", library.mlpool_torch_release)):
        getattr(hooks, hook)(ctypes.cast(function, Pointer).value)

    def set_fraction(fraction: float, device: int) -> None:
        total = torch.cuda.mem_get_info(device)[1]
        pool = Pool._of_torch(device)
        call("torch_limit", pool and pool._handle, 0 if fraction >= 1 else max(int(fraction * total), 1))

    limit = ctypes.CFUNCTYPE(None, ctypes.c_double, Int)(set_fraction)
    hooks.set_memory_fraction_fn(ctypes.cast(limit, Pointer).value)
    _made.extend((allocator, limit))
    return allocator


class pool(contextlib.ContextDecorator):
    """A torch.cuda.MemPool whose segments come from the pool. Tensors made within "with" are PyTorch's in these segments. It can
    be entered again, also within itself and by several threads. The first call may have options; all share one pool for each
    device."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        import torch
        choose(torch, options)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path(), "mlpool_torch_segment", "mlpool_torch_free")
        _made.append(allocator)
        self._torch, self._device = torch, device
        self._pool = torch.cuda.MemPool(allocator.allocator())
        self._thread = threading.local()

    def __enter__(self) -> Any:
        """Return the torch.cuda.MemPool."""
        device = self._torch.cuda.current_device() if self._device is None else self._device
        entered: list[tuple[Any, Optional[Any]]] = self._thread.__dict__.setdefault("entered", [])
        use = None  # PyTorch enters a MemPool once
        if all(device != other for other, _ in entered):
            use = self._torch.cuda.use_mem_pool(self._pool, device=device)
            use.__enter__()
        entered.append((device, use))
        return self._pool

    def __exit__(self, *error: Any) -> None:
        _, use = self._thread.entered.pop()
        if use:
            use.__exit__(*error)
