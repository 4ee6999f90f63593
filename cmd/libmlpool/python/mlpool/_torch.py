# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""The pool as PyTorch's allocator."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
from typing import Any, Callable, Optional, Union

from . import _class
from ._library import Stats, c_text, call, load
from ._plugin import choose, chosen, torch_allocator
from ._pool import Pool, Tags, sleep_all, wake_all

Device = Union[int, str, Any, None]  # as PyTorch names a device; None is the current one

_torch: Any = None  # the module, once the pool is installed
_rebuild: Any = None  # PyTorch's function that rebuild_cuda_tensor replaces, once the class is installed
_pools: dict[int, Optional[Pool]] = {}
_tags: set[str] = set()  # that were entered
_entered = threading.local()


def install(plugin: bool = False, **options: Any) -> None:
    """Make the pool PyTorch's allocator for every device; to be called before the first CUDA call. The first call for a
    PyTorch compiles a C++ class, which needs g++. If that is impossible, or with plugin, PyTorch's plugin interface serves. Options are those of
    mlpool_create; by default busy_slack=2.5, streams_last=True and, without plugin, shareable="auto"."""
    global _torch
    import torch
    if _torch is not None:
        raise RuntimeError("mlpool: install() was called before")
    if torch.version.cuda is None:
        raise RuntimeError(f"mlpool: PyTorch {torch.__version__} is built without CUDA")
    if torch.cuda.is_initialized():
        raise RuntimeError("mlpool: PyTorch has used CUDA already: call mlpool.install() before the first CUDA call")
    if "MLPOOL_BUSY_SLACK" not in os.environ:
        options = {"busy_slack": 2.5, **options}  # PyTorch's host is usually far ahead of its streams
    if "MLPOOL_STREAMS_LAST" not in os.environ:
        options = {"streams_last": True, **options}  # but for those of ExternalStream
    if not plugin:
        choose(torch, options if "MLPOOL_SHAREABLE" in os.environ else {"shareable": "auto", **options}, peers=False)
        try:
            _class.install(torch)
            chosen()
            _send_tensors()
        except _class.Unavailable as e:
            plugin = True
            print(f"mlpool: PyTorch's plugin interface serves, without what docs/pytorch.md says: {e}", file=sys.stderr)
    if plugin:
        torch.cuda.memory.change_current_allocator(torch_allocator(**options))
        _patch(torch)
    _torch = torch
    _note_streams(torch.cuda)


def _note_streams(cuda: Any) -> None:
    """Note the streams that others created, and may destroy."""
    def noting(make: Any, place: int) -> Any:
        def call_and_note(*arguments: Any, **keywords: Any) -> Any:
            stream = arguments[place] if len(arguments) > place else next(v for k, v in keywords.items() if k.endswith("_ptr"))
            call("torch_external", stream)
            return make(*arguments, **keywords)

        return call_and_note

    if hasattr(cuda, "ExternalStream"):
        cuda.ExternalStream.__new__ = noting(cuda.ExternalStream.__new__, 1)
    if hasattr(cuda, "get_stream_from_external"):
        cuda.get_stream_from_external = noting(cuda.get_stream_from_external, 0)


def _send_tensors() -> None:
    """Have torch.multiprocessing send CUDA tensors with a function that knows processes without the pool."""
    global _rebuild
    from torch.multiprocessing import reductions
    _rebuild, reductions.rebuild_cuda_tensor = reductions.rebuild_cuda_tensor, rebuild_cuda_tensor


def rebuild_cuda_tensor(*arguments: Any) -> Any:
    """Make a tensor that another process sent."""
    from torch.multiprocessing import reductions
    if _rebuild is None and any(isinstance(a, bytes) and a.startswith(b"\xffmlpool") for a in arguments):
        raise RuntimeError("mlpool: the CUDA tensor is in the pool of another process: call mlpool.install() here too, before the first CUDA call")
    return (_rebuild or reductions.rebuild_cuda_tensor)(*arguments)


def pool_of(device: Device = None) -> Pool:
    """Return PyTorch's pool of a device."""
    found = find_pool(device, create=True)
    assert found is not None
    return found


def _installed() -> Any:
    """Return the module torch."""
    if _torch is None:
        raise RuntimeError("mlpool: call mlpool.install() first")
    return _torch


def find_pool(device: Device = None, create: bool = False) -> Optional[Pool]:
    """Return PyTorch's pool of a device; unless create is set, None if PyTorch has used no memory there."""
    index = _installed().cuda._utils._get_device_index(device, optional=True)
    if _pools.get(index) is None:
        _pools[index] = Pool._of_torch(index, create)
    return _pools[index]


def stats(device: Device = None) -> dict[str, int]:
    """Return the counters of PyTorch's pool as a dict; sizes are in bytes."""
    return pool_of(device).stats()


def report(device: Device = None) -> dict[str, Any]:
    """Return the counters, also by tag, stream and size; memory_by_tag has the bytes of each tag."""
    return pool_of(device).report()


def snapshot(path: Union[str, os.PathLike[str]], device: Device = None) -> None:
    """Write PyTorch's memory to a file; see Pool.snapshot."""
    pool_of(device).snapshot(path)


def empty_cache() -> None:
    """Return PyTorch's unused memory to the driver."""
    load().mlpool_torch_empty_cache()


def on_out_of_memory(function: Optional[Callable[[int, str], Any]], device: Device = None) -> None:
    """Call function(size, error) before a request of PyTorch fails; if it returns true, the pool tries again."""
    pool_of(device).on_out_of_memory(function)


class tag(contextlib.ContextDecorator):
    """Tensors that the thread makes within "with tag(name):" have memory that serves only this tag, so that sleep(tags=[name])
    can give it back. The innermost tag counts; captured graphs and MemPools have memory of their own also within a tag."""

    def __init__(self, name: str) -> None:
        self._name = name
        if not name or "\0" in name:
            raise ValueError(f"mlpool: {name!r} is no tag")

    def __enter__(self) -> None:
        _installed()
        _tags.add(self._name)
        _entered.__dict__.setdefault("names", []).append(self._name)
        call("torch_tag", c_text(self._name))

    def __exit__(self, *_: Any) -> None:
        names = _entered.__dict__.get("names", [])
        if self._name not in names:
            raise RuntimeError(f"mlpool: tag {self._name!r} was entered by another thread: leave it there")
        del names[-1 - names[::-1].index(self._name)]  # a generator may leave an outer tag first
        call("torch_tag", c_text(names[-1]) if names else None)


def sleep(keep: Union[bool, Tags] = True, device: Device = None, tags: Optional[Tags] = None) -> None:
    """Give PyTorch's memory back to all devices, or to one, and keep all addresses; no tensor may be used until wake(). With
    keep, contents go to host memory. sleep(tags=["cache"], keep=["weights"]) is for the memory of tags alone, drops the
    contents of the former, and leaves all else awake. Registrations of memory with NCCL and for RDMA must be undone first."""
    sleep_all(_pools_of(device), keep, tags, _tags)


def wake(device: Device = None, tags: Optional[Tags] = None) -> None:
    """Undo sleep(), also for tags; CUDA graphs work again."""
    wake_all(_pools_of(device), tags, _tags)


def _pools_of(device: Device) -> list[Pool]:
    """Return the pool of a device, or all that PyTorch has used."""
    devices = range(_installed().cuda.device_count()) if device is None else [device]
    return [p for p in map(find_pool, devices) if p]


def _patch(torch: Any) -> None:
    """Make PyTorch's functions for statistics ask the pool, since its interface for other allocators has none."""
    c = torch._C

    def nested(device: int) -> dict[str, Any]:
        pool = find_pool(device)
        s = pool.stats() if pool else dict.fromkeys(Stats.names, 0)
        allocated = {"current": s["allocated"], "peak": s["peak_allocated"], "allocated": 0, "freed": 0}
        reserved = {"current": s["reserved"], "peak": s["peak_reserved"], "allocated": 0, "freed": 0}
        blocks = {"current": s["allocs"] - s["frees"], "peak": 0, "allocated": s["allocs"], "freed": s["frees"]}
        none = dict.fromkeys(allocated, 0)

        def parts(everything: dict[str, int]) -> dict[str, dict[str, int]]:
            return {"all": everything, "small_pool": none, "large_pool": none}

        return {
            "allocated_bytes": parts(allocated), "active_bytes": parts(allocated), "requested_bytes": parts(allocated),
            "reserved_bytes": parts(reserved), "inactive_split_bytes": parts(none), "allocation": parts(blocks),
            "active": parts(blocks), "segment": parts(none), "inactive_split": parts(none), "num_alloc_retries": 0,
            "num_ooms": s["refused"], "num_sync_all_streams": s["host_waits"], "num_device_alloc": s["driver_mallocs"],
            "num_device_free": s["driver_frees"], "max_split_size": -1, "oversize_allocations": none, "oversize_segments": none,
        }

    def memory_snapshot(*_: Any) -> dict[str, Any]:
        devices = range(torch.cuda.device_count())
        merged: dict[str, Any] = {"segments": [], "device_traces": [[] for _ in devices], "allocator_settings": {}, "external_annotations": []}
        for index in devices:
            pool = find_pool(index)
            if pool is None:
                continue
            one = _load_snapshot(pool)
            for segment in one["segments"]:
                segment["device"] = index
            segments, traces = merged["segments"] + one["segments"], merged["device_traces"]
            traces[index] = one["device_traces"][0]
            merged = {**merged, **one, "segments": segments, "device_traces": traces}
        return merged

    def reset_peaks(device: int) -> None:
        pool = find_pool(device)
        if pool:
            pool.reset_peaks()

    def record(enabled: Any = None, *_: Any, **__: Any) -> None:
        if enabled:
            raise RuntimeError("mlpool: to record calls, start with mlpool.install(trace_events=N)")

    c._cuda_memoryStats = nested
    c._cuda_resetPeakMemoryStats = reset_peaks
    c._cuda_resetAccumulatedMemoryStats = lambda device: None
    c._cuda_memorySnapshot = memory_snapshot
    c._cuda_record_memory_history = c._cuda_record_memory_history_legacy = record


def _load_snapshot(p: Pool) -> dict[str, Any]:
    """Return the snapshot of a pool as PyTorch's dict."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as f:
        p.snapshot(f.name)
        loaded: dict[str, Any] = pickle.load(f)
        return loaded
