"""Tests torch_memory.py without torch and without a GPU."""

import json
import os
import sys
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
import script_tests
import torch_memory
import torch_memory_table as table
import torch_memory_worker as worker
from torch_memory_worker import MIB, PAGE, SETTINGS, smallest

# A stand-in for the process of a task. The allocators need 200, 110, 120 and 100 MiB for a job that allocates 99.
WORKER = """
import json, os, sys, time
r = json.loads(sys.argv[1])
allocator, task = r["allocator"], r["task"]
need = {"native": 200, "expandable": 110, "async": 120, "mlpool": 100, "plugin": 105}[allocator]
with open("started", "a") as f:
    print(os.getpid(), allocator, os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), os.environ["CUDA_VISIBLE_DEVICES"], file=f)
jobs = r.get("jobs", [r.get("job")])
if "graph" in jobs and allocator == "async":
    sys.exit("Traceback ...\\nkilled by the driver")
if "cnn" in jobs:
    os.fork()  # both hold the GPU
    time.sleep(600)
steps = r.get("steps")
if task in ("measure", "first"):
    answer = {}
    for job in jobs:
        losses = "beef" if (job, allocator) == ("small", "mlpool") else "cafe"
        later = steps - 2  # the first two take more
        answer[job] = dict(ms=[20.0 * need] * 2 + [2.0 * need] * later, losses=losses, device=[500.0] * 2 + [need + 1.0] * later,
                           reserved=[900.0, 10.0 * need] + [need - 50.0] * (later - 1) + [need] * min(later, 1), allocated=[99.0] * steps)
        if (job, allocator) == ("unet", "async"):
            answer[job] = dict(failed="OutOfMemoryError: no room")
elif task in ("startup", "host", "copies"):
    if (task, allocator) == ("copies", "async"):
        sys.exit("RuntimeError: no peer")
    copied = dict(ms=[30.0, 20.0] + [need / 10] * ((steps or 2) - 2))
    answer = {task: dict(startup=dict(ms=1000.0 + need), host={"a pair": need / 100}, copies=copied)[task]}
elif task == "search":
    if (r["job"], allocator) == ("unet", "async"):
        sys.exit("OutOfMemoryError: no room")
    answer = dict(fails=(need - 1) << 20, suffices=need << 20, trials=9, allocated=99 << 20, reserved=need << 20, held=0)
print(json.dumps(dict(torch="2.11.0", cuda="13.0", answer=answer)))
"""


class Run(script_tests.InFolder):
    """Runs main in a folder with a stand-in for the workers."""

    def setUp(self):
        super().setUp()
        (self.folder / "worker.py").write_text(WORKER)
        (self.folder / "mlpool").mkdir()
        for name in ("__init__.py", "libmlpool.so"):
            (self.folder / "mlpool" / name).touch()

    def run_main(self, *argv):
        with mock.patch.object(torch_memory, "worker_command", lambda request: [sys.executable, "-S", "worker.py", json.dumps(request)]), \
                mock.patch.object(common, "need", lambda *modules: None), \
                mock.patch.object(common, "gpu_and_driver", lambda gpu: "NVIDIA H200, driver 1.2.3"), \
                mock.patch.object(torch_memory, "visible_gpus", lambda: ["0", "1"]):
            return script_tests.run(torch_memory.main, "--mlpool", ".", "--csv", "t.csv", *argv)

    def rows(self):
        notes, rows = script_tests.read_csv("t.csv")
        return {(r["part"], r["job"], r["allocator"], r["measure"]): r for r in rows}, notes

    def test_every_part(self):
        status, stdout, stderr = self.run_main("--jobs", "transformer,small,streams")
        self.assertEqual(status, 1, stderr)  # since copies fail on an allocator
        self.assertIn("torch_memory: copies on async: RuntimeError: no peer", stderr)
        rows, notes = self.rows()
        row = rows["memory", "transformer", "native", "reserved_mib"]
        self.assertEqual([row[k] for k in table.COLUMNS[4:]], ["6", "200", "200", "200", "2", "2", "2"])
        self.assertEqual(rows["memory", "transformer", "mlpool", "reserved_mib"]["ratio"], "")
        self.assertEqual(rows["memory", "transformer", "async", "step_ms"]["median"], "240")
        self.assertEqual(rows["memory", "streams", "expandable", "device_mib"]["median"], "111")
        self.assertEqual([rows["memory", job, "mlpool", "losses_equal"]["median"] for job in ("transformer", "small")], ["1", "0"])
        row = rows["limits", "streams", "native", "limit_mib"]
        low, high = float(row["low"]), float(row["high"])
        self.assertEqual((low, high, float(row["median"])), (199, 200, 200))
        self.assertTrue(1.9 < float(row["ratio_low"]) < 2 < float(row["ratio_high"]) < 2.1, row)
        self.assertEqual(rows["startup", "first allocation", "mlpool", "start_ms"]["rounds"], "10")
        first = "# memory of transformer, small, streams: NVIDIA H200, driver 1.2.3, PyTorch 2.11.0, CUDA 13.0, 20"
        self.assertTrue(any(note.startswith(first) for note in notes), notes)
        self.assertRegex(stdout, r"memory: reserved_mib +native +expandable +async +mlpool\ntransformer +200 \(2\.000\) +110 \(1\.100\)")
        steps = Path("t_steps.csv").read_text().splitlines()
        self.assertEqual(steps[1:3] + steps[-1:], ["allocator,step,reserved_mib,allocated_mib", "native,1,900,99", "mlpool,50,100,99"])
        row = rows["first", "small", "native", "steps_ms"]
        self.assertEqual([row[k] for k in ("median", "ratio")], ["8000", "2"])
        measures = ("step_1_ms", "step_2_ms", "reserved_mib", "allocated_mib")
        self.assertEqual([rows["first", "small", "async", m]["median"] for m in measures], ["2400", "2400", "1200", "99"])
        self.assertEqual([rows["host", "a pair", a, "us"]["median"] for a in SETTINGS if a != "plugin"], ["2", "1.1", "1.2", "1"])
        copied = [("copies", "to another GPU and back", a, m) for a in ("native", "async") for m in ("steps_ms", "step_ms")]
        self.assertEqual([rows[key]["median"] for key in copied[:2]] + [key in rows for key in copied[2:]], ["50", "20", False, False])
        self.assertFalse([key for key in rows if "plugin" in key])
        started = [line.split(" ", 1)[1] for line in Path("started").read_text().splitlines()]
        for setting in ("native None 0", "expandable expandable_segments:True 1", "async backend:cudaMallocAsync 0", "mlpool None 0,1"):
            self.assertIn(setting, started)

    def test_parts_are_replaced(self):
        self.assertEqual(self.run_main("--parts", "memory", "--jobs", "transformer,small", "--rounds", "6")[0], 0)
        self.assertEqual(self.run_main("--parts", "memory", "--jobs", "small", "--rounds", "3")[0], 0)
        rows, notes = self.rows()
        found = {job: rows["memory", job, "native", "step_ms"] for job in ("transformer", "small")}
        self.assertEqual([(r["rounds"], r["low"]) for r in found.values()], [("6", "400"), ("3", "")])
        self.assertEqual(len([note for note in notes if " --parts memory " in note]), 2)

    def test_failures(self):
        """An allocator on which a job fails is left out; the others are measured."""
        status, _, stderr = self.run_main("--parts", "memory,limits", "--jobs", "unet,graph", "--rounds", "1")
        self.assertEqual(status, 1)
        for want in ("unet on async: OutOfMemoryError: no room", "graph on async: killed by the driver"):
            self.assertIn("torch_memory: " + want, stderr)
        self.assertEqual(stderr[-1], "torch_memory: not everything was measured")
        rows, _ = self.rows()
        self.assertEqual({job: [a for a in SETTINGS if ("memory", job, a, "step_ms") in rows] for job in ("unet", "graph")},
                         dict.fromkeys(("unet", "graph"), ["native", "expandable", "mlpool"]))
        self.assertNotIn(("limits", "unet", "async", "limit_mib"), rows)

    def test_left_out(self):
        """A job without its modules, and copies on one GPU, are left out with a line."""
        with mock.patch.dict(torch_memory.NEEDS, {"llama": ["no_such_module"]}):
            status, _, stderr = self.run_main("--parts", "first,copies", "--jobs", "small,llama", "--gpus", "1",
                                              "--allocators", "plugin", "--rounds", "1")
        self.assertEqual((status, stderr[0], stderr[-1]), (0, "torch_memory: llama: left out, since it needs no_such_module",
                                                           "torch_memory: copies: left out, since they need two GPUs"))
        rows, _ = self.rows()
        self.assertEqual({key[:3] for key in rows}, {("first", "small", "plugin")})

    def test_interrupted(self):
        """Ctrl-C keeps the rounds that were complete."""
        asked, real = [], torch_memory.ask

        def ask(*arguments, **request):
            asked.append(request)
            if len(asked) == 6:  # of two a round
                raise KeyboardInterrupt
            return real(*arguments, **request)

        for part, row in (("host", ("a pair", "us")), ("memory", ("small", "step_ms"))):
            with self.subTest(part), mock.patch.object(torch_memory, "ask", ask):
                asked.clear()
                common.stopped.clear()
                status, _, stderr = self.run_main("--parts", part, "--jobs", "small", "--allocators", "native,mlpool", "--gpus", "0")
                self.assertEqual((status, stderr[-1]), (130, "torch_memory: interrupted: the CSV has the rounds that were complete"))
                rows, _ = self.rows()
                self.assertEqual([rows[part, row[0], a, row[1]]["rounds"] for a in ("native", "mlpool")], ["2", "2"])
        common.stopped.clear()

    def test_timeout(self):
        status, _, stderr = self.run_main("--parts", "memory", "--jobs", "cnn", "--allocators", "native", "--timeout", "1")
        self.assertEqual((status, stderr[0]), (1, "torch_memory: cnn on native: not done after 1 s"))
        self.nobody_is_left()

    def nobody_is_left(self):
        """Wants the group of each worker to have ended, with the processes that it forked."""
        for line in Path("started").read_text().splitlines():
            for _ in range(100):
                try:
                    os.killpg(int(line.split()[0]), 0)
                except ProcessLookupError:
                    break
                time.sleep(0.02)
            else:
                self.fail(f"{line} is left")


class Tensor:
    """A stand-in for a tensor, which counts those of all sizes but 0."""

    live = most = made = 0
    lock = threading.Lock()

    def __init__(self, size, **_):
        self.bytes = int(size > 0)
        self.count(self.bytes, self.bytes)

    def __del__(self):
        self.count(-self.bytes, 0)

    def record_stream(self, stream):
        pass

    @classmethod
    def count(cls, change, made):
        with cls.lock:
            cls.live, cls.made = cls.live + change, cls.made + made
            cls.most = max(cls.most, cls.live)


class Host(unittest.TestCase):
    def test_cases(self):
        """Each case frees all that it makes, and holds as many as it says."""
        torch = mock.MagicMock(empty=Tensor, uint8=None)
        most = {}
        for name, (function, sizes) in worker.host_cases(torch).items():
            Tensor.most = Tensor.made = 0
            function(sizes)
            self.assertEqual((Tensor.live, Tensor.made), (0, len(sizes)), name)
            most[name] = Tensor.most
        self.assertTrue(1 <= most.pop("8 threads") <= 8)
        self.assertEqual(list(most.values()), [1, 20, 20, 40, 40, 1])
        self.assertEqual(worker.host(torch, 1).keys(), most.keys() | {"8 threads"})

    def test_first(self):
        calls = []
        fakes = {name: lambda _, job="", *more, name=name: calls.append((name, job)) for name in ("run_job", "cleared", "measure")}
        with mock.patch.multiple(worker, **fakes):
            worker.first(None, ["cnn", "unet"], 2)
        once = [("run_job", "{}"), ("cleared", ""), ("measure", "{}"), ("cleared", "")]
        self.assertEqual(calls, [(name, text.format(job)) for job in ("cnn", "unet") for name, text in once])


class Bisection(unittest.TestCase):
    def test_smallest(self):
        for needed, low, high in [(1000, 500, 2000), (1000, 980, 1010), (505, 500, 2000), (1999, 500, 2000), (2600, 500, 2000),
                                  (90, 50, 120), (300, 500, 2000), (499, 500, 510)]:
            tried = []

            def finishes(limit):
                tried.append(limit)
                return limit >= needed * MIB

            fails, suffices = smallest(finishes, low * MIB, high * MIB, 3)
            self.assertTrue(fails < needed * MIB <= suffices, (needed, fails, suffices))
            self.assertLessEqual(suffices - fails, max(suffices // 100, PAGE))
            self.assertEqual((tried.count(fails), tried.count(suffices)), (1, 3))
            self.assertLess(len(tried), 50)


if __name__ == "__main__":
    unittest.main()
