#!/usr/bin/env python3
"""Runs PyTorch's own tests about memory, allocators, graphs, streams, pools and snapshots, on PyTorch's allocator (native)
and on the pool, from build/mlpool:

    tools/torch_tests.py PYTORCH/test/test_cuda.py --csv assets/torch_tests.csv
    tools/torch_tests.py PYTORCH/test/test_cuda.py --select 'TestMemPool|snapshot'

PYTORCH is a folder of PyTorch's sources, best of the version that is installed. Needs torch and a GPU. Modules and names
that the file imports and this machine lacks are replaced by ones that do nothing, and named.

Each test is a process of its own. A test that fails is run again with no other beside it. A process that is killed, that
ends before its test, or that takes too long counts as died. Ctrl-C ends all processes and writes what is known.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import importlib
import importlib.util
import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path
from typing import Any, NamedTuple

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common
from common import Failed

SELECT = (r"^(?!.*CPU\.).*(alloc|mem|pool|graph|stream|snapshot|cach|oom|event|segment|plots|cycles|pinned|non_blocking|absorption|"
          r"traceback|profiler_viz|workspace)")
COLUMNS = ["test", "native", "mlpool", "seconds", "reason"]
NOTE = "passed, failed, skipped or died, on each allocator. seconds: on mlpool. reason: why the worse of the two did not pass."
WORSE = ["passed", "skipped", "failed", "died"]


def say(message: object) -> None:
    print(f"torch_tests: {message}", file=sys.stderr, flush=True)


# ---- the worker: a process with one test, or the list of all


class Absent(types.ModuleType):
    """A module, or something of one, that this machine lacks: false, and a decorator that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unittest.TestCase if name == "TestCase" else Absent(name)

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return ()


def load(path: str) -> tuple[types.ModuleType, list[str]]:
    """Returns the module of a file of tests, and the names that it had to do without."""
    missing: list[str] = []
    while True:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec and spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            return module, missing
        except ImportError as err:
            owner, name = err.name or "", ""
            if not isinstance(err, ModuleNotFoundError) and (found := re.match(r"cannot import name '(\w+)'", str(err))):
                name = found[1]
            whole = f"{owner}.{name}".strip(".")
            if not owner or whole in missing:
                raise
            missing.append(whole)
            if name:
                setattr(sys.modules[owner], name, Absent(name))
            else:
                sys.modules[owner] = Absent(owner)
                sys.modules[owner].__path__ = []


def tests_of(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    return [test for part in suite for test in (tests_of(part) if isinstance(part, unittest.TestSuite) else [part])]


def work(path: str, name: str) -> dict[str, Any]:
    """Returns the outcome of a test, or the names of all if name is empty."""
    sys.path.insert(0, str(Path(path).parent))  # tests import their neighbours
    module, missing = load(path)
    import torch
    loader = unittest.TestLoader()
    if not name:
        names = [test.id().partition(".")[2] for test in tests_of(loader.loadTestsFromModule(types.SimpleNamespace(**{
            k: v for k, v in vars(module).items() if k != "load_tests"})))]  # type: ignore[arg-type]
        return {"tests": names, "missing": missing, "torch": torch.__version__, "cuda": torch.version.cuda}
    result = unittest.TextTestRunner(stream=io.StringIO()).run(loader.loadTestsFromName(name, module))
    if bad := result.errors + result.failures:
        return {"outcome": "failed", "reason": common.last_line(bad[0][1])}
    if result.skipped:
        return {"outcome": "skipped", "reason": result.skipped[0][1]}
    return {"outcome": "passed", "reason": ""}


# ---- the tests, each on both sides


class Outcome(NamedTuple):
    outcome: str
    reason: str
    seconds: float


def ask(args: argparse.Namespace, side: str, name: str) -> dict[str, Any]:
    """Returns the answer of a worker."""
    folder = os.pathsep.join(filter(None, [str(args.mlpool.resolve()), os.environ.get("PYTHONPATH")]))
    prefix = [sys.executable, "-m", "mlpool"] if side == "mlpool" else [sys.executable]
    command = [*prefix, str(Path(__file__).resolve()), "--worker", name, str(args.file.resolve())]
    with tempfile.TemporaryDirectory() as extensions:  # that the test compiles
        env = os.environ | {"PYTHONPATH": folder, "PYTORCH_PRINT_REPRO_ON_FAILURE": "0", "TORCH_EXTENSIONS_DIR": extensions}
        said: str = common.call(command, [env], args.timeout)
    answer: dict[str, Any] = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    return answer


def run(args: argparse.Namespace, side: str, name: str) -> Outcome:
    start = time.monotonic()
    try:
        answer = ask(args, side, name)
    except (Failed, ValueError, IndexError) as err:
        if common.stopped.is_set():
            raise
        answer = {"outcome": "died", "reason": str(err)}
    return Outcome(answer["outcome"], " ".join(answer["reason"].split())[:300], time.monotonic() - start)


def run_all(args: argparse.Namespace, jobs: int, tasks: list[tuple[str, str]], found: dict[tuple[str, str], Outcome]) -> None:
    """Runs tasks, tests by their side and name, and adds their outcomes to found."""
    with common.threads(jobs) as threads:
        futures = {threads.submit(run, args, *task): task for task in tasks}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            task, found[futures[future]] = futures[future], future.result()
            say(f"{done} of {len(tasks)}: {task[1]} on {task[0]} {found[task].outcome} {found[task].reason}".rstrip())


def row_of(name: str, native: Outcome, mlpool: Outcome) -> dict[str, str]:
    worse = max((native, mlpool), key=lambda one: WORSE.index(one.outcome))
    cells = [name, native.outcome, mlpool.outcome, f"{mlpool.seconds:.1f}", worse.reason]
    return dict(zip(COLUMNS, cells))


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torch_tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="PATH", help="test_cuda.py of PyTorch's sources")
    parser.add_argument("--select", default=SELECT, metavar="REGEX", help="of CLASS.TEST, in any case; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="processes at a time; default: %(default)s")
    parser.add_argument("--csv", type=Path, default=Path("torch_tests.csv"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--mlpool", type=Path, default=Path("build"), metavar="DIR", help="the folder of the package mlpool; default: %(default)s")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="limit of one test; default: %(default)s")
    parser.add_argument("--worker", metavar="TEST", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.jobs < 1 or not 0 < args.timeout <= threading.TIMEOUT_MAX:
        parser.error("--jobs and --timeout must be above 0, and --timeout finite")
    try:
        re.compile(args.select)
    except re.error as err:
        parser.error(f"--select: {err}")
    return args


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    if args.worker is not None:
        print(json.dumps(work(str(args.file), args.worker)))
        return 0
    if not args.file.is_file():
        sys.exit(f"torch_tests: there is no file {args.file}")
    if not args.csv.parent.is_dir():
        sys.exit(f"torch_tests: the folder of {args.csv} does not exist")
    if not (library := args.mlpool / "mlpool" / "libmlpool.so").is_file():
        sys.exit(f"torch_tests: no {library}: make lib builds it; --mlpool names its folder")
    common.need("torch")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes of tests are ended
    found: dict[tuple[str, str], Outcome] = {}
    whole = True
    try:
        about = ask(args, "native", "")
        ask(args, "mlpool", "")  # compiles, if nothing is compiled yet
        if about["missing"]:
            say(f"missing here, and replaced: {' '.join(about['missing'])}")
        names = [name for name in about["tests"] if re.search(args.select, name, re.IGNORECASE)]
        run_all(args, args.jobs, [(side, name) for name in names for side in ("native", "mlpool")], found)
        run_all(args, 1, [task for task, one in found.items() if one.outcome in ("failed", "died")], found)
    except Failed as err:
        sys.exit(f"torch_tests: {err}")
    except KeyboardInterrupt:
        say("interrupted: the CSV has the tests that are done")
        whole = False
    rows = [row_of(name, found["native", name], found["mlpool", name])
            for name in dict.fromkeys(name for _, name in found) if ("native", name) in found and ("mlpool", name) in found]
    if not rows:
        sys.exit("torch_tests: no test was run")
    where = common.gpu_and_driver() or "an unknown GPU"
    origin = (f"{where}, PyTorch {about['torch']}, CUDA {about['cuda']}, {datetime.date.today()}: "
              f"torch_tests.py {args.file.name} --select '{args.select}' --jobs {args.jobs} --timeout {args.timeout:g} --csv {args.csv.name}")
    try:
        common.write_csv(args.csv, [NOTE, origin], COLUMNS, rows)
    except Failed as err:
        sys.exit(f"torch_tests: {err}")
    native = [row for row in rows if row["native"] == "passed"]
    print(f"of {len(native)} tests that pass natively, {sum(row['mlpool'] == 'passed' for row in native)} pass on mlpool; "
          f"{sum(row['mlpool'] == 'died' for row in rows)} died")
    for row in native:
        if row["mlpool"] != "passed":
            print(f"{row['test']} {row['mlpool']}: {row['reason']}")
    return 0 if whole else 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
