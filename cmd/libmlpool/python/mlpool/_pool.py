# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""The class Pool: mlpool.h in Python."""

from __future__ import annotations

import contextlib
import ctypes
import json
import operator
import os
from socket import socket as Socket
from typing import Any, Callable, Iterable, Optional, Union

from ._library import ASLEEP, INVALID, Error, OutOfMemoryCallback, Pointer, Size, Stats, c_text, call, option_list

Tags = Union[str, Iterable[str]]


# The functions that pools got for when memory is short, for good: a thread may be about to call one that was replaced.
_callbacks: list[Any] = []


class Pool:
    """A pool of a device's memory. Streams are integers, cudaStream_t handles; 0 is the default stream.

    "with Pool() as pool:" closes the pool at the end."""

    def __init__(self, device: int = 0, **options: Any) -> None:
        self._handle = Pointer()
        call("create", operator.index(device), option_list(options), ctypes.byref(self._handle))

    @classmethod
    def _of_torch(cls, device: int, create: bool = True) -> Optional[Pool]:
        """Return the pool that PyTorch uses on a device; unless create is set, None if it has used none."""
        self = cls.__new__(cls)
        self._handle = Pointer()
        call("torch_pool" if create else "torch_find", device, ctypes.byref(self._handle))
        return self if self._handle else None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        with contextlib.suppress(*([Error] if kind else [])):  # the first error says more than the blocks it left
            self.close()

    def close(self) -> None:
        """Return all memory to the driver. Live blocks are an Error that names their tags."""
        call("destroy", self._handle)

    def alloc(self, size: int, stream: int = 0, tag: Optional[str] = None, alignment: int = 0, separate: bool = False) -> int:
        """Return the address of size bytes for work on stream. tag is for reports; with separate, the memory serves only
        requests with this tag, so that it can sleep by itself."""
        address = Pointer()
        text = c_text(tag) if tag else None
        if separate:
            if alignment:
                raise ValueError("mlpool: memory that serves only a tag has no alignment")
            call("tag_alloc", self._handle, ctypes.byref(address), size, stream, text)
        elif alignment:
            call("alloc_aligned", self._handle, ctypes.byref(address), size, alignment, stream, text)
        else:
            call("alloc", self._handle, ctypes.byref(address), size, stream, text)
        return address.value or 0

    def try_alloc(self, size: int, stream: int = 0, tag: Optional[str] = None) -> int:
        """Like alloc, but without waiting or calling the driver; the Error's code is 3 if that is impossible."""
        address = Pointer()
        call("try_alloc", self._handle, ctypes.byref(address), size, stream, c_text(tag) if tag else None)
        return address.value or 0

    def free(self, address: int, stream: int = 0) -> None:
        """Free a block after the work queued on stream so far."""
        call("free", self._handle, address, stream)

    def record_stream(self, address: int, stream: int) -> None:
        """Say that work on stream also uses the block."""
        call("record_stream", self._handle, address, stream)

    def release_stream(self, stream: int) -> None:
        """Give the memory of a stream to all others; with streams_last, to be called before it is destroyed."""
        call("release_stream", self._handle, stream)

    def trim(self, keep: int = 0) -> None:
        """Return unused memory to the driver until keep bytes are reserved."""
        call("trim", self._handle, keep)

    def reserve(self, size: int) -> None:
        """Reserve memory ahead, so that size bytes are unused."""
        call("reserve", self._handle, size)

    def _asleep(self) -> bool:
        try:
            self.reserve(0)
        except Error as e:
            return e.code == ASLEEP
        return False

    def set_limit(self, size: int) -> None:
        """Limit the bytes reserved; 0: no limit."""
        call("set_limit", self._handle, size)

    def set_tag_limit(self, tag: str, size: int) -> None:
        """Limit the bytes of live blocks with a tag; to be called before the first alloc."""
        call("set_tag_limit", self._handle, tag.encode(), size)

    def on_out_of_memory(self, function: Optional[Callable[[int, str], Any]]) -> None:
        """Call function(size, error) before a request fails; if it returns true, the pool tries again."""
        def answer(_: Any, size: int, error: bytes) -> int:
            return int(bool(function and function(size, error.decode(errors="replace"))))

        callback = OutOfMemoryCallback(answer) if function else OutOfMemoryCallback(0)
        call("on_out_of_memory", self._handle, callback, None)
        if function:
            _callbacks.append(callback)

    def stats(self) -> dict[str, int]:
        """Return the counters as a dict; sizes are in bytes."""
        s = Stats(size=ctypes.sizeof(Stats))
        call("get_stats", self._handle, ctypes.byref(s))
        return {name: getattr(s, name) for name in Stats.names}

    def report(self) -> dict[str, Any]:
        """Return the counters, also by tag, stream and size."""
        size = Size(1 << 16)
        while True:
            buffer = ctypes.create_string_buffer(size.value)
            try:
                call("stats_json", self._handle, buffer, len(buffer), ctypes.byref(size))
                report: dict[str, Any] = json.loads(buffer.value)
                return report
            except Error:
                if size.value <= len(buffer):
                    raise

    def reset_peaks(self) -> None:
        """Set the peaks of stats to the current values."""
        call("reset_peaks", self._handle)

    def snapshot(self, path: Union[str, os.PathLike[str]]) -> None:
        """Write a .pickle for pytorch.org/memory_viz, or the traced calls as .csv or .json."""
        call("snapshot", self._handle, os.fsencode(path))

    def sleep(self, keep: Union[bool, Tags] = True, tags: Optional[Tags] = None) -> None:
        """Give the memory back and keep the addresses; with keep, contents go to host memory. If keep or tags names tags, only
        the memory that serves only them sleeps. Registrations of memory with NCCL and for RDMA must be undone first."""
        sleep_all([self], keep, tags)

    def wake(self, tags: Optional[Tags] = None) -> None:
        """Map memory at the same addresses again, all or that of tags, with the contents that were kept."""
        wake_all([self], tags)

    def send(self, address: int, socket: Socket) -> None:
        """Send a block to another process over a connected Unix socket; the pool must be shareable."""
        call("send", self._handle, address, socket.fileno())


def sleep_all(pools: list[Pool], keep: Union[bool, Tags], tags: Optional[Tags], empty: Iterable[str] = ()) -> None:
    """Do Pool.sleep for several pools. If one cannot sleep as a whole, none does that was awake. Tags in empty may have no
    memory."""
    if tags is None and isinstance(keep, int):
        slept: list[Pool] = []
        try:
            for p in pools:
                awake = not p._asleep()
                call("sleep", p._handle, int(keep))
                if awake:
                    slept.append(p)
        except Error:
            wake_all(slept, None)
            raise
        return
    names = _names(tags or ())
    kept = _names(keep) if not isinstance(keep, int) else names if keep else []
    first = [*kept, *(t for t in names if t not in kept)]  # if the host has no memory to keep contents, none are lost
    for p, t in _with_memory(pools, first, empty):
        call("tag_sleep", p._handle, t.encode(), int(t in kept))


def wake_all(pools: list[Pool], tags: Optional[Tags], empty: Iterable[str] = ()) -> None:
    """Do Pool.wake for several pools. Tags in empty may have no memory."""
    if tags is None:
        for p in pools:
            call("wake", p._handle)
        return
    for p, t in _with_memory(pools, _names(tags), empty):
        call("tag_wake", p._handle, t.encode())


def _names(tags: Tags) -> list[str]:
    return [tags] if isinstance(tags, str) else list(tags)


def _with_memory(pools: list[Pool], tags: list[str], empty: Iterable[str]) -> list[tuple[Pool, str]]:
    """Return each tag with each pool that has memory for it."""
    having = [{m["tag"] for m in p.report()["memory_by_tag"] or ()} for p in pools]
    known = set(empty).union(*having)
    for t in tags:
        if t not in known:
            raise Error(INVALID, f"mlpool: there is no tag {t!r}: there are {sorted(known)}")
    return [(p, t) for t in tags for p, has in zip(pools, having) if t in has]


def receive(socket: Socket, device: int = 0) -> tuple[int, int, Callable[[], None]]:
    """Wait for a block of another process's Pool.send, and return its address, its size and a function that unmaps it."""
    address, size = Pointer(), Size()
    call("receive", device, socket.fileno(), ctypes.byref(address), ctypes.byref(size))
    return address.value or 0, size.value, lambda: call("close_received", address)
