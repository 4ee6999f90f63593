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
        self.shapes, self.used = [], []

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

    def record_stream(self, stream):
        self.used.append(stream)


class Jobs(unittest.TestCase):
    def run_job(self, name, seed=1, steps=5):
        torch = Torch()
        with mock.patch.object(jobs, "unet_of", lambda torch: torch):  # it defines a class of torch's Module
            jobs.JOBS[name][0](torch, random.Random(seed), steps)
        return torch

    def test_shapes_depend_on_the_seed_alone(self):
        for name in jobs.JOBS:
            with self.subTest(name):
                shapes = self.run_job(name).shapes
                self.assertEqual(self.run_job(name).shapes, shapes)
                self.assertNotEqual(self.run_job(name, seed=2).shapes, shapes)

    def test_each_expert_uses_its_stream_and_the_main_one(self):
        torch = self.run_job("moe", steps=3)
        self.assertEqual(len(torch.used), 3 * 2 * 8 * 2)  # steps, layers, experts, to the stream and back

    def test_requests_come_and_go(self):
        model, active = mock.MagicMock(), []
        model.prefill.side_effect = lambda tokens: (object(), mock.MagicMock())
        model.next.side_effect = lambda x, caches: active.append(set(caches)) or mock.MagicMock()
        with mock.patch.object(jobs, "ServedDecoder", return_value=model):
            jobs.serving(mock.MagicMock(), random.Random(1), 300)
        self.assertEqual(len(active), 300)
        counts = [len(caches) for caches in active]
        self.assertTrue(1 <= min(counts) < 6 < max(counts) <= 12, counts)
        self.assertGreater(len(set.union(*active)), 60)

    def test_padding_of_utterances_is_bounded(self):
        signals = [shape for shape in self.run_job("speech").shapes if shape[1] == 80]
        self.assertEqual(sum(batch for batch, _, _ in signals), 5 * 32)
        self.assertLessEqual(max(batch * frames for batch, _, frames in signals), 16_000)

    def test_targets_are_among_the_sources(self):
        shapes = self.run_job("graph", steps=1).shapes
        # features, rows, and for each of three layers the sources, the targets and the sums, then the labels
        self.assertEqual(len(shapes), 2 + 3 * 3 + 1)
        for i in range(2, 11, 3):
            (sources, edges), (targets, same), (sums, _) = shapes[i : i + 3]
            self.assertEqual((edges, targets), (same, sums))
            self.assertTrue(2 * targets <= sources <= 5 * targets and 5 * targets <= edges[0] <= 15 * targets)

    def test_sizes(self):
        for name, low, high in [("cache", 1 << 10, 64 << 20), ("streams", 512, 16 << 20)]:
            torch = mock.MagicMock()
            jobs.JOBS[name][0](torch, random.Random(1), 3000)
            sizes = [call.args[0] for call in torch.empty.call_args_list]
            self.assertGreater(len(sizes), 1400)
            self.assertTrue(low <= min(sizes) < 2 * low and high / 2 < max(sizes) <= high, (min(sizes), max(sizes)))

    def test_a_fifth_is_used_on_another_stream(self):
        torch = mock.MagicMock()
        torch.cuda.Stream.side_effect = lambda: mock.MagicMock()
        jobs.JOBS["streams"][0](torch, random.Random(1), 3000)
        uses = torch.empty.return_value.record_stream.call_count / torch.empty.call_count
        self.assertTrue(0.17 < uses < 0.23, uses)
        self.assertEqual(torch.cuda.Stream.call_count, 8)

    def test_steps(self):
        for name, method in [("transformer", "AdamW"), ("cnn", "SGD")]:
            torch = mock.MagicMock()
            jobs.JOBS[name][0](torch, random.Random(1), 7)
            self.assertEqual(getattr(torch.optim, method).return_value.step.call_count, 7)
        torch = mock.MagicMock()
        jobs.JOBS["inference"][0](torch, random.Random(1), 7)
        self.assertEqual(torch.randint.call_count, 7)


if __name__ == "__main__":
    unittest.main()
