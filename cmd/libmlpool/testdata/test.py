"""Tests the package mlpool on the emulated driver: the class Pool, and install() with a PyTorch that is not there."""
import concurrent.futures
import contextlib
import ctypes
import io
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

import mlpool
from mlpool import _class, _library, _torch

MIB = 1 << 20


class TestPool(unittest.TestCase):
    def test_blocks(self):
        pool = mlpool.Pool(slack=0.5)
        a = pool.alloc(3 * MIB, tag="a")
        ctypes.memset(a, 7, 3 * MIB)
        self.assertEqual(pool.alloc(100, alignment=4096) % 4096, 0)
        with self.assertRaisesRegex(mlpool.OutOfMemoryError, "huge") as raised:
            pool.alloc(1 << 60, tag="huge")
        self.assertEqual(pickle.loads(pickle.dumps(raised.exception)).code, 2)
        with self.assertRaises(MemoryError):
            pool.alloc(1 << 60)
        pool.record_stream(a, 0)
        pool.free(a)
        with self.assertRaisesRegex(mlpool.Error, "not of this"):
            pool.free(a)
        self.assertEqual(pool.stats()["frees"], 1)
        self.assertEqual(pool.report()["allocs"], 2)
        with self.assertRaisesRegex(mlpool.Error, "not freed"):
            pool.close()
        with self.assertRaisesRegex(mlpool.Error, "closed"):
            pool.alloc(1)

    def test_labels(self):
        with mlpool.Pool() as pool:
            for tag in ("one", "two"):
                a = pool.alloc(1000, tag=tag)
                self.assertEqual([t["tag"] for t in pool.report()["by_tag"]], [tag])
                pool.free(a)
                pool.free(pool.alloc(1000, tag=tag))

    def test_with(self):
        with mlpool.Pool() as pool:
            pool.free(pool.alloc(1))
        with self.assertRaisesRegex(mlpool.Error, "closed"):
            pool.stats()
        with self.assertRaisesRegex(mlpool.Error, "not freed"), mlpool.Pool() as pool:
            pool.alloc(1)
        with self.assertRaisesRegex(KeyError, "mine"), mlpool.Pool() as pool:
            pool.alloc(1)
            raise KeyError("mine")

    def test_options(self):
        mlpool.Pool(slack=0.015625, max_bytes=64 * MIB, keep_mapped=False).close()

    def test_out_of_memory(self):
        pool = mlpool.Pool(max_bytes=16 * MIB)
        cache = [pool.alloc(12 * MIB)]

        def free(size, error):
            self.assertIn("limit", error)
            if not cache:
                return False
            pool.free(cache.pop())
            return True

        pool.on_out_of_memory(free)
        a = pool.alloc(8 * MIB)
        with self.assertRaises(mlpool.OutOfMemoryError):
            pool.alloc(12 * MIB)
        pool.on_out_of_memory(None)
        pool.free(a)
        pool.close()

    def test_sleep(self):
        pool = mlpool.Pool(segments="virtual")
        a = pool.alloc(5 * MIB)
        ctypes.memset(a, 42, 5 * MIB)
        pool.sleep()
        self.assertEqual(pool.stats()["reserved"], 0)
        pool.wake()
        self.assertEqual(ctypes.string_at(a, 5 * MIB), b"\x2a" * (5 * MIB))
        pool.free(a)
        pool.close()

    def test_tags(self):
        with mlpool.Pool(segments="virtual") as pool:
            weights, cache = (pool.alloc(4 * MIB, tag=t, separate=True) for t in ("weights", "cache"))
            label = pool.alloc(MIB, tag="cache")
            ctypes.memset(weights, 42, 4 * MIB)
            ctypes.memset(label, 7, MIB)
            asleep = lambda: [m["tag"] for m in pool.report()["memory_by_tag"] if m["reserved"] == 0]
            with self.assertRaisesRegex(mlpool.Error, r"^mlpool: there is no tag 'x': there are \['cache', 'weights'\]$"):
                pool.sleep(tags="x", keep=["weights"])
            self.assertEqual(asleep(), [])
            pool.sleep(tags=["cache"], keep=["weights"])
            self.assertEqual((sorted(asleep()), ctypes.string_at(label, MIB)), (["cache", "weights"], b"\x07" * MIB))
            with self.assertRaisesRegex(mlpool.Error, '^mlpool: tag "cache": .* asleep'):
                pool.alloc(1, tag="cache", separate=True)
            pool.free(label)
            pool.wake("weights")
            self.assertEqual((asleep(), ctypes.string_at(weights, 4 * MIB)), (["cache"], b"\x2a" * (4 * MIB)))
            pool.wake()
            pool.free(cache)
            for sleep in (lambda: pool.sleep(tags=["weights", "cache"]), lambda: pool.sleep(keep="weights"), pool.sleep):
                sleep()
                self.assertIn("weights", asleep())
                pool.wake()
                self.assertEqual(ctypes.string_at(weights, 4 * MIB), b"\x2a" * (4 * MIB))
            pool.sleep(tags=["cache"], keep=False)
            self.assertEqual(asleep(), ["cache"])
            with self.assertRaisesRegex(ValueError, "alignment"):
                pool.alloc(1, tag="weights", separate=True, alignment=4096)
            with self.assertRaisesRegex(mlpool.Error, "tag is empty"):
                pool.alloc(1, separate=True)
            pool.free(weights)

    def test_sleep_of_several(self):
        asleep, awake, malloc = mlpool.Pool(), mlpool.Pool(), mlpool.Pool(segments="malloc")
        asleep.sleep()
        with self.assertRaisesRegex(mlpool.Error, "malloc segments"):
            mlpool._pool.sleep_all([asleep, awake, malloc], True, None)
        self.assertEqual([p._asleep() for p in (asleep, awake, malloc)], [True, False, False])

    def test_send(self):
        pool = mlpool.Pool(segments="virtual", shareable=True)
        a = pool.alloc(MIB)
        ctypes.memset(a, 3, MIB)
        here, there = socket.socketpair()
        with here, there:
            pool.send(a, here)
            address, size, close = mlpool.receive(there)
        self.assertEqual(ctypes.string_at(address, size), b"\x03" * MIB)
        close()
        pool.free(a)
        pool.close()


class TestPackage(unittest.TestCase):
    """Needs no driver."""

    def test_files(self):
        folder = os.path.dirname(mlpool.__file__)
        with open(os.path.join(folder, "pkgconfig", "mlpool.pc")) as f:
            self.assertIn(f"Version: {mlpool.__version__}\n", f.read())
        for name in ("mlpool.h", "mlpool.hpp", "mlpool_rmm.hpp"):
            self.assertTrue(os.path.isfile(os.path.join(mlpool.get_include(), name)))
        for name in mlpool.__all__:
            self.assertTrue(getattr(mlpool, name).__doc__, name)

    def test_no_gpu(self):
        code = "import mlpool\ntry: mlpool.Pool()\nexcept mlpool.Error as e: print(e.code in (8, 9), e)"
        r = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": "", "CUDA_VISIBLE_DEVICES": ""})
        self.assertRegex(r.stdout, "^True .*CUDA.*\n$")

    def test_wrong_device(self):
        with self.assertRaisesRegex(TypeError, "integer"):
            mlpool.Pool("cuda:0")

    def test_wrong_library(self):
        r = subprocess.run([sys.executable, "-B", "-c", "import mlpool; mlpool.Pool()"], capture_output=True, text=True,
                           env={**os.environ, "LD_PRELOAD": "", "MLPOOL_LIBRARY": "libc.so.6"})
        self.assertRegex(r.stderr, "\nOSError: mlpool: .*libc.so.6: undefined symbol: mlpool_abi: take it and .* from one build\n$")

    def test_options(self):
        for options, text in (({"slck": 1}, "slack"), ({"slack": 3}, "slack"), ({"shareable": "x"}, "shareable"), ({"peers": ["x"]}, "peers")):
            with self.subTest(options), self.assertRaisesRegex(mlpool.Error, text):
                mlpool.Pool(**options)


SCRIPT = """
import os, pickle, sys
import beside
class Here: pass
class Annotated: x: int
assert Annotated.__annotations__ == {"x": int}
assert type(pickle.loads(pickle.dumps(Here()))) is Here and __name__ == "__main__" and sys.modules["__main__"].Here is Here
print(os.path.basename(__file__), sys.argv[1:], beside.installed)
"""


class TestMain(unittest.TestCase):
    """Runs python -m mlpool with a PyTorch that is not there. Needs no driver."""

    def test_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("script.py", SCRIPT), ("beside.py", "from torch import installed"), ("exits.py", "import sys; sys.exit(5)"),
                               ("torch.py", "installed = False"), ("fake/torch.py", "installed = True"),
                               ("fake/sitecustomize.py", "import mlpool; mlpool.install = lambda: __import__('torch')")):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as f:
                    f.write(text)
            here, fake = os.path.dirname(os.path.dirname(mlpool.__file__)), os.path.join(folder, "fake")
            for words, path, status, out in (
                    ([os.path.join(folder, "script.py"), "-x", "1"], [fake], 0, "script.py ['-x', '1'] True"),
                    (["-m", "script", "-x", "1"], [fake, folder], 0, "script.py ['-x', '1'] True"),
                    ([os.path.join(folder, "exits.py")], [fake], 5, ""),
                    (["none.py"], [], 1, "mlpool: there is no file none.py"),
                    ([os.path.join(folder, "script.py")], [], 1, "mlpool: No module named 'torch'"),
                    ([], [], 2, "    python -m mlpool SCRIPT [ARGUMENT...]\n    python -m mlpool -m MODULE [ARGUMENT...]"),
                    (["-h"], [], 0, "    python -m mlpool SCRIPT [ARGUMENT...]\n    python -m mlpool -m MODULE [ARGUMENT...]")):
                with self.subTest(words):
                    r = subprocess.run([sys.executable, "-B", "-m", "mlpool", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, here])})
                    self.assertEqual((r.stdout.rstrip(), r.returncode), (out, status))


class Hooks:
    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: self.__dict__.__setitem__(name, address)


class MemPool:
    """A torch.cuda.MemPool, which notes when it is used."""

    def __init__(self, allocator):
        self.allocator, self.used = allocator, []

    @contextlib.contextmanager
    def use(self, device):
        self.used.append(("begin", device))
        yield
        self.used.append(("end", device))


class TestTorch(unittest.TestCase):
    def test_class(self):
        """The class is compiled once for a PyTorch, or an error says what is missing."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        at = lambda *names: os.path.join(folder, *names)
        torch = types.SimpleNamespace(__file__=at("torch", "__init__.py"), __version__="9.9", compiled_with_cxx11_abi=lambda: True,
                                      version=types.SimpleNamespace(git_version="x", cuda="13.0"))
        self.enterContext(unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": at("cache"), "CUDA_HOME": at("cuda"), "CXX": at("c++")}))

        def compiler(line):
            with open(at("c++"), "w") as f:
                f.write(f'#!/bin/sh\necho call >>{at("calls")}\n{line}\n')
            os.chmod(at("c++"), 0o755)

        def fails(text):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(_class.Unavailable, text):
                _class.compiled(torch)
            self.assertEqual([f for f in os.listdir(at("cache", "mlpool")) if f.endswith(".so")], [])

        if not os.path.exists("/usr/local/cuda/include/crt/host_config.h"):
            fails("host_config.h.*install")
        os.makedirs(at("cuda", "include", "crt"))
        for name in ("cuda_runtime_api.h", "crt/host_config.h"):
            open(at("cuda", "include", name), "w").close()
        fails("there is no .*c\\+\\+: install")
        compiler('echo "in a.h"; echo "a.h:1: error: no member" >&2; exit 1')
        fails("a.h:1: error: no member$")
        fails("a.h:1: error: no member$")
        with open(at("calls")) as f:
            self.assertEqual(len(f.readlines()), 2)  # two standards, once
        for name in os.listdir(at("cache", "mlpool")):
            os.unlink(at("cache", "mlpool", name))
        os.unlink(at("calls"))
        compiler('while [ "$1" != -o ]; do shift; done; echo made >"$2"')
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            made = [_class.compiled(torch) for _ in range(2)]
        self.assertEqual((made[0], err.getvalue()), (made[1], "mlpool: compiling for PyTorch 9.9, once\n"))
        with open(made[0]) as f, open(at("calls")) as calls:
            self.assertEqual((f.read(), calls.read()), ("made\n", "call\n"))
        os.unlink(made[0] + ".lock")
        self.assertEqual((_class.compiled(torch), os.path.exists(made[0] + ".lock")), (made[0], False))  # a folder may be read-only
        torch.version.git_version = "y"
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertNotEqual(_class.compiled(torch), made[0])

    def check_tags(self, alloc, free):
        """Tags are a thread's, and have memory on every device."""
        blocks = []

        @mlpool.tag("weights")
        def load():
            blocks.extend((alloc(4 * MIB, device, None), 4 * MIB, device) for device in (0, 1))

        def here():
            blocks.append((alloc(MIB, 0, None), MIB, 0))

        load()
        with mlpool.tag("empty"), mlpool.tag("cache"):
            with mlpool.tag("weights"):
                load()
            here()
            thread = threading.Thread(target=here)
            thread.start()
            thread.join()
        here()
        for address, size, _ in blocks:
            ctypes.memset(address, 42, size)
        memory = lambda device: {m["tag"]: m["reserved"] > 0 for m in mlpool.report(device)["memory_by_tag"]}
        self.assertEqual((memory(0), memory(1)), ({"weights": True, "cache": True}, {"weights": True}))
        with self.assertRaisesRegex(mlpool.Error, r"no tag 'y': there are \['cache', 'empty', 'weights'\]"):
            mlpool.sleep(tags=["empty", "y"])
        mlpool.sleep(tags=["cache", "empty"], keep=["weights"])
        self.assertEqual((memory(0), memory(1)), ({"weights": False, "cache": False}, {"weights": False}))
        with mlpool.tag("cache"):
            self.assertIsNone(alloc(MIB, 0, None))
        here()
        mlpool.wake(tags="weights", device=1)
        self.assertEqual((memory(0), memory(1)), ({"weights": False, "cache": False}, {"weights": True}))
        mlpool.wake(tags=["weights", "empty"])
        self.assertEqual(memory(0), {"weights": True, "cache": False})
        for device in (None, 1):
            mlpool.sleep(device=device)
            self.assertEqual([mlpool.stats(i)["reserved"] > 0 for i in (0, 1)], [device == 1, False])
            mlpool.wake()
        cache = blocks.pop(4)
        free(cache[0], MIB, 0, None)
        for i, (address, size, device) in enumerate(blocks):
            if i != len(blocks) - 1:
                self.assertEqual(ctypes.string_at(address, size), b"\x2a" * size)
            free(address, size, device, None)
        with self.assertRaises(ValueError):
            mlpool.tag("")

        def generate():
            with mlpool.tag("weights"):
                yield

        generator = generate()
        next(generator)
        with mlpool.tag("cache"):
            self.assertEqual(list(generator), [])  # leaves the outer tag
            a = alloc(MIB, 0, None)
            self.assertEqual([t["tag"] for t in mlpool.report()["by_tag"]], ["cache"])
            free(a, MIB, 0, None)
            with concurrent.futures.ThreadPoolExecutor() as threads, self.assertRaisesRegex(RuntimeError, "another thread"):
                threads.submit(mlpool.tag("cache").__exit__).result()

    def test_install(self):
        hooks = Hooks()
        torch = types.ModuleType("torch")
        torch._C = types.SimpleNamespace()
        torch.version, torch.__version__ = types.SimpleNamespace(cuda=None), "9.9"

        class ExternalStream:
            def __new__(cls, stream_ptr, device=None):
                return super().__new__(cls)

        torch.cuda = types.SimpleNamespace(
            ExternalStream=ExternalStream, is_initialized=lambda: False, device_count=lambda: 2, current_device=lambda: 0, MemPool=MemPool,
            use_mem_pool=lambda pool, device: pool.use(device), mem_get_info=lambda device: (1 << 30, 1 << 30),
            _utils=types.SimpleNamespace(_get_device_index=lambda device, optional: device or 0),
            memory=types.SimpleNamespace(CUDAPluggableAllocator=lambda *_: types.SimpleNamespace(allocator=lambda: hooks),
                                         change_current_allocator=lambda allocator: None))
        sys.modules["torch"] = torch
        with self.assertRaisesRegex(RuntimeError, "install"):
            mlpool.stats()
        for f in (mlpool.sleep, mlpool.wake, mlpool.tag("x").__enter__):
            with self.assertRaisesRegex(RuntimeError, "install"):
                f()
        with self.assertRaisesRegex(RuntimeError, "9.9 is built without CUDA"):
            mlpool.install()
        torch.version.cuda = "13.0"
        with self.assertRaisesRegex(mlpool.Error, "slack"):
            mlpool.install(slck=1)
        mlpool.install(plugin=True, trace_events=100, max_bytes=48 * MIB)
        with self.assertRaisesRegex(RuntimeError, "before"):
            mlpool.install()
        library = _library.load()
        alloc, free = library.mlpool_torch_alloc, library.mlpool_torch_free
        alloc.restype, alloc.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        free.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self.assertIsNone(alloc(0, 0, None))
        # Where PyTorch has used no memory, questions create no pool.
        self.assertEqual(torch._C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"], 0)
        torch._C._cuda_resetPeakMemoryStats(0)
        self.assertEqual(torch._C._cuda_memorySnapshot(None)["segments"], [])
        self.assertIsNone(_torch.find_pool(0))
        torch._C._cuda_record_memory_history(None)
        torch._C._cuda_record_memory_history_legacy(False, False)
        with self.assertRaisesRegex(RuntimeError, "trace_events"):
            torch._C._cuda_record_memory_history("all")
        a = alloc(3 * MIB, 0, None)
        library.mlpool_torch_record_stream(ctypes.c_void_p(a), None)
        self.assertEqual(torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["current"], 3 * MIB)
        snapshot = torch._C._cuda_memorySnapshot(None)
        self.assertEqual([e["action"] for e in snapshot["device_traces"][0]], ["alloc"])
        self.assertEqual(snapshot["segments"][0]["device"], 0)
        there = alloc(MIB, 1, None)  # by C++ alone
        snapshot = torch._C._cuda_memorySnapshot(None)
        self.assertEqual({s["device"] for s in snapshot["segments"]}, {0, 1})
        self.assertEqual([len(events) for events in snapshot["device_traces"]], [1, 1])
        free(there, MIB, 1, None)
        set_fraction = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(hooks.set_memory_fraction_fn)
        for fraction, fits in ((0.01, 4), (1.0, 40)):  # of a limit of 48 MiB
            set_fraction(fraction, 0)
            block = alloc(fits * MIB, 0, None)
            self.assertIsNotNone(block)
            free(block, fits * MIB, 0, None)
            self.assertIsNone(alloc(64 * MIB, 0, None))  # where there is no PyTorch, nothing can be thrown
        torch.cuda.ExternalStream(12345)
        self.assertIs(torch.cuda.MemPool(mlpool.torch_allocator().allocator()).allocator, hooks)
        with self.assertRaisesRegex(RuntimeError, "chosen the options"):
            mlpool.pool(slack=1)
        part, other = mlpool.pool(), mlpool.pool(device=1)
        with part as used, part, other as there:
            self.assertEqual(used.used, [("begin", 0)])
        with part:
            pass
        self.assertEqual((used.used, there.used), ([("begin", 0), ("end", 0)] * 2, [("begin", 1), ("end", 1)]))
        free(a, 3 * MIB, 0, None)
        self.check_tags(alloc, free)
        mlpool.empty_cache()
        self.assertEqual(mlpool.stats()["reserved"], 0)
        torch._C._cuda_resetPeakMemoryStats(0)
        self.assertEqual(mlpool.stats()["peak_reserved"], 0)


class CupyPool:
    """A cupy.cuda.MemoryPool that holds a free and a live block."""
    limit = 0

    def used_bytes(self):
        return 512

    def total_bytes(self):
        return 1024

    def n_free_blocks(self):
        return 1

    def free_all_blocks(self, stream):
        self.freed = stream

    def set_limit(self, size=None, fraction=None):
        if size is not None and fraction is not None:
            raise ValueError("both")
        self.limit = size if fraction is None else int(fraction * 64 * MIB)

    def get_limit(self):
        return self.limit


class TestCupy(unittest.TestCase):
    """Runs cupy_allocator with a CuPy that is not there."""

    def setUp(self):
        self.stream, self.device = 0, 0

        class OutOfMemory(MemoryError):
            def __init__(self, size, total, limit=0):
                super().__init__(f"{size} {total} {limit}")

        class Allocator:
            def __init__(self, alloc, free):
                self.alloc, self.free = alloc, free

            def malloc(_, size):
                return _.alloc(size, self.device)

        cupy = self.cupy = types.ModuleType("cupy")
        cupy._default_memory_pool = CupyPool()
        cupy.get_default_memory_pool = lambda: cupy._default_memory_pool
        cupy.cuda = types.SimpleNamespace(
            PythonFunctionAllocator=Allocator, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemory),
            runtime=types.SimpleNamespace(getDevice=lambda: self.device), get_current_stream=lambda: types.SimpleNamespace(ptr=self.stream))
        self.enterContext(unittest.mock.patch.dict(sys.modules, {"cupy": cupy}))

    def answers(self):
        pool = self.cupy.get_default_memory_pool()
        return pool.used_bytes() - 512, pool.total_bytes() - 1024, pool.free_bytes() - 512, pool.n_free_blocks() - 1

    def test_statistics(self):
        before = self.cupy.get_default_memory_pool()
        malloc = mlpool.cupy_allocator()
        pool = self.cupy.get_default_memory_pool()
        free = pool._allocator.free
        self.assertEqual(self.answers(), (0, 0, 0, 0))
        self.assertEqual(pool._pools, {})  # questions create none
        a, b = malloc(3 * MIB), pool.malloc(MIB)
        free(a, 0)
        used, total, unused, blocks = self.answers()
        self.assertEqual((used, unused), (MIB, total - MIB))
        self.assertGreaterEqual(blocks, 1)
        self.device = 1
        self.assertEqual(self.answers(), (0, 0, 0, 0))
        self.device = 0
        free(b, 0)
        pool.free_all_blocks(stream="a stream")
        self.assertEqual((self.answers(), before.freed), ((0, 0, 0, 0), "a stream"))
        free(malloc(MIB), 0)
        pool.free_all_free()
        self.assertEqual(self.answers(), (0, 0, 0, 0))

    def test_limits(self):
        malloc = mlpool.cupy_allocator(max_bytes=16 * MIB)
        pool = self.cupy.get_default_memory_pool()
        self.assertEqual(pool.get_limit(), 16 * MIB)
        with self.assertRaisesRegex(MemoryError, f"{32 * MIB} 0 {16 * MIB}"):
            malloc(32 * MIB)
        with self.assertRaisesRegex(ValueError, "both"):
            pool.set_limit(1, 1)
        for limits, fits in (({"size": 40 * MIB}, 32), ({"fraction": 0.25}, 8), ({"size": 0}, 32)):
            pool.set_limit(**limits)
            pool._allocator.free(malloc(fits * MIB), 0)
            pool.free_all_blocks()
        pool.set_limit(fraction=0.25)
        mlpool.cupy_allocator()  # the limit that CuPy's pool had
        self.assertEqual(self.cupy.get_default_memory_pool().get_limit(), 16 * MIB)
        with self.assertRaisesRegex(MemoryError, f"{32 * MIB} 0 {16 * MIB}"):
            self.cupy.get_default_memory_pool().malloc(32 * MIB)

    def test_limit_of_options(self):
        malloc = mlpool.cupy_allocator(max_fraction=0.0001)
        with self.assertRaises(MemoryError):
            malloc(32 * MIB)

    def test_threads(self):
        """A block of a thread's default stream is freed in that thread on this stream, and in others on the default one."""
        malloc = mlpool.cupy_allocator()
        pool = self.cupy.get_default_memory_pool()
        self.stream = 2
        blocks = [malloc(MIB) for _ in range(2)]
        real, freed = pool._pools[0].free, []
        pool._pools[0].free = lambda address, stream: (freed.append(stream), real(address, stream))
        pool._allocator.free(blocks[0], 0)
        other = threading.Thread(target=lambda: pool._allocator.free(blocks[1], 0))
        other.start()
        other.join()
        self.assertEqual(freed, [2, 0])
        self.assertEqual(self.answers()[0], 0)


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=0)
    bad = len(program.result.failures) + len(program.result.errors)
    print(f"{program.result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad > 0)
