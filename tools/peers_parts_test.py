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
    def test_flop_step(self):
        for width, bsz, layers, want in [
            (784, 64, 4, 2 * 64 * (3 * (4 * 784 * 784 + 7840) - 784 * 784)),
            (100, 1, 1, 2 * (2 * 78400 + 3 * 1000)),
            (333, 61, 2, 2 * 61 * (2 * 784 * 333 + 3 * (333 * 333 + 3330))),
        ]:
            for gpus in (1, 2):
                self.assertEqual(peers.Job("tf32", width, bsz, layers, gpus, 7, 784).flop_step(), want)

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

    def test_precisions(self):
        for asked, ours, theirs in [
            (["tf32", "3xtf32"], ["tf32", "3xtf32"], ["tf32", "fp32"]),
            (["3xtf32", "fp32"], ["3xtf32", "fp32"], ["fp32"]),
            (["bf16", "3xtf32"], ["bf16", "3xtf32"], ["bf16", "fp32"]),
        ]:
            args = Namespace(precisions=asked, shapes=[(784, 64, 4)], gpus=1, epochs=7, pixels=784, samples=60000)
            self.assertEqual([j.precision for j in peers.jobs_of(args, "ours")], ours)
            self.assertEqual([j.precision for j in peers.jobs_of(args, "jax")], theirs)


class Array:
    """A stand-in for an array of JAX, of which only the type is known. The products are noted."""

    def __init__(self, dtype, products):
        self.dtype, self.products = dtype, products

    def astype(self, dtype):
        return Array(dtype, self.products)

    def __matmul__(self, other):
        self.products.append((self.dtype, other.dtype))
        return Array(self.dtype, self.products)


def absent(*modules):
    """A context in which stand-ins can be imported for modules that are not installed."""
    return mock.patch.dict(sys.modules, {name: mock.MagicMock(__version__="1.2") for name in modules})


class Frameworks(unittest.TestCase):
    """The script of JAX, without it."""

    def test_jax(self):
        with absent("jax", "jax.numpy", "jax.sharding", "numpy"):
            import peers_jax
        jax, jnp = peers_jax.jax, peers_jax.jnp
        jax.nn.relu = lambda x: x
        for precision, kind in [("tf32", jnp.float32), ("fp32", jnp.float32), ("bf16", jnp.bfloat16)]:
            products, labels = [], object()
            trainer = types.SimpleNamespace(samples=[Array(jnp.float32, products), labels] * 2)
            x, y, val_x, val_y = peers_jax.Trainer.images(trainer, peers.Job(precision, 3, 2, 2, 1, 1, 4))
            out = peers_jax.logits([Array(jnp.float32, products)] * 3, x)
            self.assertEqual((x.dtype, val_x.dtype, out.dtype), (kind, kind, jnp.float32))
            self.assertEqual((products, y, val_y), ([(kind, kind)] * 3, labels, labels))
            self.assertIn(precision, peers_jax.PRECISIONS)


class Work(unittest.TestCase):
    def work(self, measure):
        args = Namespace(mnist="m", device="cuda", job=json.dumps(vars(peers.Job("tf32", 3, 2, 2, 1, 1, 4))))
        with mock.patch.dict(sys.modules, torch_trainer=types.SimpleNamespace(VERSION="1.2", measure=measure)):
            return peers.work("torch", args)

    def test_answers(self):
        want = {"version": "1.2", "ms": [[4, 3, 3, 10], "m", "cuda"], "accuracy": 0.5}
        self.assertEqual(self.work(lambda job, *where: ([job.widths(), *where], 0.5)), want)

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
