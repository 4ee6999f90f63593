"""Tests how numerics.py calls train, without numpy and torch."""

import sys
import tempfile
import unittest
from argparse import Namespace
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in ("numpy", "torch", "torch.nn", "torch.nn.functional")}):
    import common
    import numerics


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.calls = []
        self.args = Namespace(train=Path("train"), mnist=self.folder / "mnist", config=Path("c.toml"), epochs=3, device="cpu")

    def train(self, program, *words):
        """A stand-in for train: it logs two steps and an epoch, unless it exports."""
        keys = dict(word.split("=", 1) for flag, word in zip(words, words[1:]) if flag == "-set")
        self.calls.append((keys, [word for flag, word in zip(("", *words), words) if "-set" not in (flag, word)]))
        if "-export" not in words:
            log_dir = Path(keys["log.log_dir"])
            log_dir.mkdir(parents=True)
            (log_dir / "train_losses.txt").write_text("2.5\n1.25\n")
            (log_dir / "val_accs.txt").write_text("0.5\n")

    def test_settings(self):
        at, export = self.folder / "0" / "graph-fp32", self.folder / "0" / "export"
        with mock.patch.object(common, "call_train", self.train):
            result = numerics.run_train(self.args, "graph", "fp32", 7, at, export)
        self.assertEqual(result.lines, ["2.5", "1.25"])
        want = {
            "train.seed": "7",
            "train.num_epochs": "3",
            "train.executor": "graph",
            "train.precision": "fp32",
            "train.device": "cpu",
            "data.data_dir": str(self.args.mnist.resolve()),
            "log.log_dir": str(at),
        }
        self.assertEqual(self.calls, [(want, ["-export", export, Path("c.toml")]), (want, [Path("c.toml")])])

    def test_failed(self):
        with mock.patch.object(common, "call_train", side_effect=common.Failed("train: no GPU")):
            with self.assertRaisesRegex(SystemExit, "numerics: eager:tf32, seed 1: train: no GPU"):
                numerics.run_train(self.args, "eager", "tf32", 1, self.folder)


if __name__ == "__main__":
    unittest.main()
