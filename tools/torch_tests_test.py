"""Tests torch_tests.py without torch and without a GPU."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
import script_tests
import torch_tests

# Stand-ins for torch, for python -m mlpool, and for the file of tests.
FILES = {
    "torch/__init__.py": "__version__, version = '2.11.0', type('version', (), {'cuda': '13.0'})\n",
    "torch/testing.py": "there = True\n",
    "mlpool/__init__.py": "",
    "mlpool/libmlpool.so": "",
    "mlpool/__main__.py": """
import os, runpy, sys
os.environ["ON_MLPOOL"] = "1"
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
""",
    "test_cuda.py": """
import os, signal, time, unittest
import expected.things
from torch.testing import there, decorate
from expected.more import TestCase, FLAG

ON_MLPOOL = "ON_MLPOOL" in os.environ

class TestCuda(TestCase):
    @decorate
    def test_memory(self):
        print("{ a line of the test")
        self.assertTrue(there and not FLAG)

    @decorate("argument")
    def test_graph(self):
        self.assertFalse(ON_MLPOOL, "not on mlpool")

    def test_stream_dies(self):
        if ON_MLPOOL:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_pool_hangs(self):
        time.sleep(600 if ON_MLPOOL else 0)

    @unittest.skip("no reason")
    def test_snapshot(self):
        pass

    def test_matmul(self):
        self.fail("is not selected")
""",
}


class Run(script_tests.InFolder):
    def test_all(self) -> None:
        for name, text in FILES.items():
            path = Path(name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        with mock.patch.object(common, "need", lambda *modules: None), \
                mock.patch.object(common, "gpu_and_driver", lambda: "NVIDIA H200, driver 1.2.3"):
            status, stdout, stderr = script_tests.run(
                torch_tests.main, "test_cuda.py", "--mlpool", ".", "--csv", "t.csv", "--timeout", "5")
        self.assertEqual(status, 0, stderr)
        self.assertIn("torch_tests: missing here, and replaced: expected expected.things torch.testing.decorate expected.more", stderr)
        notes, rows = script_tests.read_csv("t.csv")
        self.assertTrue(notes[1].startswith("# NVIDIA H200, driver 1.2.3, PyTorch 2.11.0, CUDA 13.0, 20"), notes[1])
        self.assertIn(": torch_tests.py test_cuda.py --select ", notes[1])
        found = {row["test"].partition("test_")[2]: (row["native"], row["mlpool"], row["reason"]) for row in rows}
        self.assertEqual(found, {
            "memory": ("passed", "passed", ""),
            "graph": ("passed", "failed", "AssertionError: True is not false : not on mlpool"),
            "stream_dies": ("passed", "died", "ended by SIGKILL"),
            "pool_hangs": ("passed", "died", "not done after 5 s"),
            "snapshot": ("skipped", "skipped", "no reason"),
        })
        self.assertEqual(stdout.splitlines()[0], "of 4 tests that pass natively, 1 pass on mlpool; 2 died")

    def test_no_folder(self) -> None:
        Path("test_cuda.py").touch()
        self.assertEqual(script_tests.run(torch_tests.main, "test_cuda.py", "--csv", "no/t.csv"),
                         (1, "", ["torch_tests: the folder of no/t.csv does not exist"]))


if __name__ == "__main__":
    unittest.main()
