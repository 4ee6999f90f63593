# SPDX-FileCopyrightText: 2026 The mlpool authors
# SPDX-License-Identifier: MIT
"""mlpool: a pool of GPU memory for PyTorch, CuPy, RMM and other Python programs.

PyTorch, before the first CUDA call of the process:

    import mlpool
    mlpool.install()

or for a part of a program, as a torch.cuda.MemPool: "with mlpool.pool():". CuPy:

    cupy.cuda.set_allocator(mlpool.cupy_allocator())

RMM: rmm.mr.set_current_device_resource(mlpool.rmm_resource()). JAX offers no way: XLA chooses among
allocators of its own (XLA_PYTHON_CLIENT_ALLOCATOR). Any other program: mlpool.Pool.

Options are those of mlpool_create in mlpool.h, as keywords: mlpool.install(slack=0.1, max_bytes=8 << 30).
libmlpool.so is loaded from this file's folder, or from where the environment variable MLPOOL_LIBRARY says.

After install(), torch.cuda's functions for statistics, limits and snapshots work on the pool. What
PyTorch's interface for other allocators does not offer:

- torch.compile(mode="reduce-overhead") needs checkpoints of the allocator's state, which PyTorch keeps for
  its own allocator alone. torch.cuda.graph and make_graphed_callables work.
- CUDA tensors can be sent to other processes by torch.multiprocessing only with segments="malloc"; see
  mlpool.Pool.send for another way.
- Snapshots have no Python stacks, and calls only with install(trace_events=N). Statistics do not
  distinguish large and small blocks, and count no bytes freed so far.
- What was freed on a torch.cuda.ExternalStream, which others may destroy, serves other streams only after
  empty_cache(), or before a request fails.
- Other GPUs of the process can use tensors as far as install(peers=...) allows; the default is peers="all".
"""

import contextlib
import ctypes
import json
import os
import pickle
import tempfile

__all__ = ["Error", "OutOfMemoryError", "Pool", "cupy_allocator", "empty_cache", "install", "on_out_of_memory", "pool",
           "receive", "rmm_resource", "sleep", "snapshot", "stats", "wake"]

ABI = 2
OUT_OF_MEMORY = 2


class Error(RuntimeError):
    """A call of libmlpool that failed; code is a mlpool_result of mlpool.h."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class OutOfMemoryError(Error, MemoryError):
    """The device, or the limit, has too little memory. The pool works on."""


class _Stats(ctypes.Structure):
    names = ("allocs", "frees", "refused", "driver_calls", "driver_mallocs", "host_waits", "mappings", "stitches",
             "allocated", "peak_allocated", "reserved", "peak_reserved")
    _fields_ = [("size", ctypes.c_size_t), *((name, ctypes.c_int64) for name in names)]


_pointer, _size, _int, _text, _id = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64
_out_of_memory = ctypes.CFUNCTYPE(_int, _pointer, _size, _text)

# The functions of mlpool.h by name, with the types of their arguments.
_functions = {
    "create": (_int, _text, ctypes.POINTER(_pointer)),
    "check_options": (_text,),
    "destroy": (_pointer,),
    "alloc": (_pointer, ctypes.POINTER(_pointer), _size, _pointer, _text),
    "alloc_aligned": (_pointer, ctypes.POINTER(_pointer), _size, _size, _pointer, _text),
    "try_alloc": (_pointer, ctypes.POINTER(_pointer), _size, _pointer, _text),
    "free": (_pointer, _pointer, _pointer),
    "record_stream": (_pointer, _pointer, _pointer),
    "release_stream": (_pointer, _pointer),
    "trim": (_pointer, _size),
    "reserve": (_pointer, _size),
    "set_limit": (_pointer, _size),
    "set_tag_limit": (_pointer, _text, _size),
    "on_out_of_memory": (_pointer, _out_of_memory, _pointer),
    "get_stats": (_pointer, ctypes.POINTER(_Stats)),
    "reset_peaks": (_pointer,),
    "stats_json": (_pointer, _pointer, _size, ctypes.POINTER(_size)),
    "snapshot": (_pointer, _text),
    "sleep": (_pointer, _int),
    "wake": (_pointer,),
    "send": (_pointer, _pointer, _int),
    "receive": (_int, _int, ctypes.POINTER(_pointer), ctypes.POINTER(_size)),
    "close_received": (_pointer,),
    "torch_options": (_text,),
    "torch_pool": (_int, ctypes.POINTER(_pointer)),
    "torch_find": (_int, ctypes.POINTER(_pointer)),
    "torch_limit": (_pointer, _size),
    "torch_external": (_pointer,),
}

_library = None


def _path():
    return os.environ.get("MLPOOL_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmlpool.so")


def _load():
    global _library
    if _library is None:
        try:
            library = ctypes.CDLL(_path())
        except OSError as e:
            raise OSError(f"mlpool: {e}: build it with 'make lib', or set MLPOOL_LIBRARY") from None
        if library.mlpool_abi() != ABI:
            raise OSError(f"mlpool: {_path()} has interface {library.mlpool_abi()}, and mlpool.py has {ABI}: take both from one build")
        for name, types in _functions.items():
            getattr(library, "mlpool_" + name).argtypes = types
        library.mlpool_error.restype = _text
        _library = library
    return _library


def _call(name, *arguments):
    """Call a function of mlpool.h, and raise its error."""
    library = _load()
    code = getattr(library, "mlpool_" + name)(*arguments)
    if code:
        kind = OutOfMemoryError if code == OUT_OF_MEMORY else Error
        raise kind(code, library.mlpool_error().decode(errors="replace"))


def _list(options):
    """Return options as mlpool_create wants them."""
    def text(value):
        if isinstance(value, bool):
            return str(value).lower()
        return ":".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return ",".join(f"{key}={text(value)}" for key, value in options.items()).encode()


class Pool:
    """A pool of a device's memory. Streams are integers, cudaStream_t handles; 0 is the default stream."""

    def __init__(self, device=0, **options):
        self._handle, self._callback = _pointer(), None
        _call("create", device, _list(options), ctypes.byref(self._handle))

    @classmethod
    def _of_torch(cls, device, create=True):
        """Return the pool that PyTorch uses on a device; unless create is set, None if it has used none."""
        self = cls.__new__(cls)
        self._handle, self._callback = _pointer(), None
        _call("torch_pool" if create else "torch_find", device, ctypes.byref(self._handle))
        return self if self._handle else None

    def close(self):
        """Return all memory to the driver. Live blocks are an Error that names their tags."""
        _call("destroy", self._handle)

    def alloc(self, size, stream=0, tag=None, alignment=0):
        """Return the address of size bytes for work on stream."""
        address = _pointer()
        tag = tag.encode() if tag else None
        if alignment:
            _call("alloc_aligned", self._handle, ctypes.byref(address), size, alignment, stream, tag)
        else:
            _call("alloc", self._handle, ctypes.byref(address), size, stream, tag)
        return address.value

    def try_alloc(self, size, stream=0, tag=None):
        """Like alloc, but without waiting or calling the driver; the Error's code is 3 if that is impossible."""
        address = _pointer()
        _call("try_alloc", self._handle, ctypes.byref(address), size, stream, tag.encode() if tag else None)
        return address.value

    def free(self, address, stream=0):
        """Free a block after the work queued on stream so far."""
        _call("free", self._handle, address, stream)

    def record_stream(self, address, stream):
        """Say that work on stream also uses the block."""
        _call("record_stream", self._handle, address, stream)

    def release_stream(self, stream):
        """Give the memory of a stream to all others; with streams_last, to be called before it is destroyed."""
        _call("release_stream", self._handle, stream)

    def trim(self, keep=0):
        """Return unused memory to the driver until keep bytes are reserved."""
        _call("trim", self._handle, keep)

    def reserve(self, size):
        """Reserve memory ahead, so that size bytes are unused."""
        _call("reserve", self._handle, size)

    def set_limit(self, size):
        """Limit the bytes reserved; 0: no limit."""
        _call("set_limit", self._handle, size)

    def set_tag_limit(self, tag, size):
        """Limit the bytes of live blocks with a tag; to be called before the first alloc."""
        _call("set_tag_limit", self._handle, tag.encode(), size)

    def on_out_of_memory(self, function):
        """Call function(size, error) before a request fails; if it returns true, the pool tries again."""
        def call(_, size, error):
            return int(bool(function(size, error.decode(errors="replace"))))

        callback = _out_of_memory(call) if function else _out_of_memory()
        _call("on_out_of_memory", self._handle, callback, None)
        self._callback = callback  # the library does not keep it alive

    def stats(self):
        """Return the counters as a dict; sizes are in bytes."""
        s = _Stats(size=ctypes.sizeof(_Stats))
        _call("get_stats", self._handle, ctypes.byref(s))
        return {name: getattr(s, name) for name in _Stats.names}

    def report(self):
        """Return the counters, also by tag, stream and size."""
        size = _size(1 << 16)
        while True:
            buffer = ctypes.create_string_buffer(size.value)
            try:
                _call("stats_json", self._handle, buffer, len(buffer), ctypes.byref(size))
                return json.loads(buffer.value)
            except Error:
                if size.value <= len(buffer):
                    raise

    def reset_peaks(self):
        """Set the peaks of stats to the current values."""
        _call("reset_peaks", self._handle)

    def snapshot(self, path):
        """Write a .pickle for pytorch.org/memory_viz, or the traced calls as .csv or .json."""
        _call("snapshot", self._handle, os.fsencode(path))

    def sleep(self, keep=True):
        """Give the memory back and keep the addresses; with keep, contents go to host memory."""
        _call("sleep", self._handle, int(keep))

    def wake(self):
        """Map memory at the same addresses again, with the contents that were kept."""
        _call("wake", self._handle)

    def send(self, address, socket):
        """Send a block to another process over a connected Unix socket; the pool must be shareable."""
        _call("send", self._handle, address, socket.fileno())


def receive(socket, device=0):
    """Wait for a block of another process's Pool.send, and return its address, its size and a function that unmaps it."""
    address, size = _pointer(), _size()
    _call("receive", device, socket.fileno(), ctypes.byref(address), ctypes.byref(size))
    return address.value, size.value, lambda: _call("close_received", address)


# PyTorch.

_torch = None  # PyTorch's allocator object, once installed
_kept = []     # objects that C functions use


def install(**options):
    """Make the pool PyTorch's allocator for every device; to be called before the first CUDA call."""
    global _torch
    import torch
    if _torch is not None:
        raise RuntimeError("mlpool: install() was called before")
    if torch.cuda.is_initialized():
        raise RuntimeError("mlpool: PyTorch has used CUDA already: call mlpool.install() before the first CUDA call")
    library = _load()
    if torch.cuda.device_count() > 1 and options.get("segments") != "malloc":
        options = {"peers": "all", **options}  # PyTorch copies between any two
    if "MLPOOL_BUSY_SLACK" not in os.environ:
        options = {"busy_slack": 2, **options}  # PyTorch's host is usually far ahead of its streams
    if "MLPOOL_STREAMS_LAST" not in os.environ:
        options = {"streams_last": True, **options}  # but for those of ExternalStream
    _call("check_options", _list(options))
    _call("torch_options", _list(options))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_path(), "mlpool_torch_alloc", "mlpool_torch_free")
    hooks = allocator.allocator()
    address = lambda f: ctypes.cast(f, _pointer).value
    for hook, function in (("set_record_stream_fn", library.mlpool_torch_record_stream),
                           ("set_reset_fn", library.mlpool_torch_empty_cache),
                           ("set_begin_allocate_to_pool", library.mlpool_torch_begin),
                           ("set_end_allocate_to_pool_fn", library.mlpool_torch_end),
                           ("set_release_pool", library.mlpool_torch_release)):
        getattr(hooks, hook)(address(function))
    limit = ctypes.CFUNCTYPE(None, ctypes.c_double, _int)(_set_fraction)
    hooks.set_memory_fraction_fn(address(limit))
    torch.cuda.memory.change_current_allocator(allocator)
    _kept.extend((allocator, limit))
    _torch = torch
    _patch(torch)


def _set_fraction(fraction, device):
    total = _torch.cuda.mem_get_info(device)[1]
    _call("torch_limit", _pool(device)._handle, 0 if fraction >= 1 else max(int(fraction * total), 1))


_pools = {}


def _pool(device=None, create=True):
    """Return the pool of a device of PyTorch; unless create is set, None if PyTorch has used no memory there."""
    if _torch is None:
        raise RuntimeError("mlpool: call mlpool.install() first")
    index = _torch.cuda._utils._get_device_index(device, optional=True)
    if _pools.get(index) is None:
        _pools[index] = Pool._of_torch(index, create)
    return _pools[index]


def stats(device=None):
    """Return the counters of PyTorch's pool as a dict; sizes are in bytes."""
    return _pool(device).stats()


def report(device=None):
    """Return the counters, also by stream and size."""
    return _pool(device).report()


def snapshot(path, device=None):
    """Write PyTorch's memory to a file; see Pool.snapshot."""
    _pool(device).snapshot(path)


def empty_cache():
    """Return PyTorch's unused memory to the driver."""
    _load().mlpool_torch_empty_cache()


def on_out_of_memory(function, device=None):
    """Call function(size, error) before a request of PyTorch fails; if it returns true, the pool tries again."""
    _pool(device).on_out_of_memory(function)


def sleep(keep=True, device=None):
    """Give PyTorch's memory back to the device, and keep all addresses; no tensor may be used until wake()."""
    _pool(device).sleep(keep)


def wake(device=None):
    """Undo sleep(); CUDA graphs work again."""
    _pool(device).wake()


@contextlib.contextmanager
def pool(device=None, **options):
    """A torch.cuda.MemPool whose segments come from the pool; tensors made within it are PyTorch's in these segments.
    The first call may have options; all share one pool for each device."""
    import torch
    if options:
        if _pools or _kept:
            raise RuntimeError("mlpool: the first call of pool() or install() has chosen the options")
        _call("check_options", _list(options))
        _call("torch_options", _list(options))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_path(), "mlpool_torch_segment", "mlpool_torch_free")
    _load()
    segments = torch.cuda.MemPool(allocator.allocator())
    _kept.append(allocator)
    with torch.cuda.use_mem_pool(segments, device=device):
        yield segments


def _patch(torch):
    """Make PyTorch's functions for statistics ask the pool, since its interface for other allocators has none."""
    c = torch._C

    def nested(device):
        pool = _pool(device, create=False)
        s = pool.stats() if pool else dict.fromkeys(_Stats.names, 0)
        allocated = {"current": s["allocated"], "peak": s["peak_allocated"], "allocated": 0, "freed": 0}
        reserved = {"current": s["reserved"], "peak": s["peak_reserved"], "allocated": 0, "freed": 0}
        blocks = {"current": s["allocs"] - s["frees"], "peak": 0, "allocated": s["allocs"], "freed": s["frees"]}
        none = dict.fromkeys(allocated, 0)

        def parts(everything):
            return {"all": everything, "small_pool": none, "large_pool": none}

        return {
            "allocated_bytes": parts(allocated), "active_bytes": parts(allocated), "requested_bytes": parts(allocated),
            "reserved_bytes": parts(reserved), "inactive_split_bytes": parts(none), "allocation": parts(blocks),
            "active": parts(blocks), "segment": parts(none), "inactive_split": parts(none), "num_alloc_retries": 0,
            "num_ooms": s["refused"], "num_sync_all_streams": s["host_waits"], "num_device_alloc": s["driver_mallocs"],
            "num_device_free": 0, "max_split_size": -1, "oversize_allocations": none, "oversize_segments": none,
        }

    def memory_snapshot(*_):
        devices = range(torch.cuda.device_count())
        merged = {"segments": [], "device_traces": [[] for _ in devices], "allocator_settings": {}, "external_annotations": []}
        for index in devices:
            pool = _pool(index, create=False)
            if pool is None:
                continue
            one = _load_snapshot(pool)
            for segment in one["segments"]:
                segment["device"] = index
            segments, traces = merged["segments"] + one["segments"], merged["device_traces"]
            traces[index] = one["device_traces"][0]
            merged = {**merged, **one, "segments": segments, "device_traces": traces}
        return merged

    def reset_peaks(device):
        pool = _pool(device, create=False)
        if pool:
            pool.reset_peaks()

    def record(enabled=None, *_, **__):
        if enabled:
            raise RuntimeError("mlpool: to record calls, start with mlpool.install(trace_events=N)")

    def note(external):
        """Note the streams that others created, and may destroy."""
        new = external.__new__

        def create(cls, stream_ptr, *arguments, **keywords):
            _call("torch_external", stream_ptr)
            return new(cls, stream_ptr, *arguments, **keywords)

        external.__new__ = create

    if hasattr(torch.cuda, "ExternalStream"):
        note(torch.cuda.ExternalStream)
    c._cuda_memoryStats = nested
    c._cuda_resetPeakMemoryStats = reset_peaks
    c._cuda_resetAccumulatedMemoryStats = lambda device: None
    c._cuda_memorySnapshot = memory_snapshot
    c._cuda_record_memory_history = c._cuda_record_memory_history_legacy = record


def _load_snapshot(p):
    """Return the snapshot of a pool as PyTorch's dict."""
    handle, path = tempfile.mkstemp(suffix=".pickle")
    os.close(handle)
    try:
        p.snapshot(path)
        with open(path, "rb") as f:
            return pickle.load(f)
    finally:
        os.unlink(path)


# CuPy and RMM.


def cupy_allocator(device=None, **options):
    """Return an allocator for cupy.cuda.set_allocator: a pool for each device that CuPy uses."""
    import cupy
    pools, streams = {}, {}

    def malloc(size, index):
        if index not in pools:
            pools[index] = Pool(index, **options)
        stream = cupy.cuda.get_current_stream().ptr
        try:
            address = pools[index].alloc(size, stream, "cupy")
        except OutOfMemoryError as e:
            raise cupy.cuda.memory.OutOfMemoryError(size, pools[index].stats()["allocated"]) from e
        streams[address] = stream
        return address

    def free(address, index):
        pools[index].free(address, streams.pop(address))

    allocator = cupy.cuda.PythonFunctionAllocator(malloc, free)
    _kept.append(allocator)
    return allocator.malloc


def rmm_resource(device=0, **options):
    """Return an rmm.mr.CallbackMemoryResource over a pool of a device."""
    import rmm
    p = Pool(device, **options)

    def handle(stream):
        if hasattr(stream, "__cuda_stream__"):
            return stream.__cuda_stream__()[1]
        return int(stream.value()) if hasattr(stream, "value") else int(stream)

    resource = rmm.mr.CallbackMemoryResource(lambda size, stream=0: p.alloc(size, handle(stream), "rmm"),
                                             lambda address, size, stream=0: p.free(address, handle(stream)))
    _kept.append(p)
    return resource
