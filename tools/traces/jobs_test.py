"""Tests jobs.py without torch and without a GPU."""

import random
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import jobs


class Torch:
    """A stand-in for torch, its modules and its tensors. It keeps the shapes of the tensors that a job makes."""

    def __init__(self):
        self.shapes = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __add__(self, other):
        return self

    __sub__ = __mul__ = __rmul__ = __truediv__ = __add__

    def chunk(self, count, *args):
        return [self] * count

    def make(self, *shape, **kwargs):
        self.shapes.append(shape)
        return self

    empty = rand = randint = randn = zeros = make


class Jobs(unittest.TestCase):
    def run_job(self, name, seed=1, steps=5):
        torch = Torch()
        with mock.patch.object(jobs, "unet_of", lambda torch: torch):  # it defines a class of torch's Module
            jobs.JOBS[name][0](torch, random.Random(seed), steps)
        return torch.shapes

    def test_shapes_depend_on_the_seed_alone(self):
        for name in jobs.JOBS:
            with self.subTest(name):
                shapes = self.run_job(name)
                self.assertEqual(self.run_job(name), shapes)
                self.assertNotEqual(self.run_job(name, seed=2), shapes)


if __name__ == "__main__":
    unittest.main()
