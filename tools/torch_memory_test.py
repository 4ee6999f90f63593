"""Tests torch_memory.py without torch and without a GPU."""

import contextlib
import csv
import io
import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
import torch_memory
import torch_memory_table as table
from torch_memory_worker import MIB, PAGE, SETTINGS, smallest

# A stand-in for the process of a task. The allocators need 200, 110, 120 and 100 MiB for a job that allocates 99.
WORKER = """
import json, os, sys, time
r = json.loads(sys.argv[1])
allocator, task = r["allocator"], r["task"]
need = {"native": 200, "expandable": 110, "async": 120, "mlpool": 100}[allocator]
with open("started", "a") as f:
    print(os.getpid(), allocator, os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), os.environ["CUDA_VISIBLE_DEVICES"], file=f)
jobs = r.get("jobs", [r.get("job")])
if "graph" in jobs and allocator == "async":
    sys.exit("Traceback ...\\nkilled by the driver")
if "cnn" in jobs:
    os.fork()  # both hold the GPU
    time.sleep(600)
answer = dict(ms=1000.0 + need)
if task == "measure":
    steps, answer = r["steps"] + r["warm"], {}
    for job in jobs:
        losses = "beef" if (job, allocator) == ("small", "mlpool") else "cafe"
        answer[job] = dict(ms=2.0 * need, losses=losses, device=need + 1.0, reserved=[need - 50.0] * (steps - 1) + [need], allocated=[99.0] * steps)
        if (job, allocator) == ("unet", "async"):
            answer[job] = dict(failed="OutOfMemoryError: no room")
elif task == "search":
    if (r["job"], allocator) == ("unet", "async"):
        sys.exit("OutOfMemoryError: no room")
    answer = dict(fails=(need - 1) << 20, suffices=need << 20, trials=9, allocated=99 << 20, reserved=need << 20, held=0)
print(json.dumps(dict(torch="2.11.0", cuda="13.0", answer=answer)))
"""


class Run(unittest.TestCase):
    """Runs main in a folder with a stand-in for the workers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "worker.py").write_text(WORKER)
        (self.folder / "mlpool").mkdir()
        for name in ("__init__.py", "libmlpool.so"):
            (self.folder / "mlpool" / name).touch()
        back = Path.cwd()
        os.chdir(folder.name)
        self.addCleanup(os.chdir, back)

    def run_main(self, *argv):
        """The status, the standard output, and the lines of the standard error."""
        with mock.patch.object(torch_memory, "worker_command", lambda request: [sys.executable, "-S", "worker.py", json.dumps(request)]), \
                mock.patch.object(common, "need", lambda *modules: None), \
                mock.patch.object(common, "gpu_and_driver", lambda gpu: "NVIDIA H200, driver 1.2.3"), \
                mock.patch.object(torch_memory, "visible_gpus", lambda: ["0", "1"]), \
                contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
            try:
                status = torch_memory.main(["--mlpool", ".", "--csv", "t.csv", *argv])
            except SystemExit as err:
                status = 1
                print(err.code, file=sys.stderr)
        return status, stdout.getvalue(), stderr.getvalue().splitlines()

    def rows(self, name="t.csv"):
        lines = Path(name).read_text().splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        return {(r["part"], r["job"], r["allocator"], r["measure"]): r for r in rows}, [line for line in lines if line.startswith("#")]

    def test_every_part(self):
        status, stdout, stderr = self.run_main("--jobs", "transformer,small,streams")
        self.assertEqual(status, 0, stderr)
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
        row = rows["startup", "beyond native", "mlpool", "extra_ms"]
        self.assertEqual([row["median"], row["low"], row["ratio"]], ["-100", "-100", ""])
        first = "# memory of transformer, small, streams: NVIDIA H200, driver 1.2.3, PyTorch 2.11.0, CUDA 13.0, 20"
        self.assertTrue(any(note.startswith(first) for note in notes), notes)
        self.assertRegex(stdout, r"memory: reserved_mib +native +expandable +async +mlpool\ntransformer +200 \(2\.000\) +110 \(1\.100\)")
        steps = Path("t_steps.csv").read_text().splitlines()
        self.assertEqual(steps[1:3] + steps[-1:], ["allocator,step,reserved_mib,allocated_mib", "native,1,150,99", "mlpool,50,100,99"])
        started = [line.split(" ", 1)[1] for line in Path("started").read_text().splitlines()]
        for setting in ("native None 0", "expandable expandable_segments:True 1", "async backend:cudaMallocAsync 0"):
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
