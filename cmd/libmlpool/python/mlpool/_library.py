# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""Loads libmlpool.so, and calls the functions of mlpool.h."""

from __future__ import annotations

import ctypes
import os
from typing import Any

ABI = 2
INVALID, OUT_OF_MEMORY, ASLEEP = 1, 2, 6
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Error(RuntimeError):
    """A call of libmlpool that failed; code is a mlpool_result of mlpool.h."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> Any:
        return type(self), (self.code, str(self))


class OutOfMemoryError(Error, MemoryError):
    """The device, or the limit, has too little memory. The pool works on."""


class Stats(ctypes.Structure):
    names = ("allocs", "frees", "refused", "driver_calls", "driver_mallocs", "host_waits", "mappings", "stitches",
             "allocated", "peak_allocated", "reserved", "peak_reserved", "driver_frees")
    _fields_ = [("size", ctypes.c_size_t), *((name, ctypes.c_int64) for name in names)]


Pointer, Size, Int, Text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
OutOfMemoryCallback = ctypes.CFUNCTYPE(Int, Pointer, Size, Text)


class Region(ctypes.Structure):
    """The first fields of a mlpool_region."""
    _fields_ = [("size", Size), ("kind", Int)]


FREE = 2  # a kind
Visitor = ctypes.CFUNCTYPE(None, Pointer, ctypes.POINTER(Region))

# The functions of mlpool.h by name, with the types of their arguments.
_functions: dict[str, tuple[Any, ...]] = {
    "create": (Int, Text, ctypes.POINTER(Pointer)),
    "check_options": (Text,),
    "destroy": (Pointer,),
    "alloc": (Pointer, ctypes.POINTER(Pointer), Size, Pointer, Text),
    "alloc_aligned": (Pointer, ctypes.POINTER(Pointer), Size, Size, Pointer, Text),
    "try_alloc": (Pointer, ctypes.POINTER(Pointer), Size, Pointer, Text),
    "free": (Pointer, Pointer, Pointer),
    "record_stream": (Pointer, Pointer, Pointer),
    "release_stream": (Pointer, Pointer),
    "trim": (Pointer, Size),
    "reserve": (Pointer, Size),
    "set_limit": (Pointer, Size),
    "set_tag_limit": (Pointer, Text, Size),
    "on_out_of_memory": (Pointer, OutOfMemoryCallback, Pointer),
    "visit": (Pointer, Visitor, Pointer),
    "get_stats": (Pointer, ctypes.POINTER(Stats)),
    "reset_peaks": (Pointer,),
    "stats_json": (Pointer, Pointer, Size, ctypes.POINTER(Size)),
    "snapshot": (Pointer, Text),
    "sleep": (Pointer, Int),
    "wake": (Pointer,),
    "tag_alloc": (Pointer, ctypes.POINTER(Pointer), Size, Pointer, Text),
    "tag_sleep": (Pointer, Text, Int),
    "tag_wake": (Pointer, Text),
    "send": (Pointer, Pointer, Int),
    "receive": (Int, Int, ctypes.POINTER(Pointer), ctypes.POINTER(Size)),
    "close_received": (Pointer,),
    "torch_options": (Text,),
    "torch_pool": (Int, ctypes.POINTER(Pointer)),
    "torch_find": (Int, ctypes.POINTER(Pointer)),
    "torch_limit": (Pointer, Size),
    "torch_external": (Pointer,),
    "torch_tag": (Text,),
}

_library: Any = None
_texts: dict[str, bytes] = {}  # by tag


def path() -> str:
    """Return the file of the library: MLPOOL_LIBRARY, or the one in this package's folder."""
    return os.environ.get("MLPOOL_LIBRARY") or os.path.join(FOLDER, "libmlpool.so")


def get_include() -> str:
    """Return the folder of mlpool.h, mlpool.hpp and mlpool_rmm.hpp, for programs in C and C++."""
    return os.path.join(FOLDER, "include")


def load() -> Any:
    """Return the library, with the types of its functions."""
    global _library
    if _library is None:
        try:
            library = ctypes.CDLL(path())
        except OSError as e:
            raise OSError(f"mlpool: {e}: build it with 'make lib', or set MLPOOL_LIBRARY") from None
        one_build = f"take it and {FOLDER} from one build"
        try:
            if library.mlpool_abi() != ABI:
                raise OSError(f"mlpool: {path()} has interface {library.mlpool_abi()}, not {ABI}: {one_build}")
            for name, types in _functions.items():
                getattr(library, "mlpool_" + name).argtypes = types
        except AttributeError as e:
            raise OSError(f"mlpool: {e}: {one_build}") from None
        library.mlpool_error.restype = Text
        _library = library
    return _library


def call(name: str, *arguments: Any) -> None:
    """Call a function of mlpool.h, and raise its error."""
    library = load()
    code = getattr(library, "mlpool_" + name)(*arguments)
    if code:
        kind = OutOfMemoryError if code == OUT_OF_MEMORY else Error
        raise kind(code, library.mlpool_error().decode(errors="replace"))


def c_text(text: str) -> bytes:
    """Return a tag as a C string, at one address for equal tags: the library compares addresses, also after the call."""
    return _texts.get(text) or _texts.setdefault(text, text.encode())


def option_list(options: dict[str, Any]) -> bytes:
    """Return options as mlpool_create wants them."""
    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return ":".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return ",".join(f"{key}={text(value)}" for key, value in options.items()).encode()
