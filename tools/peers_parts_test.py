"""Tests the parts of peers.py: jobs, workers, and the reading of data sets."""

import contextlib
import gzip
import io
import json
import os
import sys
import tempfile
import types
import unittest
from argparse import Namespace
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
import peers


class Jobs(unittest.TestCase):
    def test_fewer_epochs_of_large_shapes(self):
        for shape, asked, want in [
            ((784, 64, 4, 1), 7, 7),
            ((4096, 61, 4, 1), 7, 3),
            ((4096, 61, 4, 1), 2, 2),
            ((8192, 64, 8, 1), 9, 3),
            ((2048, 1024, 4, 1), 15, 10),
            ((2048, 1024, 4, 2), 15, 15),
        ]:
            self.assertEqual(peers.Job("tf32", *shape, asked, 784).within_a_second(60000).epochs, want)


class Work(unittest.TestCase):
    def work(self, measure):
        args = Namespace(mnist="m", device="cuda", job=json.dumps(vars(peers.Job("tf32", 3, 2, 2, 1, 1, 4))))
        with mock.patch.dict(sys.modules, torch_trainer=types.SimpleNamespace(VERSION="1.2", measure=measure)):
            return peers.work("torch", args)

    def test_failures(self):
        def fails(error):
            def measure(*_):
                raise error

            return measure

        self.assertEqual(self.work(fails(common.Failed("no GPU"))), {"missing": "no GPU"})
        with self.assertRaisesRegex(SystemExit, "^ValueError: two$"):
            self.work(fails(ValueError("two\nlines")))


class Machine(unittest.TestCase):
    def test_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            smi = Path(folder) / "nvidia-smi"
            smi.write_text('#!/bin/sh\n[ "$4" = 3 ] && echo "NVIDIA H200, 580.159.03"\n')
            smi.chmod(0o755)
            with mock.patch.dict(os.environ, PATH=folder, CUDA_VISIBLE_DEVICES="3,1"):
                self.assertEqual(peers.machine("cuda"), "NVIDIA H200, driver 580.159.03")
            for there in ({"PATH": folder, "CUDA_VISIBLE_DEVICES": ""}, {"PATH": ""}):
                with mock.patch.dict(os.environ, there), contextlib.redirect_stderr(io.StringIO()) as stderr:
                    self.assertEqual(peers.machine("cuda"), "an unknown GPU")
                self.assertIn("--device cpu needs none", stderr.getvalue())


class Idx(unittest.TestCase):
    def test_read(self):
        whole = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + b"abcdef"
        with tempfile.TemporaryDirectory() as folder:
            for name, data in [("plain", whole), ("short", whole[:-1]), ("header", whole[:7]), ("packed.gz", gzip.compress(whole)),
                               ("torn.gz", gzip.compress(whole)[:20]), ("none.gz", whole)]:
                (Path(folder) / name).write_bytes(data)
            for name in ("plain", "packed"):
                shape, data = common.read_idx(folder, name, 2)
                self.assertEqual((shape, bytes(data)), ((2, 3), b"abcdef"))
            for name, dims, want in [("short", 2, "whole IDX file"), ("header", 2, "whole IDX file"), ("plain", 3, "whole IDX file"),
                                     ("torn", 2, "cannot be read"), ("none", 2, "cannot be read"), ("absent", 2, "has neither")]:
                with self.assertRaisesRegex(common.Failed, want):
                    common.read_idx(folder, name, dims)


if __name__ == "__main__":
    unittest.main()
