"""Tests torch_tests.py without torch and without a GPU."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
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


class Run(unittest.TestCase):
    def test_all(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in FILES.items():
                path = Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            table = Path(folder, "t.csv")
            with mock.patch.object(common, "need", lambda *modules: None), \
                    mock.patch.object(common, "gpu_and_driver", lambda: "NVIDIA H200, driver 1.2.3"), \
                    contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
                status = torch_tests.main([os.path.join(folder, "test_cuda.py"), "--mlpool", folder, "--csv", str(table), "--timeout", "5"])
            lines = table.read_text().splitlines()
        said = stderr.getvalue()
        self.assertEqual(status, 0, said)
        self.assertIn("torch_tests: missing here, and replaced: expected expected.things torch.testing.decorate expected.more\n", said)
        self.assertTrue(lines[1].startswith("# NVIDIA H200, driver 1.2.3, PyTorch 2.11.0, CUDA 13.0, 20"), lines[1])
        self.assertIn(": torch_tests.py test_cuda.py --select ", lines[1])
        rows = {row["test"]: row for row in csv.DictReader(line for line in lines if not line.startswith("#"))}
        found = {name.partition("test_")[2]: (row["native"], row["mlpool"], row["reason"]) for name, row in rows.items()}
        self.assertEqual(found, {
            "memory": ("passed", "passed", ""),
            "graph": ("passed", "failed", "AssertionError: True is not false : not on mlpool"),
            "stream_dies": ("passed", "died", "ended by SIGKILL"),
            "pool_hangs": ("passed", "died", "not done after 5 s"),
            "snapshot": ("skipped", "skipped", "no reason"),
        })
        self.assertEqual(stdout.getvalue().splitlines()[0], "of 4 tests that pass natively, 1 pass on mlpool; 2 died")


if __name__ == "__main__":
    unittest.main()
