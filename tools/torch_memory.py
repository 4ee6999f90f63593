#!/usr/bin/env python3
"""Runs PyTorch jobs whose shapes change in each step on four allocators, and measures their memory and time:
PyTorch's own (native), the same with expandable_segments:True (expandable), backend:cudaMallocAsync (async) and the
pool (mlpool), from build/mlpool; also the pool through PyTorch's plugin interface (plugin), if it is named.

    tools/torch_memory.py --csv assets/torch_memory.csv
    tools/torch_memory.py --parts limits --jobs transformer,cnn --gpus 0,1

Needs torch and a GPU. Jobs with models of transformers, peft and torchvision are left out where these are not installed.
The parts:

    memory   peaks of memory from the third step on, the time of a step and a checksum of all losses, for each job. The
             allocators take turns; in a round a process runs all jobs and gives unused memory back between them
    first    the time and the peaks of the first two steps of each job, once its kernels are loaded and all memory is
             given back
    limits   the least memory with which each job finishes, by bisection. The process takes the rest of the device's
             memory itself with cuMemAlloc, after a run without a limit that loads every kernel
    startup  from before the first CUDA call to the first allocation, each in a new process
    host     the host's time for an allocation and its free, less that for a tensor without memory
    copies   the time of copies of new tensors between two GPUs

All allocators see the same random shapes and numbers. Two values are ranked only if the 95 % interval of their ratio
excludes 1, which takes six rounds. Peaks are of torch.cuda.max_memory_reserved and max_memory_allocated. device_mib is
the memory of the device that is in use after a step, less that of the CUDA context. losses_equal is 1 if all losses
equal those of the first allocator, bit for bit.

Jobs are spread over the GPUs; only one process at a time uses a GPU. A job is written after each round, and limits when
all are known, in place of what the CSV had of it. The memory after each step of the transformer goes to a second CSV, NAME_steps.csv.
"""

import argparse
import datetime
import importlib.util
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common
from common import Failed, choices
from torch_memory_jobs import JOBS, NEEDS
from torch_memory_table import Results, limit_rows, rows_of, table_of, write_steps
from torch_memory_worker import MIB, OURS, SETTINGS, environment

SHOWN = "transformer"  # the job of the second CSV
WARM = 10  # steps whose time does not count
FIRST = 2  # steps that allocate for the first time, which the part first has
TRIES = 3  # with a limit, all of which must finish


def fail(message):
    sys.exit(f"torch_memory: {message}")


def say(message):
    print(f"torch_memory: {message}", file=sys.stderr, flush=True)


# ---- tasks, each in a process of its own


def worker_command(request):
    return [sys.executable, str(Path(__file__).with_name("torch_memory_worker.py")), json.dumps(request)]


def ask(args, gpu, allocator, **request):
    """Returns the answer of a task on a GPU."""
    request |= {"allocator": allocator, "folder": str(args.mlpool.resolve())}
    try:
        said = json.loads(common.call(worker_command(request), [environment(allocator, gpu)], args.timeout))
    except (Failed, ValueError) as err:
        raise Failed(f"{allocator}: {err}") from err
    args.versions = f"PyTorch {said['torch']}, CUDA {said['cuda']}"
    return said["answer"]


def spread(gpus, tasks):
    """Runs tasks, functions of a GPU, with one at a time on each. Returns their results, None for those that failed."""
    free = queue.SimpleQueue()
    for gpu in gpus:
        free.put(gpu)

    def run(task):
        gpu = free.get()
        try:
            return task(gpu)
        except Failed as err:
            if not common.stopped.is_set():
                say(err)
            return None
        finally:
            free.put(gpu)

    with common.threads(len(gpus)) as threads:
        return list(threads.map(run, tasks))


# ---- parts: each puts its rows into the results, and returns whether all of it was measured


def rounds_of(args, task, jobs, gpu, count, about, save, **request):
    """Asks for the answers to a task by job and allocator, one for each round, and saves them after each; about describes
    one. An allocator that fails at a job is left out. In a round a process runs all jobs, since it takes seconds to load a
    job's kernels. Reports whether all allocators have answers of all jobs."""
    answers = {job: {allocator: [] for allocator in args.allocators} for job in jobs}
    for turn in range(count):
        k = turn % len(args.allocators)
        for allocator in args.allocators[k:] + args.allocators[:k]:
            left = [job for job in jobs if allocator in answers[job]]
            try:
                got = ask(args, gpu, allocator, task=task, jobs=left, **request) if left else {}
            except Failed as err:
                if common.stopped.is_set():
                    raise
                got = dict.fromkeys(left, {"failed": str(err).removeprefix(f"{allocator}: ")})
            for job, a in got.items():
                if "failed" in a:
                    say(f"{job} on {allocator}: {a['failed']}")
                    del answers[job][allocator]
                    continue
                answers[job][allocator].append(a)
                say(f"{job} on {allocator}, round {turn + 1} of {count}: {about(a)}")
        if any(answers.values()):
            save({job: of_job for job, of_job in answers.items() if of_job})
    return all(len(of_job) == len(args.allocators) for of_job in answers.values())


def of_jobs(args, task, about, save, steps):
    """Does what rounds_of does for all jobs, spread over the GPUs. It saves what is known of all of them."""
    known, one = {}, threading.Lock()

    def save_group(answers):
        with one:
            known.update(answers)
            save({job: known[job] for job in args.jobs if job in known})

    groups = [group for i in range(len(args.gpus)) if (group := args.jobs[i :: len(args.gpus)])]
    return all(spread(args.gpus, [lambda gpu, group=group: rounds_of(args, task, group, gpu, args.rounds, about, save_group, steps=steps)
                                  for group in groups]))


def figures_of(answers, measures):
    """allocator -> measure -> the value of each round; answers are by allocator, measures are functions of an answer."""
    return {allocator: {name: [of(a) for a in rounds] for name, of in measures.items()} for allocator, rounds in answers.items()}


def memory(args, results):
    def about(a):
        return (f"{max(a['reserved'][FIRST:]):.0f} MiB reserved, {max(a['allocated'][FIRST:]):.0f} allocated, "
                f"{statistics.median(a['ms'][WARM:]):.2f} ms a step, losses {a['losses']}")

    def save(answers):
        rows = []
        for job, of_job in answers.items():
            figures = figures_of(of_job, {
                "reserved_mib": lambda a: max(a["reserved"][FIRST:]),
                "allocated_mib": lambda a: max(a["allocated"][FIRST:]),
                "device_mib": lambda a: max(a["device"][FIRST:]),
                "step_ms": lambda a: statistics.median(a["ms"][WARM:]),
            })
            losses = next(iter(of_job.values()))[0]["losses"]
            for allocator, rounds in of_job.items():
                figures[allocator]["losses_equal"] = [int(all(a["losses"] == losses for a in rounds))]
            rows += rows_of("memory", job, figures)
            if job == SHOWN:
                path = args.csv.with_name(args.csv.stem + "_steps.csv")
                write_steps(path, [origin(args)], {allocator: rounds[0] for allocator, rounds in of_job.items()})
        results.replace("memory", [origin(args), f"memory is that of steps {FIRST + 1} and later"], rows)

    return of_jobs(args, "measure", about, save, WARM + args.steps)


def first(args, results):
    measures = {f"step_{i + 1}_ms": lambda a, i=i: a["ms"][i] for i in range(FIRST)} | {
        "steps_ms": lambda a: sum(a["ms"]),
        "reserved_mib": lambda a: max(a["reserved"]),
        "allocated_mib": lambda a: max(a["allocated"]),
    }

    def about(a):
        return f"{' + '.join(f'{ms:.1f}' for ms in a['ms'])} ms, {max(a['reserved']):.0f} MiB reserved, {max(a['allocated']):.0f} allocated"

    def save(answers):
        rows = [row for job, of_job in answers.items() for row in rows_of("first", job, figures_of(of_job, measures))]
        results.replace("first", [origin(args)], rows)

    return of_jobs(args, "first", about, save, FIRST)


def limit_of(args, job, allocator, gpu):
    """Returns the MiB with which a job fails, and those with which it finishes."""
    a = ask(args, gpu, allocator, task="search", job=job, steps=args.limit_steps, tries=TRIES)
    say(f"{job} on {allocator}: finishes with {a['suffices'] / MIB:.0f} MiB, not with {a['fails'] / MIB:.0f}; {a['trials']} trials; "
        f"without a limit it allocates {a['allocated'] / MIB:.0f} and reserves {a['reserved'] / MIB:.0f}, "
        f"of which {a['held'] / MIB:.0f} cannot be given back")
    return a["fails"] / MIB, a["suffices"] / MIB


def limits(args, results):
    pairs = [(job, allocator) for job in args.jobs for allocator in args.allocators]
    found = dict(zip(pairs, spread(args.gpus, [lambda gpu, p=pair: limit_of(args, *p, gpu) for pair in pairs])))
    rows = []
    for job in args.jobs:
        rows += limit_rows(job, {a: found[job, a] for a in args.allocators if found[job, a]}, TRIES)
    if rows:
        results.replace("limits", [origin(args), f"a job has {args.limit_steps} steps"], rows)
    return all(found.values())


def startup(args, results):
    def save(answers):
        rows = rows_of("startup", "first allocation", figures_of(answers["startup"], {"start_ms": lambda a: a["ms"]}))
        results.replace("startup", [origin(args)], rows)

    return rounds_of(args, "startup", ["startup"], args.gpus[0], args.startups, lambda a: f"{a['ms']:.0f} ms", save)


def host(args, results):
    def about(a):
        return ", ".join(f"{name} {us:.2f}" for name, us in a.items()) + " µs"

    def save(answers):
        cases = next(iter(answers["host"].values()))[0]
        rows = [row for case in cases for row in rows_of("host", case, figures_of(answers["host"], {"us": lambda a, case=case: a[case]}))]
        results.replace("host", [origin(args), "an allocation and its free, less a tensor without memory"], rows)

    return rounds_of(args, "host", ["host"], args.gpus[0], args.rounds, about, save, repeats=args.repeats)


def copies(args, results):
    if len(args.gpus) < 2:
        say("copies: left out, since they need two GPUs")
        return True
    measures = {"steps_ms": lambda a: sum(a["ms"][:FIRST]), "step_ms": lambda a: statistics.median(a["ms"][FIRST:])}

    def about(a):
        return f"the first two {measures['steps_ms'](a):.1f} ms, later {measures['step_ms'](a):.2f} ms a step"

    def save(answers):
        rows = rows_of("copies", "to another GPU and back", figures_of(answers["copies"], measures))
        results.replace("copies", [origin(args)], rows)

    return rounds_of(args, "copies", ["copies"], ",".join(args.gpus[:2]), args.rounds, about, save, steps=FIRST + args.steps)


PARTS = {"memory": memory, "first": first, "limits": limits, "startup": startup, "host": host, "copies": copies}


# ---- the command


def visible_gpus():
    """The GPUs that CUDA_VISIBLE_DEVICES names, or all."""
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return names.split(",")
    try:
        query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="torch_memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def names(flag, known, what, default=None):
        default = default or list(known)
        parser.add_argument(flag, type=choices(known), default=default, metavar="NAME,...", help=f"{what}; default: {','.join(default)}")

    def number(flag, default, what):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{what}; default: %(default)s")

    names("--parts", PARTS, "what to measure")
    names("--jobs", JOBS, "of memory, first and limits")
    names("--allocators", SETTINGS, "to compare, plugin too", [name for name in SETTINGS if name != "plugin"])
    number("--rounds", 6, "of memory, first, host and copies")
    number("--startups", 10, "rounds of startup")
    number("--steps", 40, f"of a job, after {WARM} whose time does not count")
    number("--limit-steps", 20, "of a job with a memory limit")
    number("--repeats", 7, "of each timing of host in a process, which reports the median")
    parser.add_argument("--gpus", type=lambda text: text.split(","), metavar="N,...", help="default: all that are visible")
    parser.add_argument("--csv", type=Path, default=Path("torch_memory.csv"), help="default: %(default)s")
    where = "the folder of the package mlpool; default: %(default)s"
    parser.add_argument("--mlpool", type=Path, default=Path("build"), metavar="DIR", help=where)
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="limit of one run; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="few rounds and steps, to see whether everything works")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.startups, args.steps, args.limit_steps, args.repeats = 2, 2, 5, 5, 1
    if min(args.rounds, args.startups, args.steps, args.limit_steps, args.repeats) < 1 or not 0 < args.timeout <= threading.TIMEOUT_MAX:
        fail("--rounds, --startups, --steps, --limit-steps, --repeats and --timeout must be above 0, and --timeout finite")
    if any(name in args.allocators for name in OURS):
        for name in ("mlpool/__init__.py", "mlpool/libmlpool.so"):
            if not (args.mlpool / name).is_file():
                fail(f"no {args.mlpool / name}: make lib builds it; --mlpool names its folder")
    args.gpus = args.gpus or visible_gpus()
    if not args.gpus:
        fail("needs a GPU, and nvidia-smi names none: --gpus 0 uses the first")
    return args


def available(job):
    """Reports whether the modules of a job are installed, and says so if not."""
    missing = [name for name in NEEDS.get(job, []) if not importlib.util.find_spec(name)]
    if missing:
        say(f"{job}: left out, since it needs {' '.join(missing)}")
    return not missing


def origin(args):
    """The GPU, the versions, the day and the command line without this machine's folders."""
    where = common.gpu_and_driver(args.gpus[0]) or "an unknown GPU"
    flags = {"jobs": args.jobs, "allocators": args.allocators, "rounds": args.rounds, "startups": args.startups,
             "steps": args.steps, "limit-steps": args.limit_steps, "repeats": args.repeats, "gpus": args.gpus}
    words = " ".join(f"--{k} {','.join(v) if isinstance(v, list) else v}" for k, v in flags.items())
    return (f"{where}, {args.versions}, {datetime.date.today()}: "
            f"torch_memory.py --parts {','.join(args.parts)} {words} --csv {args.csv.name}")


def measure(args, results):
    """Measures the parts, one after the other. Returns whether everything was measured."""
    everything = True
    for part in args.parts:
        try:
            complete = PARTS[part](args, results)
        except Failed as err:
            say(f"{part}: {err}")
            complete = False
        everything = everything and complete
    return everything


def main(argv):
    args = parse_args(argv)
    common.need("torch")
    args.jobs = [job for job in args.jobs if available(job)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes of tasks are ended
    try:
        results = Results(args.csv)
        everything = measure(args, results)
    except KeyboardInterrupt:
        say("interrupted: the CSV has the rounds that were complete")
        return 130
    except Failed as err:
        fail(err)
    if results.rows:
        print(table_of(results.rows))
    if not everything:
        say("not everything was measured")
    return int(not everything)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
