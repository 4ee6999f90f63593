"""A task of torch_memory.py, which runs in a process of its own with one of PyTorch's allocators:

    torch_memory_worker.py '{"task": "search", "allocator": "mlpool", "folder": "build", "job": "cnn", ...}'

It prints the answer as a line of JSON, or ends with a line that says what failed."""

import ctypes
import gc
import hashlib
import functools
import json
import os
import random
import statistics
import struct
import sys
import threading
import time

from common import Failed, first_line

MIB = 1 << 20
PAGE = 2 * MIB  # the least that a driver maps
SLACK = 16 * MIB  # by which the memory left may differ from what was asked
SEED = 1
SIZES = [int(512 * 200_000 ** (k / 19)) for k in range(20)]  # 512 B to 100 MB
CALLS = 2000  # of a timing of the host, by each thread
HELD, THREADS = 40, 8
WARM_UP = 2  # timings that do not count
SETTINGS = {"native": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync", "mlpool": "", "plugin": ""}
OURS = ("mlpool", "plugin")


def environment(allocator, gpu):
    """The environment of a task: PyTorch reads its settings when it is imported."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    if SETTINGS[allocator]:  # the old name and the new one
        env |= dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), SETTINGS[allocator])
    return env | {"CUDA_VISIBLE_DEVICES": gpu, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


# ---- a job and its memory


def install(allocator, folder):
    """Makes the pool PyTorch's allocator, if it is to be."""
    if allocator in OURS:
        sys.path.insert(0, folder)
        import mlpool
        import torch

        mlpool.install(plugin=allocator == "plugin")
        if allocator == "mlpool" and torch.cuda.get_allocator_backend() == "pluggable":
            raise Failed("PyTorch's plugin interface serves: python3 -c 'import mlpool; mlpool.install()' says why")


def used(torch):
    """The bytes of the device that are in use."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def deterministic(torch):
    """Makes the losses depend on nothing but the seed."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it takes time
    torch.backends.cuda.enable_cudnn_sdp(False)  # it compiles a plan for each new shape


def run_job(torch, name, steps, each=lambda: None):
    """Runs a job, and returns the milliseconds of each step and a checksum of all losses. each is called after a step.
    PyTorch's peaks are of the steps alone."""
    from torch_memory_jobs import JOBS

    torch.manual_seed(SEED)
    shapes, step = JOBS[name](torch, random.Random(SEED), steps, "cuda")
    torch.cuda.reset_peak_memory_stats()
    ms, losses = [], []
    for shape in shapes:
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step(shape)
        torch.cuda.synchronize()
        ms.append(1e3 * (time.perf_counter() - start))
        losses.append(loss.item())
        each()
    return ms, hashlib.sha256(struct.pack(f"{len(losses)}d", *losses)).hexdigest()[:12]


def measure(torch, job, steps):
    """Returns the times of the steps and a checksum of the losses, and in MiB for each step the peaks reserved and
    allocated, and the device's memory that was in use after it, beyond the CUDA context."""
    torch.cuda.synchronize()  # creates the context
    before = used(torch)
    answer = {"reserved": [], "allocated": [], "device": []}

    def each():
        answer["reserved"].append(torch.cuda.max_memory_reserved() / MIB)
        answer["allocated"].append(torch.cuda.max_memory_allocated() / MIB)
        answer["device"].append((used(torch) - before) / MIB)
        torch.cuda.reset_peak_memory_stats()

    answer["ms"], answer["losses"] = run_job(torch, job, steps, each)
    return answer


def attempt(function, *args):
    """Returns what a function returns, or what failed."""
    try:
        return function(*args)
    except Exception as err:  # PyTorch raises anything
        return {"failed": first_line(err)}


def measure_all(torch, jobs, steps):
    """Measures jobs one after the other. Returns for each what measure does, or what failed."""
    answers = {}
    for job in jobs:
        answers[job] = attempt(measure, torch, job, steps)
        cleared(torch)
    return answers


def first(torch, jobs, steps):
    """Does what measure_all does, but runs each job once before, which loads its kernels, and gives all memory back."""
    answers = {}
    for job in jobs:
        attempt(run_job, torch, job, steps)
        cleared(torch)
        answers |= measure_all(torch, [job], steps)
    return answers


# ---- the allocator alone


def host_cases(torch):
    """Returns functions of a list of sizes. Each makes a tensor of each size, and frees it."""
    new = functools.partial(torch.empty, dtype=torch.uint8, device="cuda")
    draw = random.Random(SEED)
    victims = [draw.randrange(HELD) for _ in range(CALLS)]
    side, streams = torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(THREADS)]

    def pair(sizes):
        for n in sizes:
            new(n)

    def groups(sizes, reverse):
        for i in range(0, len(sizes), len(SIZES)):
            tensors = [new(n) for n in sizes[i : i + len(SIZES)]]
            if reverse:
                tensors.reverse()
            while tensors:
                tensors.pop()

    def at_random(sizes):
        tensors = [new(n) for n in sizes[:HELD]]
        for n, victim in zip(sizes[HELD:], victims):
            tensors.pop(victim)
            tensors.append(new(n))

    def recorded(sizes):
        for n in sizes:
            new(n).record_stream(side)

    def work(stream, sizes):
        with torch.cuda.stream(stream):
            pair(sizes)

    def threads(sizes):
        part = len(sizes) // THREADS
        all_threads = [threading.Thread(target=work, args=(s, sizes[i * part : (i + 1) * part])) for i, s in enumerate(streams)]
        for thread in all_threads:
            thread.start()
        for thread in all_threads:
            thread.join()

    twenty = SIZES * (CALLS // len(SIZES))
    return {"a pair": (pair, twenty),
            "20 held LIFO": (lambda sizes: groups(sizes, False), twenty),
            "20 held FIFO": (lambda sizes: groups(sizes, True), twenty),
            "40 held at random": (at_random, [draw.choice(SIZES) for _ in range(CALLS)]),
            "40 held of odd sizes": (at_random, [draw.randrange(1, 20_000_000) for _ in range(CALLS)]),
            "record_stream": (recorded, twenty),
            "8 threads": (threads, twenty * THREADS)}


def host(torch, repeats):
    """Returns the microseconds of an allocation and its free: those of a tensor less those of one without memory."""

    def us(function, sizes):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function(sizes)
        return 1e6 * (time.perf_counter() - start) / len(sizes)

    answer = {}
    for name, (function, sizes) in host_cases(torch).items():
        beyond = [us(function, sizes) - us(function, [0] * len(sizes)) for _ in range(WARM_UP + repeats)]
        answer[name] = statistics.median(beyond[WARM_UP:])
    return answer


def copies(torch, steps):
    """Returns the milliseconds of steps that copy eight new tensors, whose sizes vary, to another GPU and back."""
    draw, ms = random.Random(SEED), []
    for gpu in (0, 1):
        torch.ones(1, device=f"cuda:{gpu}")
    for _ in range(steps):
        sizes = [draw.randrange(MIB, 64 * MIB) for _ in range(8)]
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        start = time.perf_counter()
        there = [torch.empty(n, dtype=torch.uint8, device="cuda:0").to("cuda:1") for n in sizes]
        back = [tensor.to("cuda:0") for tensor in there]
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        ms.append(1e3 * (time.perf_counter() - start))
        del there, back
    return {"ms": ms}


# ---- a memory limit


def cleared(torch):
    """Returns unused memory to the device, and the bytes that the allocator still holds."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def settled(torch):
    """Returns the bytes that are free once a process that ended no longer gives memory back."""
    free = torch.cuda.mem_get_info()[0]
    for _ in range(40):
        time.sleep(0.05)
        before, free = free, torch.cuda.mem_get_info()[0]
        if free == before:
            break
    return free


def take_all_but(torch, bytes_left):
    """Takes the device's memory, from outside PyTorch, except bytes_left. Returns its address."""
    ballast = (settled(torch) - bytes_left) // PAGE * PAGE
    if ballast <= 0:
        raise Failed(f"the device has not {bytes_left // MIB} MiB to leave")
    pointer = ctypes.c_uint64()
    status = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(ballast))
    if status:
        raise Failed(f"cuMemAlloc of {ballast // MIB} MiB: error {status}")
    left = torch.cuda.mem_get_info()[0]
    if abs(left - bytes_left) > SLACK:
        raise Failed(f"{left // MIB} MiB of the device are left, not {bytes_left // MIB}")
    return pointer


def give_back(pointer):
    """Gives the memory of take_all_but back."""
    status = ctypes.CDLL("libcuda.so.1").cuMemFree_v2(pointer)
    if status:
        raise Failed(f"cuMemFree: error {status}")


def out_of_memory(error):
    """Reports whether an error says that memory ran out: PyTorch's, CUDA's, cuBLAS's or cuDNN's."""
    text = str(error).lower()
    return any(words in text for words in ("out of memory", "alloc_failed", "memory allocation"))


def finishes(torch, job, steps, limit):
    """Reports whether a job finishes if its allocator can have limit bytes of memory."""
    pointer = take_all_but(torch, max(limit - cleared(torch), 0))
    try:
        run_job(torch, job, steps)
        return True
    except Exception as err:  # PyTorch raises more than one type
        if not out_of_memory(err):
            raise
        return False
    finally:
        give_back(pointer)


def smallest(finishes, low, high, tries):
    """Returns a limit with which a job does not finish, and the least one found with which it finished each of tries
    times. They differ by 1 % or a page. low is a limit that may fail, and high one that may suffice."""

    def precision(limit):
        return max(limit // 100, PAGE)

    passed = {}
    while low > PAGE and finishes(low):
        passed[low], high, low = 1, low, low * 9 // 10
    near = low + low // 16  # most allocators need little more
    while high - low > precision(high):
        guess = near if low < near < high else (low + high) // 2
        if finishes(guess):
            high, passed[guess] = guess, 1
        else:
            low = guess
    while passed.get(high, 0) < tries:
        if finishes(high):
            passed[high] = passed.get(high, 0) + 1
        else:
            low, high = high, high + precision(high)
    return low, high


def search(torch, job, steps, tries):
    """Runs a job without a limit, so that all kernels are loaded, and then with limits. Returns bytes: one with which the
    job fails, the smallest with which it finishes, and the peaks without a limit."""
    torch.cuda.synchronize()
    run_job(torch, job, steps)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    held, trials = cleared(torch), 0

    def tried(limit):
        nonlocal trials
        trials += 1
        return finishes(torch, job, steps, limit)

    fails, suffices = smallest(tried, allocated * 98 // 100, reserved + reserved // 50 + 2 * PAGE, tries)
    return {"fails": fails, "suffices": suffices, "trials": trials, "allocated": allocated, "reserved": reserved, "held": held}


# ---- start-up


def start_up(torch, allocator, folder):
    """Returns the milliseconds from before the first CUDA call to after the first allocation, with install()."""
    start = time.perf_counter()
    install(allocator, folder)
    torch.cuda.init()
    torch.empty(MIB, dtype=torch.uint8, device="cuda")
    return {"ms": 1e3 * (time.perf_counter() - start)}


# ---- the task


def answer_to(task, allocator, folder, jobs=(), **request):
    import torch

    if task == "startup":
        answer = {task: start_up(torch, allocator, folder)}
    else:
        install(allocator, folder)
        deterministic(torch)
        if task in ("measure", "first"):
            answer = {"measure": measure_all, "first": first}[task](torch, jobs, **request)
        elif task == "search":
            answer = search(torch, **request)
        else:
            answer = {task: {"host": host, "copies": copies}[task](torch, **request)}
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "answer": answer}


def main(request):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what libraries print out of the answer
    try:
        print(json.dumps(answer_to(**json.loads(request))), file=answers, flush=True)
    except Failed as err:
        sys.exit(str(err))
    except Exception as err:  # PyTorch raises anything
        sys.exit(first_line(err))
    os._exit(0)  # the allocator outlives the interpreter


if __name__ == "__main__":
    main(sys.argv[1])
