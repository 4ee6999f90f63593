"""Tests gemms.py without torch and without a GPU."""

import argparse
import csv
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
import gemms
import script_tests

# A stand-in for the compiled tests of package kernels, a µs slower with each call.
KERNELS = """#!%s -S
import os, sys
assert sys.argv[1:] == ["-test.run=^$", "-test.bench=^BenchmarkGEMMs$", "-test.benchtime=1x"], sys.argv
if os.path.exists("no GPU"):
    print("PASS")
    sys.exit()
with open("calls", "a+") as calls:
    calls.write("x")
    calls.seek(0)
    slower = len(calls.read())
print("build: mlpool (devel), commit 0123, go1.26.8, CUDA 13.0\\ngoos: linux")
for name, us in ("784x64/forward/tf32-16", 3 + slower), ("8192x8192/wgrad/bf16", 1699 + slower):
    print(f"BenchmarkGEMMs/{name}         \\t       1\\t  5123456 ns/op\\t       647.1 TFLOP/s\\t         1.500 host-µs\\t     {us:.3f} µs")
print("PASS")
""" % sys.executable


class Run(script_tests.InFolder):
    def run_main(self, *argv, torch=argparse.Namespace(__version__="2.11", version=argparse.Namespace(cuda="13.0"))):
        with mock.patch.multiple(
            gemms, start_torch=lambda: torch, cublaslt=lambda torch, width, *rest: width / 100
        ), mock.patch.object(common, "gpu_and_driver", lambda: "NVIDIA H200, driver 1.2.3"):
            return script_tests.run(gemms.main, "--kernels", "kernels.test", *argv)

    def setUp(self):
        super().setUp()
        program = Path("kernels.test")
        program.write_text(KERNELS)
        program.chmod(0o755)

    def test_rounds(self):
        status, stdout, stderr = self.run_main("--rounds", "3")
        self.assertEqual((status, len(stderr)), (0, 3), stderr)
        note, origin, *lines = Path("gemms.csv").read_text().splitlines()
        self.assertRegex(origin, r"^# NVIDIA H200, driver 1.2.3; mlpool .*, commit 0123, .*; PyTorch 2.11, CUDA 13.0, \S+: gemms.py .* --rounds 3$")
        self.assertEqual(list(csv.reader(lines)), [
            gemms.COLUMNS,
            ["784", "64", "forward", "tf32", "5", "4", "6", "7.84", "7.84", "7.84", "0.681"],
            ["8192", "8192", "wgrad", "bf16", "1701", "1700", "1702", "81.92", "81.92", "81.92", "1268"],
        ])
        self.assertRegex(stdout, r"\n784x64, forward, tf32 +5.0 +7.8 +1.57 +0.7 +14% +9%\n")

    def test_products(self):
        """Each is of the layer's shape, and the operands of all launches together exceed L2."""

        class Tensor:
            def __init__(self, *shape, **_):
                self.shape = shape
                self.mul_ = self.sub_ = self.to = lambda _: self

            def __len__(self):
                return self.shape[0]

            def t(self):
                return Tensor(*reversed(self.shape))

            def numel(self):
                return self.shape[0] * self.shape[1]

            def element_size(self):
                return 4

        torch = mock.MagicMock(rand=Tensor, empty=Tensor)
        torch.cuda.Event.return_value.elapsed_time.return_value = 2.5
        for gemm, rows, k in ("forward", 64, 784), ("dgrad", 64, 784), ("wgrad", 784, 64):
            torch.mm.reset_mock()
            self.assertEqual(gemms.cublaslt(torch, 784, 64, gemm, "tf32"), 5)
            launched = [(*call.args, call.kwargs["out"]) for call in torch.mm.call_args_list]
            self.assertEqual({tuple(x.shape for x in one) for one in launched}, {((rows, k), (k, 784), (rows, 784))})
            self.assertEqual(len(launched), 503)
            self.assertGreater(sum(x.numel() * 4 for x in {x for one in launched for x in one}), 128 << 20)

    def test_failures(self):
        self.assertIn("--rounds must be above 0", self.run_main("--rounds", "0")[2][-2])
        self.assertIn("no does not start", self.run_main("--kernels", "no")[2][0])
        Path("no GPU").touch()
        self.assertEqual(self.run_main()[::2], (1, ["gemms: kernels.test has no BenchmarkGEMMs, or found no GPU: PASS"]))
        self.assertFalse(Path("gemms.csv").exists())


if __name__ == "__main__":
    unittest.main()
