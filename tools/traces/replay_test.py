"""Tests replay.py without torch and without a GPU."""

import gzip
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import replay


class Read(unittest.TestCase):
    def test_recorded(self):
        """It counts the same calls and bytes as the recorder."""
        path = Path(__file__).parent / "testdata" / "streams.csv.gz"
        with gzip.open(path, "rt") as f:
            facts = dict(line[2:].rstrip("\n").split(": ", 1) for line in f if line.startswith("# "))
        calls, slots, _, peak = replay.read(path)
        self.assertEqual((len(calls), peak), (int(facts["calls"]), int(facts["peak_requested"])))
        self.assertTrue(all(0 <= slot < slots for _, slot, _, _ in calls))


if __name__ == "__main__":
    unittest.main()
