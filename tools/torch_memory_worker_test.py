"""Tests the worker of torch_memory.py with a stand-in for torch."""

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import torch_memory_worker as worker
from torch_memory_worker import MIB, PAGE


class FakeCuda:
    """The calls of torch.cuda that a trial makes, on a device of 1000 MiB."""

    def __init__(self, other=100):
        self.total, self.taken, self.other, self.settling = 1000 * MIB, 0, other * MIB, 2

    def mem_get_info(self):
        self.settling -= 1
        return self.total - self.taken - self.other - max(self.settling, 0) * MIB, self.total

    def synchronize(self):
        pass

    empty_cache = reset_peak_memory_stats = synchronize

    def memory_reserved(self):
        return 8 * MIB

    def max_memory_allocated(self):
        return 40 * MIB

    max_memory_reserved = max_memory_allocated


class Worker(unittest.TestCase):
    def search(self, needed, error=RuntimeError("CUDA out of memory. Tried"), rounding=0):
        """Searches for the limit of a job that needs some MiB. Returns the answer and the memory left to each run."""
        cuda, ran = FakeCuda(), []

        def run_job(torch, job, steps):
            ran.append(cuda.mem_get_info()[0])
            if ran[-1] + cuda.memory_reserved() < needed * MIB:
                raise error

        def allocate(pointer, size):
            cuda.taken += size.value + rounding
            return 0

        def free(pointer):
            cuda.taken = 0
            return 0

        torch = mock.Mock(cuda=cuda)
        driver = mock.Mock(cuMemAlloc_v2=allocate, cuMemFree_v2=free)
        with mock.patch.object(worker, "run_job", run_job), mock.patch.object(worker.time, "sleep"), \
                mock.patch.object(worker.ctypes, "CDLL", lambda name: driver):
            return worker.search(torch, "cnn", 3, 2), ran

    def test_search(self):
        for error in (RuntimeError("CUDA out of memory. Tried"), RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")):
            answer, ran = self.search(60, error)
            self.assertEqual((answer["allocated"], answer["held"], answer["trials"]), (40 * MIB, 8 * MIB, len(ran) - 1))
            self.assertTrue(60 * MIB - 2 * PAGE <= answer["fails"] < answer["suffices"] <= 60 * MIB + PAGE, answer)
            self.assertLess(ran[-1], 60 * MIB)  # the last runs had a limit

    def test_bad_searches(self):
        for error, rounding, want in [(RuntimeError("illegal memory access"), 0, "illegal memory access"),
                                      (RuntimeError("CUDA out of memory"), 40 * MIB, "MiB of the device are left, not ")]:
            with self.assertRaisesRegex(Exception, want):
                self.search(60, error, rounding)
        with mock.patch.object(worker.time, "sleep"), self.assertRaisesRegex(worker.Failed, "the device has not 1992 MiB"):
            worker.take_all_but(mock.Mock(cuda=FakeCuda()), 1992 * MIB)

    def test_measure_all(self):
        """A job that fails does not keep the next from being measured."""

        def measure(torch, job, steps, warm):
            if job == "cnn":
                raise RuntimeError("no such kernel\nstack")
            return {"ms": steps + warm}

        with mock.patch.object(worker, "measure", measure):
            got = worker.measure_all(mock.Mock(cuda=FakeCuda()), ["cnn", "small"], 3, 4)
        self.assertEqual(got, {"cnn": {"failed": "RuntimeError: no such kernel"}, "small": {"ms": 7}})

    def test_environment(self):
        with mock.patch.dict(os.environ, PYTORCH_ALLOC_CONF="x", PYTORCH_CUDA_ALLOC_CONF="y", OTHER="z"):
            for allocator, want in worker.SETTINGS.items():
                env = worker.environment(allocator, "2")
                settings = [env.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")]
                self.assertEqual([*settings, env["OTHER"], env["CUDA_VISIBLE_DEVICES"]], [want, want, "z", "2"])

    def test_measure(self):
        """Peaks are of each step, and the memory of the context does not count."""
        cuda, step = mock.Mock(), iter(range(1, 5))
        cuda.mem_get_info.side_effect = [(free * MIB, 1000 * MIB) for free in (900, 800, 600, 700)]
        cuda.max_memory_reserved.side_effect = lambda: next(step) * MIB
        cuda.max_memory_allocated.side_effect = lambda: MIB

        def run_job(torch, job, steps, each):
            for _ in range(steps):
                each()
            return [9.0, 2.0, 3.0], "cafe"

        with mock.patch.object(worker, "run_job", run_job):
            got = worker.measure(mock.Mock(cuda=cuda), "cnn", 2, 1)
        self.assertEqual(got, {"ms": 2.5, "losses": "cafe", "device": 300.0, "reserved": [1, 2, 3], "allocated": [1, 1, 1]})
        self.assertEqual(cuda.reset_peak_memory_stats.call_count, 3)


if __name__ == "__main__":
    unittest.main()
