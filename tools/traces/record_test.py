"""Tests record.py without torch and without a GPU."""

import gzip
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import record
import script_tests


def entry(action, addr, size=0, stream=0):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 0, "frames": []}


def freed(addr, size=0):
    return [entry("free_requested", addr, size), entry("free_completed", addr, size)]


FACTS = {"job": "cnn", "expandable_segments": False, "max_memory_reserved": 20 << 20, "command": "record.py cnn"}


class Rows(unittest.TestCase):
    def test_calls(self):
        rows, later = record.rows_of([
            entry("segment_alloc", 0x100, 2 << 20),
            entry("alloc", 0x100, 100, 0x7f00),
            entry("alloc", 0x300, 200, 0),
            *freed(0x100),
            entry("alloc", 0x100, 300, 0x7f00),
            entry("snapshot", 0),
            *freed(0x300),
            entry("alloc", 0x500, 1, 0x9900),
        ])
        self.assertEqual([tuple(row) for row in rows], [
            ("allocate", 1, 100, 0), ("allocate", 2, 200, 1), ("free", 1, 100, 0), ("allocate", 1, 300, 0),
            ("free", 2, 200, 1), ("allocate", 2, 1, 2),
        ])
        self.assertEqual(later, {})
        self.assertEqual(record.peak_requested(rows), 500)

    def test_held_back(self):
        rows, later = record.rows_of([
            entry("alloc", 1, 10), entry("alloc", 2, 10), entry("alloc", 3, 10),
            entry("free_requested", 1), entry("free_requested", 2), entry("free_completed", 2),
            entry("alloc", 4, 10), entry("free_completed", 1), entry("alloc", 1, 10),
            entry("free_requested", 3),
        ])
        self.assertEqual([row.action[0] for row in rows], list("aaaffaaf"))
        # The free of 1 is followed by two calls until it ends; that of 3 never ends.
        self.assertEqual(later, {3: 2, 7: 8})

    def test_incomplete(self):
        for entries, want in [
            (freed(0xabc), "0xabc is freed but was not allocated"),
            ([entry("free_completed", 0xabc)], "the free of 0xabc ends"),
            ([entry("alloc", 0xabc, 1)] * 2, "0xabc is allocated twice"),
            ([entry("alloc", 1, 1), *freed(1), *freed(1)], "0x1 is freed"),
        ]:
            with self.assertRaisesRegex(record.Failed, want):
                record.rows_of(entries)


class Convert(unittest.TestCase):
    ENTRIES = [
        entry("segment_alloc", 0, 2 << 20), entry("alloc", 0, 5), entry("segment_map", 9, 20 << 20),
        entry("segment_free", 0, 2 << 20), entry("segment_unmap", 9, 20 << 20), entry("segment_alloc", 0, 4 << 20),
        entry("free_requested", 0, 5), entry("alloc", 1, 7), entry("free_completed", 0, 5),
    ]

    def test_file(self):
        facts, data = record.convert(FACTS, self.ENTRIES)
        self.assertEqual(facts["peak_of_history"], 22 << 20)
        self.assertEqual((facts["calls"], facts["peak_requested"]), (3, 7))
        self.assertEqual(record.convert(FACTS, self.ENTRIES)[1], data)
        lines = gzip.decompress(data).decode().splitlines()
        comments = [line for line in lines if line.startswith("# ")]
        self.assertIn("# job: cnn", comments)
        self.assertIn(f"# max_memory_reserved: {20 << 20}", comments)
        self.assertEqual(lines[len(comments):], [
            "Thread,Time,Action,Pointer,Size,Stream,Later",
            "0,0,allocate,0x1,5,0,", "0,0,free,0x1,5,0,1", "0,0,allocate,0x1,7,0,",
        ])


class Job(unittest.TestCase):
    """Records a job on a mock of torch."""

    def run_cache(self, snapshot, *more):
        """record.main on the cache job; the status, stdout, stderr and the file."""
        torch = mock.MagicMock()
        torch.__version__, torch.version.cuda = "2.11.0", "13.0"
        torch.cuda.get_device_name.return_value = "a GPU"
        torch.cuda.max_memory_reserved.return_value = 22 << 20
        torch.cuda.max_memory_allocated.return_value = 512
        torch.cuda.memory._snapshot.return_value = snapshot
        with tempfile.TemporaryDirectory() as out, mock.patch.dict(sys.modules, torch=torch), \
                mock.patch.dict(os.environ):
            path = Path(out) / "new" / "cache.csv.gz"
            said = script_tests.run(record.main, "cache", "--steps", "5", "--seed", "3", "--expandable", "--out", str(path), *more)
            text = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
            setting = os.environ["PYTORCH_CUDA_ALLOC_CONF"]
        self.assertEqual(setting, "expandable_segments:True")
        self.assertNotIn(out, text)
        self.memory = torch.cuda.memory
        return *said, text

    def test_whole(self):
        status, stdout, stderr, text = self.run_cache(
            {"device_traces": [Convert.ENTRIES], "segments": [{"is_expandable": True}]})
        self.assertEqual((status, stderr), (0, []))
        facts = json.loads(stdout)
        self.assertEqual((facts["max_memory_reserved"], facts["peak_of_history"], facts["calls"]), (22 << 20, 22 << 20, 3))
        self.assertIn("# command: tools/traces/record.py cache --steps 5 --seed 3 --expandable\n", text)
        self.assertIn("# gpu: a GPU, CUDA 13.0\n", text)
        self.assertIn("# expandable_segments: True\n", text)

    def test_stacks_only_for_a_snapshot(self):
        snapshot = {"device_traces": [Convert.ENTRIES], "segments": [{"is_expandable": True}]}
        for more, context, dumps in [([], None, []), (["--snapshot", "/dev/null"], "all", [mock.call("/dev/null")])]:
            self.assertEqual(self.run_cache(snapshot, *more)[0], 0)
            self.assertEqual(self.memory._record_memory_history.call_args.kwargs["context"], context)
            self.assertEqual(self.memory._dump_snapshot.call_args_list, dumps)


class Measure(unittest.TestCase):
    def measure(self, settings):
        """Runs --measure on a mock of torch; the status, stdout, stderr and the settings that torch finds."""
        torch = mock.MagicMock()
        torch.cuda.max_memory_reserved.return_value, torch.cuda.max_memory_allocated.return_value = 7, 5
        found = []
        torch.cuda.init.side_effect = lambda: found.extend(map(os.environ.get, record.SETTINGS))
        kept = {key: value for key, value in os.environ.items() if key not in record.SETTINGS}
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.dict(os.environ, kept | settings, clear=True), \
                mock.patch.dict(record.JOBS, cache=(record.JOBS["cache"][0], 3)):
            said = script_tests.run(record.main, "--measure", "cache")
        torch.cuda.memory._record_memory_history.assert_not_called()
        return *said, found

    def test_settings_of_the_caller(self):
        split = "max_split_size_mb:128"
        for settings, want in [({}, None)] + [({name: split}, split) for name in record.SETTINGS]:
            status, stdout, stderr, found = self.measure(settings)
            self.assertEqual((status, stderr, found), (0, [], [want] * 2))
            self.assertEqual(json.loads(stdout), {"job": "cache", "PYTORCH_CUDA_ALLOC_CONF": want or "",
                                                  "max_memory_reserved": 7, "max_memory_allocated": 5})


if __name__ == "__main__":
    unittest.main()
