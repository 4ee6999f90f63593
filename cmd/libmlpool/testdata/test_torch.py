"""Tests the package mlpool in PyTorch and CuPy on a GPU. Each test runs in a process of its own, since a process can choose PyTorch's allocator once.

usage: PYTHONPATH=build python3 test_torch.py [TEST...]
"""
import signal
import subprocess
import sys
import textwrap
import threading
import time

MIB = 1 << 20
tests = []


def test(f):
    tests.append(f)
    return f


def install(**options):
    import mlpool
    import torch
    mlpool.install(**options)
    return mlpool, torch


def train(torch, steps=8, between=lambda step: None):
    """Train a small model with shapes that change, and return its losses."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for step in range(steps):
        x = torch.randn(100 + 50 * (step % 5), 256, device="cuda")
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        between(step)
    return losses


@test
def same_losses():
    import torch
    before = train(torch)
    out = subprocess.run([sys.executable, __file__, "--losses"], capture_output=True, text=True, check=True).stdout
    assert out.strip() == repr(before), (out, before)


@test
def out_of_memory():
    mlpool, torch = install()
    a = torch.ones(10, device="cuda")
    try:
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as e:
        assert "Tried to allocate 16384.00 GiB. GPU 0 has a total capacity of" in str(e), e
        assert "allocator: out of memory: 17592186044416 bytes" in str(e), e
    else:
        raise AssertionError("no error")
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        torch.empty(torch.cuda.mem_get_info()[1] // 10, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as e:
        assert "limit" in str(e), e
    else:
        raise AssertionError("no limit")
    torch.cuda.set_per_process_memory_fraction(1.0)
    b = torch.empty(torch.cuda.mem_get_info()[1] // 10, dtype=torch.uint8, device="cuda")
    assert a.sum().item() == 10 and b.numel() > 0 and torch.cuda.memory_stats()["num_ooms"] == 2


@test
def callback():
    mlpool, torch = install()
    cache = [torch.empty(torch.cuda.mem_get_info()[1] // 2, dtype=torch.uint8, device="cuda")]
    calls = []

    def free(size, error):
        calls.append(error)
        had = bool(cache)
        cache.clear()
        return had

    mlpool.on_out_of_memory(free)
    a = torch.empty(int(torch.cuda.mem_get_info()[1] * 0.6), dtype=torch.uint8, device="cuda")
    assert len(calls) == 1 and "out of memory" in calls[0] and a.numel() > 0


@test
def statistics():
    mlpool, torch = install(trace_events=1000)
    assert torch.cuda.memory_allocated() == 0
    a = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 3 * MIB and torch.cuda.memory_reserved() >= 3 * MIB
    del a
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 3 * MIB
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    assert torch.cuda.memory_reserved() == 0 and stats["num_device_free"] == stats["num_device_alloc"] > 0
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0 and torch.cuda.max_memory_reserved() == 0
    assert "Allocated memory" in torch.cuda.memory_summary()
    b = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    import os
    import pickle
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as f:
            snapshot = pickle.load(f)
        from torch.cuda._memory_viz import trace_plot
        assert "html" in trace_plot(snapshot)
    assert sum(s["allocated_size"] for s in snapshot["segments"]) == MIB == b.numel()
    assert torch.cuda.memory_snapshot()[0]["device"] == 0
    assert mlpool.report()["by_tag"][0]["tag"] == "torch"


@test
def external_stream():
    import ctypes
    mlpool, torch = install()
    torch.ones(1, device="cuda")  # creates the context
    create = ctypes.CDLL("libcuda.so.1").cuStreamCreate
    stream = ctypes.c_void_p()
    assert create(ctypes.byref(stream), 1) == 0
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
        a = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
        assert a.sum().item() == 32 * MIB
        del a
    reserved = torch.cuda.memory_reserved()
    b = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
    both = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert reserved < both > torch.cuda.memory_reserved(), (reserved, both, torch.cuda.memory_reserved())
    assert b.sum().item() == 32 * MIB


@test
def record_stream():
    mlpool, torch = install()
    side = torch.cuda.Stream()
    for _ in range(20):
        a = torch.full((MIB,), 7, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            total = a.sum(dtype=torch.int64)
        a.record_stream(side)
        del a
        b = torch.full((MIB,), 1, device="cuda")  # must not get the memory of a
        torch.cuda.synchronize()
        assert total.item() == 7 * MIB and b[0].item() == 1


@test
def graphs():
    mlpool, torch = install()
    x = torch.ones(1000, 1000, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # warms up, as PyTorch recommends
        (x @ x).relu().sum()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # which are PyTorch's memory
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * 2
        for _ in range(5):
            y = (y @ x).relu() * 1e-3
            other = torch.cuda.Stream()
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                z = y + 1
                y.record_stream(other)
            torch.cuda.current_stream().wait_stream(other)
            z.record_stream(torch.cuda.current_stream())
            y = z - 1
        result = y.sum()
    expected = []
    for k in (1.0, 0.5, 0.25):
        x.fill_(k)
        g.replay()
        got = result.item()
        w = x * 2
        for _ in range(5):
            w = ((w @ x).relu() * 1e-3 + 1) - 1
        assert got == w.sum().item(), (got, w.sum().item())
        junk = [torch.full((1000, 1000), float("nan"), device="cuda") for _ in range(20)]  # no memory of the graph
        del junk
        g.replay()
        assert result.item() == got
        expected.append(got)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=g.pool()):
        shared = (x + 1).sum()
    second.replay()
    assert shared.item() == 1.25e6
    mlpool.sleep()
    mlpool.wake()
    x.fill_(1.0)
    g.replay()
    assert result.item() == expected[0]
    del w, z, y, result, shared
    g.reset()
    second.reset()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + 2 * MIB, mlpool.report()  # a page for the state of random numbers


@test
def capture_beside_work():
    import threading
    mlpool, torch = install()
    stop, errors = threading.Event(), []

    def work():
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                size = 1
                while not stop.is_set():
                    size = size * 7 % 50
                    torch.empty(size * MIB + 1, dtype=torch.uint8, device="cuda")
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    x = torch.ones(100, 100, device="cuda")
    (x @ x).sum().item()  # cuBLAS cannot start in a capture
    try:
        for mode in ("thread_local", "relaxed", "global") * 5:
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, capture_error_mode=mode):
                y = (x @ x) + torch.ones(5 * MIB, device="cuda")[0]
            g.replay()
            assert y[0, 0].item() == 101
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not errors, errors


@test
def capture_beside_cache():
    """Memory is cached on the stream of a capture, and other streams have used what is freed meanwhile and afterwards."""
    mlpool, torch = install()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    x, dead = torch.ones(MIB, device="cuda"), torch.ones(MIB, device="cuda")
    dead.record_stream(other)
    with torch.cuda.stream(side):
        torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=side):
        y = x + 1
        del dead
        assert sum(s["active_size"] - s["allocated_size"] for s in torch.cuda.memory_snapshot()) == 4 * MIB
        torch.cuda.empty_cache()
    g.replay()
    assert y.sum().item() == 2 * MIB
    state = torch._C._cuda_getCheckpointState(0, g.pool())
    with torch.cuda.stream(other):
        y.add_(1)
    y.record_stream(other)
    del y
    torch.cuda.synchronize()
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])


@test
def sleeping():
    mlpool, torch = install()
    ballast = torch.arange(256 * MIB, dtype=torch.int32, device="cuda")
    times = []

    def nap(step):
        if step != 3:
            return
        free = torch.cuda.mem_get_info()[0]
        start = time.perf_counter()
        mlpool.sleep()
        asleep = time.perf_counter()
        back = torch.cuda.mem_get_info()[0] - free
        assert back >= 1 << 30, back
        try:
            torch.empty(1, device="cuda")
            raise AssertionError("allocated while asleep")
        except RuntimeError as e:
            assert "asleep" in str(e).lower(), e
        woken = time.perf_counter()
        mlpool.wake()
        times.extend((back / 2**30, 1e3 * (asleep - start), 1e3 * (time.perf_counter() - woken)))

    losses = train(torch, between=nap)
    assert losses == train(torch)
    assert ballast[-1].item() == 256 * MIB - 1 and ballast.sum(dtype=torch.int64).item() == (256 * MIB - 1) * 256 * MIB // 2
    print(f"sleep: {times[0]:.2f} GiB given back, {times[1]:.1f} ms to sleep, {times[2]:.1f} ms to wake")


def tags(**options):
    """A graph reads weights that slept and came back; the cache sleeps and others work on."""
    mlpool, torch = install(**options)
    x = torch.ones(64, 1024, device="cuda")
    torch.mm(x, x.t())  # cuBLAS allocates
    with mlpool.tag("weights"):
        w = torch.full((1024, 64 * 1024), 2.0, device="cuda")
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = x @ w
    with mlpool.tag("cache"):
        cache = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda")
    g.replay()
    want, address, free = y[0, 0].item(), w.data_ptr(), torch.cuda.mem_get_info()[0]
    assert all(m["reserved"] >= 256 * MIB for m in mlpool.report()["memory_by_tag"])
    mlpool.sleep(tags=["cache"], keep=["weights"])
    assert torch.cuda.mem_get_info()[0] - free >= 512 * MIB
    assert y[0, 0].item() == want == 2048 and (x + 1).sum().item() == 2 * x.numel()
    try:
        with mlpool.tag("cache"):
            torch.empty(1, device="cuda")
        raise AssertionError("allocated while asleep")
    except RuntimeError as e:
        assert 'tag "cache"' in str(e) and "asleep" in str(e), e
    mlpool.wake(tags=["weights"])
    y.zero_()
    g.replay()
    assert y[0, 0].item() == want and w.data_ptr() == address
    mlpool.wake(tags=["cache"])
    assert cache.zero_().sum().item() == 0
    reserved = torch.cuda.memory_reserved()
    del cache
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - 256 * MIB


@test
def tags_sleep():
    tags()


@test
def tags_sleep_plugin():
    tags(plugin=True)


class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        import torch
        return torch.full((100,), float(i))


@test
def data_loaders():
    mlpool, torch = install()
    for context in ("fork", "spawn"):
        held = torch.ones(MIB, device="cuda")  # workers inherit it
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context=context, pin_memory=True)
        total = sum(batch.cuda(non_blocking=True).sum().item() for batch in loader)
        assert total == 100 * 64 * 63 / 2 and held.sum().item() == MIB


@test
def fork_before_cuda():
    mlpool, torch = install()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    total = sum(batch.cuda().sum().item() for batch in loader)
    assert total == 100 * 64 * 63 / 2


@test
def fork_uses_cuda():
    """A child of fork uses CUDA, which its parent has not: on PyTorch's own allocator."""
    import os
    mlpool, torch = install()
    child = os.fork()
    if child == 0:
        right = torch.ones(MIB, device="cuda").sum().item() == MIB
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0 and torch.ones(MIB, device="cuda").sum().item() == MIB


def add_one(tensors, answers):
    """Add 1 to a tensor of another process."""
    mlpool, torch = install()
    whole, part = tensors.get()
    whole += 1
    torch.cuda.synchronize()
    answers.put(part.data_ptr() - whole.data_ptr())
    tensors.get()
    del whole, part
    answers.put("closed")
    tensors.get()


@test
def processes():
    mlpool, torch = install()
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    child = context.Process(target=add_one, args=(tensors, answers))
    child.start()
    a = torch.ones(64 * MIB, device="cuda")
    tensors.put((a, a[100:]))
    assert answers.get(timeout=100) == 400  # one mapping of both
    assert a.sum(dtype=torch.float64).item() == 2 * 64 * MIB
    try:
        mlpool.sleep()
        raise AssertionError("no error")
    except mlpool.Error as e:
        assert "another process maps the block" in str(e), e
    tensors.put(None)
    assert answers.get(timeout=100) == "closed"
    mlpool.sleep()
    mlpool.wake()
    assert a.sum(dtype=torch.float64).item() == 2 * 64 * MIB
    tensors.put(None)
    child.join()
    del a
    torch.cuda.ipc_collect()
    assert child.exitcode == 0 and torch.cuda.memory_allocated() == 0


@test
def process_without_pool():
    import pickle
    mlpool, torch = install()
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(torch.ones(10, device="cuda"))
    code = "import pickle, sys; rebuild, arguments = pickle.load(sys.stdin.buffer); rebuild(*arguments)"
    r = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((rebuild, arguments)), capture_output=True)
    assert r.returncode and b"call mlpool.install() here too" in r.stderr, r.stderr
    arguments[4]._release_ipc_counter(arguments[11], arguments[12], device=arguments[6])
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == 0


@test
def interrupt():
    code = "import test_torch; m, torch = test_torch.install(); a = torch.ones(10, device='cuda'); print('ready', flush=True)\nwhile True: a = a + 1"
    import os
    env = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])}
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert p.stdout.readline() == "ready\n"
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    try:
        _, err = p.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        p.send_signal(signal.SIGABRT)  # which prints where its threads are
        raise AssertionError(f"it goes on: {p.communicate()[1]}") from None
    assert p.returncode in (-signal.SIGINT, 130, 1) and "KeyboardInterrupt" in err and "goroutine" not in err, (p.returncode, err)


@test
def wrong_use():
    import mlpool
    import torch
    for options, text in (({"slck": 1}, "slack"), ({"slack": 3}, "slack")):
        try:
            mlpool.install(**options)
            raise AssertionError("no error")
        except mlpool.Error as e:
            assert text in str(e), e
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    try:
        mlpool.install()
        raise AssertionError("no error")
    except RuntimeError as e:
        assert "before the first CUDA call" in str(e), e


@test
def threads():
    import threading
    mlpool, torch = install()
    errors = []

    def work(k):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(300):
                    n = (i * 37 + k) % 2000 + 1
                    a = torch.full((n, 100), float(k), device="cuda", requires_grad=True)
                    (a * 2).sum().backward()
                    if i % 50 == 0:
                        assert a.grad.sum().item() == 2 * n * 100
        except Exception as e:
            errors.append(e)

    all_threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()
    assert not errors, errors


@test
def memory_pool():
    import mlpool
    import torch
    outside = torch.ones(10, device="cuda")
    part = mlpool.pool()
    with part as pool, part:
        a = torch.ones(3 * MIB, device="cuda")
    with part:
        torch.ones(MIB, device="cuda")
    own = torch.cuda.MemPool(mlpool.torch_allocator().allocator())
    with torch.cuda.use_mem_pool(own):
        b = torch.ones(MIB, device="cuda")
    assert b.sum().item() == MIB
    assert a.sum().item() == 3 * MIB and outside.sum().item() == 10
    assert len(pool.snapshot()) > 0
    del a, b


@test
def two_devices():
    mlpool, torch = install()
    if torch.cuda.device_count() < 2:
        return "needs two GPUs"
    a = torch.arange(MIB, device="cuda:0")
    b = a.to("cuda:1")
    c = (b * 2).to("cuda:0")
    assert torch.equal(c, a * 2)
    for device in (0, 1):
        assert torch.cuda.memory_allocated(device) > 0 and mlpool.stats(device)["allocs"] > 0
    net = torch.nn.parallel.replicate(torch.nn.Linear(10, 10).to("cuda:0"), [0, 1])
    assert net[1](torch.ones(1, 10, device="cuda:1")).device.index == 1


@test
def plugin():
    mlpool, torch = install(plugin=True)
    assert torch.cuda.get_allocator_backend() == "pluggable"
    train(torch)
    torch.cuda.memory._record_memory_history(None)
    try:
        torch.cuda.memory._record_memory_history()
        raise AssertionError("no error")
    except RuntimeError as e:
        assert "trace_events" in str(e), e
    assert torch.cuda.memory_allocated() > 0


@test
def compiled():
    """CUDA graphs of torch.compile take checkpoints of their memory."""
    mlpool, torch = install()
    assert torch.cuda.get_allocator_backend() == "native"

    def f(x, w):
        y = (x @ w).relu()
        return (y @ w).softmax(-1), y.sum()

    fast = torch.compile(f, mode="reduce-overhead")
    w = torch.randn(256, 256, device="cuda", requires_grad=True)
    kept = []
    for step in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.full((64 if step % 3 else 128, 256), 0.01 * (step + 1), device="cuda")
        got, total = fast(x, w)
        want, sum_wanted = f(x, w)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(total, sum_wanted)
        got.sum().backward()
        kept = kept[-2:] + [w.grad.clone()]
        w.grad = None
    assert torch.isfinite(kept[-1]).all()


@test
def private_pool():
    mlpool, torch = install()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")
    b = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")
    segments = pool.snapshot()
    assert sum(s["allocated_size"] for s in segments) == 3 * MIB, segments
    assert all(tuple(s["segment_pool_id"]) == tuple(pool.id) for s in segments)
    assert b.sum(dtype=torch.int64).item() == 3 * MIB
    del a
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    del pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved


@test
def pool_in_child():
    """A child of fork ends with the tensors and the MemPool of its parent."""
    import os
    mlpool, torch = install()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = torch.ones(MIB, device="cuda")
    child = os.fork()
    if child == 0:
        del a, pool
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and a.sum().item() == MIB


@test
def pool_beside_python():
    """The end of a MemPool waits for the device, which waits for a thread of Python."""
    import ctypes
    mlpool, torch = install()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = torch.ones(MIB, device="cuda")
    done = threading.Event()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: done.wait())
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(stream, call, None) == 0
    threading.Timer(0.2, done.set).start()
    del a, pool  # holds Python's lock
    torch.cuda.synchronize()


@test
def own_allocator():
    """A MemPool with an allocator of its own gets whole pages, which its snapshot and the statistics have."""
    mlpool, torch = install()
    own = mlpool.torch_allocator()
    pool = torch.cuda.MemPool(own.allocator())
    with torch.cuda.use_mem_pool(pool):
        blocks = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert [(s["total_size"], s["allocated_size"]) for s in pool.snapshot()] == [(2 * MIB, 2 * MIB), (2 * MIB, MIB)], pool.snapshot()
    assert torch.cuda.memory_reserved() >= 4 * MIB and torch.cuda.memory_stats()["segment.all.current"] == 2
    addresses = [b.data_ptr() for b in blocks]
    blocks.clear()
    with torch.cuda.use_mem_pool(pool):
        again = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() in addresses and len(pool.snapshot()) == 2
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        for _ in range(10):
            used = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
            used.record_stream(side)
            del used
            torch.cuda.synchronize()
    assert len(pool.snapshot()) == 3, pool.snapshot()
    del pool
    again.fill_(1)
    del again
    assert torch.cuda.memory_stats()["segment.all.current"] == 0


@test
def settings():
    mlpool, torch = install()
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
    a = torch.empty(21 * MIB + 5, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 24 * MIB
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] == a.numel()
    torch.cuda.caching_allocator_enable(False)
    b = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 24 * MIB and b.data_ptr()


@test
def history():
    mlpool, torch = install()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)
    a = torch.ones(5 * MIB, dtype=torch.uint8, device="cuda")
    b = torch.ones(100, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    del a
    torch.cuda.empty_cache()
    snapshot = torch.cuda.memory._snapshot()
    trace = snapshot["device_traces"][0]
    allocs = [e for e in trace if e["action"] == "alloc" and e["size"] == 5 * MIB]
    assert allocs and any("test_torch" in f["filename"] for f in allocs[0]["frames"]), trace
    assert trace[-1]["action"] == "segment_unmap" and any(e["action"] == "segment_map" for e in trace), trace[-5:]
    live = [x for s in snapshot["segments"] for x in s["blocks"] if x["state"] == "active_allocated"]
    assert [e["size"] for e in trace if e["action"] == "alloc"][-1] == 100
    assert [x["requested_size"] for x in live] == [100] and live[0]["frames"], live
    torch.cuda.memory._record_memory_history(None)
    assert not torch.cuda.memory._snapshot()["device_traces"][0] and b.numel() == 100 and side is not None


@test
def observer():
    mlpool, torch = install()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *call: seen.append(call))
    try:
        torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    assert len(seen) == 1 and seen[0][0] == 0 and seen[0][1] == 1 << 44 and seen[0][2] == torch.cuda.mem_get_info()[1], seen


@test
def counts():
    """The statistics are the sums over the snapshot."""
    import random
    mlpool, torch = install()
    random.seed(1)
    held, side = [], torch.cuda.Stream()
    for step in range(300):
        held.append(torch.empty(random.choice((100, 3000, 1 << 20, 3 << 20)) + random.randrange(1000), dtype=torch.uint8, device="cuda"))
        if len(held) > 40:
            x = held.pop(random.randrange(len(held)))
            if step % 7 == 0:
                x.record_stream(side)
            del x
        if step % 50:
            continue
        sums = dict.fromkeys(f"{n}_bytes.{k}.current" for n in ("allocated", "active", "reserved", "requested") for k in ("all", "small_pool", "large_pool"))
        sums = dict.fromkeys(sums, 0)
        for s in torch.cuda.memory_snapshot():
            for name, size in (("allocated", "allocated_size"), ("active", "active_size"), ("reserved", "total_size"), ("requested", "requested_size")):
                for kind in ("all", s["segment_type"] + "_pool"):
                    sums[f"{name}_bytes.{kind}.current"] += s[size]
        stats = torch.cuda.memory_stats()
        assert sums == {k: stats[k] for k in sums}, (sums, {k: stats[k] for k in sums})
        assert stats["allocation.all.current"] == len(held)
        for k in sums:
            k = k.removesuffix("current")
            assert stats[k + "allocated"] - stats[k + "freed"] == stats[k + "current"] <= stats[k + "peak"], k
    x = torch.empty(MIB, device="cuda")
    with torch.cuda.stream(side):
        torch.cuda._sleep(1 << 30)
    x.record_stream(side)
    del x
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["active.all.current"] > stats["allocation.all.current"] and stats["active.all.freed"] >= 0 <= stats["active_bytes.all.freed"]
    torch.cuda.synchronize()
    del held[0]
    torch.empty(MIB, device="cuda")
    assert torch.cuda.memory_stats()["active.all.freed"] > 1
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() > 0
        assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()


@test
def cupy():
    import cupy
    import mlpool
    older = cupy.ones(1000)
    cupy.cuda.set_allocator(mlpool.cupy_allocator())
    pool = cupy.get_default_memory_pool()
    used = pool.used_bytes()
    assert used >= older.nbytes
    a = cupy.arange(MIB, dtype=cupy.int64)
    assert pool.used_bytes() - used == a.nbytes
    assert int(a.sum()) == MIB * (MIB - 1) // 2
    assert pool.total_bytes() - pool.used_bytes() == pool.free_bytes() > 0 and pool.n_free_blocks() > 0
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        b = cupy.ones(1000) * 2
        assert float(b.sum()) == 2000
    del stream  # before its block
    del b
    with cupy.cuda.Stream.ptds:
        c = [cupy.ones(MIB)]
        c.append(c[0] * 2)
    threads = [threading.Thread(target=c.pop) for _ in range(2)]
    for t in threads:
        t.start()
        t.join()
    pool.set_limit(size=64 * MIB)
    try:
        cupy.empty(128 * MIB, dtype=cupy.int8)
        raise AssertionError("no error")
    except cupy.cuda.memory.OutOfMemoryError as e:
        assert f"limit set to: {64 * MIB:,}" in str(e), e
    pool.set_limit(fraction=1)
    assert pool.get_limit() == cupy.cuda.runtime.memGetInfo()[1]
    del a
    pool.free_all_blocks()
    assert pool.total_bytes() == pool.used_bytes() == used


def main(names):
    if names == ["--losses"]:
        _, torch = install()
        print(repr(train(torch)))
        return 0
    if len(names) == 2 and names[0] == "--one":
        print(next(f for f in tests if f.__name__ == names[1])() or "", end="")
        return 0
    subprocess.run([sys.executable, "-c", "import mlpool; mlpool.install()"], check=True)  # compiles, if nothing is compiled yet
    failed = 0
    chosen = [f for f in tests if not names or f.__name__ in names]
    for f in chosen:
        try:
            r = subprocess.run([sys.executable, "-W", "ignore", __file__, "--one", f.__name__], capture_output=True, text=True, timeout=120)
            ok, out = r.returncode == 0 and not r.stderr.strip(), f"{r.stdout}{r.stderr}".strip()
        except subprocess.TimeoutExpired as e:
            ok, out = False, f"timed out: {e.stdout!r} {e.stderr!r}"
        failed += not ok
        print(f"{'ok    ' if ok else 'FAILED'} {f.__name__} {textwrap.indent(out, '    ') if not ok else out}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
