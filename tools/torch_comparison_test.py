"""Tests torch_comparison.py without numpy and torch."""

import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in ("numpy", "torch", "torch.nn", "torch.nn.functional")}):
    import torch_comparison

RUN = {"feat_dim": 32, "num_layers": 2, "bsz": 64, "learning_rate": 0.1, "num_epochs": 2, "seed": 0, "dataset": "mnist"}


class Exports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.export = Path(folder.name)

    def refused(self, why, f, *args):
        with self.assertRaises(SystemExit) as end:
            f(self.export, *args)
        self.assertTrue(str(end.exception).startswith(f"torch_comparison: {self.export} was not written by train -export: "))
        self.assertIn(why, str(end.exception))

    def test_run(self):
        self.refused("No such file", torch_comparison.read_run)
        file = self.export / "run.json"
        for text, why in [
            ("{", "Expecting property name"),
            ("3", "'int'"),
            (json.dumps({"status": "done", "seed": 0}), "its run.json has no feat_dim, num_layers, bsz, learning_rate, num_epochs, dataset"),
            (json.dumps({k: v for k, v in RUN.items() if k != "bsz"}), "its run.json has no bsz"),
        ]:
            file.write_text(text)
            self.refused(why, torch_comparison.read_run)
        file.write_text(json.dumps(RUN))
        self.assertEqual(torch_comparison.read_run(self.export), RUN)

    def test_arrays(self):
        for err in (FileNotFoundError(2, "No such file or directory", "w0.npy"), ValueError("no magic"), EOFError("no data left")):
            with mock.patch.object(torch_comparison.np, "load", side_effect=err):
                self.refused(str(err), torch_comparison.load_weights, RUN, "cpu")
                self.refused(str(err), torch_comparison.load_order, 0, 100, "cpu")


if __name__ == "__main__":
    unittest.main()
