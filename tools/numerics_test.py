"""Tests numerics.py without numpy and torch."""

import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
with mock.patch.dict(sys.modules, {name: mock.MagicMock(__version__="2") for name in ("numpy", "torch", "torch.distributed", "torch.nn", "torch.nn.functional")}):
    import numerics


class Yardsticks(unittest.TestCase):
    def test_runs(self):
        for text, device, want in [
            ("eager:fp32,graph:3xtf32", "cuda", ["torch:fp32"]),
            ("graph:bf16,graph:tf32", "cuda", ["torch:fp32", "torch:tf32", "torch:bf16"]),
            ("eager:bf16,eager:fp32", "cpu", ["torch:fp32", "torch:bf16"]),
        ]:
            runs = numerics.parse_runs(text, device)
            self.assertEqual([":".join(run) for run in runs], text.split(","))
            self.assertEqual(list(numerics.yardsticks_of(runs)), want)
        for text, device, want in [
            ("eager:fp8", "cuda", "a colon and one of fp32, tf32, 3xtf32, bf16"),
            ("eager:tf32", "cpu", "no run 'eager:tf32' on the CPU, which computes in fp32 and bf16"),
        ]:
            with self.assertRaisesRegex(SystemExit, want):
                numerics.parse_runs(text, device)

    def test_inexact(self):
        def row(run, early, late, accuracy):
            return {"run": run, "max_diff_0_49": early, "max_diff_50_99": late, "best_acc_mean": accuracy}

        others = [row("torch:fp32", 1e-6, 1e-5, 0.982), row("torch:bf16", 1e-3, 2e-3, 0.9)]
        tf32 = row("graph:tf32", 1, 1, 0.980)
        for rows, want in [
            ([row("eager:tf32", 1, 1, 0.5)], []),
            ([row("graph:bf16", 2.9e-3, 5.9e-3, 0.9775), tf32], []),
            ([row("graph:bf16", 2.9e-3, 5.9e-3, 0.9831), tf32], ["graph:bf16: best val acc is 98.31 %, not within 0.3 of the 98.00 % of graph:tf32"]),
            ([row("eager:bf16", 2.9e-3, 5.9e-3, 0.9785), tf32], ["eager:bf16: best val acc is 97.85 %, not within 0.3 of the 98.20 % of torch:fp32"]),
            (
                [row("graph:bf16", 3.1e-3, float("nan"), 0.98), tf32],
                [
                    "graph:bf16: max |Δloss| 0–49 is 3.10e-03, more than 3 times PyTorch's 1.00e-03",
                    "graph:bf16: max |Δloss| 50–99 is nan, more than 3 times PyTorch's 2.00e-03",
                ],
            ),
        ]:
            self.assertEqual(numerics.inexact(rows + others), want)


if __name__ == "__main__":
    unittest.main()
