"""Tests peers.py without a framework and without a GPU."""

import argparse
import gzip
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import common
import peers
import peers_sweep
import peers_table
import peers_trainers
import script_tests

# A stand-in for train. What it does depends on the width. Without packages (-S) Python starts twice as fast.
TRAIN = """#!%s -S
import json, os, sys, time
words = sys.argv[1:]
if words[0] == "-check":
    sys.exit("train: no GPU" if words[2] == "train.device=cpu" else 0)
keys = dict(word.split("=", 1) for flag, word in zip(words, words[1:]) if flag == "-set")
assert words[0] == "-json" and words[-1] == "-" and not sys.stdin.read() and keys["log.log_dir"] == "", words
width = int(keys["model.feat_dim"])
if width == 13:
    sys.exit("epoch 1/8\\ntrain: out of memory")
if width == 14:
    time.sleep(600)
figures = {"epochs": int(keys["train.num_epochs"]) - 1, "median_ms": 10.0, "fastest_ms": 9.5, "slowest_ms": 11.0, "val_acc": 0.97}
run = {"version": "(devel)", "commit": "0123456789abcdef, modified", "precision": keys["train.precision"], "figures": figures}
if keys["train.device"] == "cuda":
    run["gpu"] = {"cuda_runtime": "13.0"}
if width == 15:
    run["precision"] = "fp32"
if width == 19:
    del run["precision"]
ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if width == 17 and rank == 1:
    sys.exit("train: no NCCL")
if width == 17:
    sys.exit(1)  # the other one says why
if ranks > 1 and width != 18:
    run["ranks"] = ranks
    figures["median_ms"] = 6.25
    assert os.environ["LOCAL_RANK"] == str(rank) < os.environ["LOCAL_WORLD_SIZE"] and os.environ["MASTER_ADDR"] == "127.0.0.1"
    assert 0 < int(os.environ["MASTER_PORT"]) < 65536
print("no JSON" if width == 16 else json.dumps({"runs": [run]}))
""" % sys.executable

# A stand-in for a worker. Each start appends a line to starts.
WORKER = """
import json, os, sys, time
with open("starts", "a") as f:
    print(os.getpid(), file=f)
if sys.argv[2:] == ["absent"]:
    print(json.dumps({"missing": "No module named such"}))
    sys.exit()
jobs, rank = json.loads(sys.argv[1]), int(os.environ.get("RANK", 0))
width = jobs[0]["feat_dim"]
if width == 13:
    sys.exit("warning\\nkilled by the driver")
if width == 21 and jobs[0]["precision"] == "tf32":
    sys.exit("killed by the driver")
if width == 16 and rank == 1:
    sys.exit("OutOfMemory: none on rank 1")
if width in (14, 16):
    time.sleep(600)
trainings = [{"ms": [500.0] + [20.0 + i for i in range(job["epochs"])], "accuracy": 0.96} for job in jobs]
if width in (4, 20) and len(jobs) > 1:
    trainings[-1] = {"failed": "RESOURCE_EXHAUSTED: Out of memory"}
print(json.dumps({"version": "1.2", "trainings": trainings}))
"""

MACHINE = "NVIDIA H200, driver 1.2.3"


class Run(script_tests.InFolder):
    """Runs main in a folder with stand-in programs."""

    def setUp(self):
        super().setUp()
        train = self.folder / "train"
        train.write_text(TRAIN)
        train.chmod(0o755)
        (self.folder / "worker.py").write_text(WORKER)
        for prefix, samples in (("train", 60000), ("t10k", 10)):
            shape = b"".join(n.to_bytes(4, "big") for n in (samples, 1, 2))
            name = f"{prefix}-images-idx3-ubyte.gz"
            (self.folder / name).write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + shape + bytes(2 * samples)))
            common.write_idx(self.folder, f"{prefix}-labels-idx1-ubyte", (samples,), bytes(samples))
        self.csv = self.folder / "peers.csv"
        self.absent = set()

    def worker(self, name, args, jobs):
        return [sys.executable, "-S", "worker.py", json.dumps([vars(job) for job in jobs])] + ["absent"] * (name in self.absent)

    def run_main(self, *argv, machine=MACHINE, worker=None):
        with mock.patch.object(peers_trainers, "worker_command", worker or self.worker), mock.patch.object(
            peers, "machine", lambda device: machine
        ):
            return script_tests.run(peers.main, "--train", "train", "--mnist", ".", "--csv", str(self.csv), *argv)

    def rows(self):
        return script_tests.read_csv(self.csv)

    def starts(self):
        return (self.folder / "starts").read_text().count("\n")

    def test_all(self):
        status, stdout, stderr = self.run_main("--shapes", "784x64,4096x61x2")
        self.assertEqual((status, len(stderr), self.starts()), (0, 12, 4))
        notes, rows = self.rows()
        self.assertRegex(notes[0], "of 60000 training and 10 validation samples, SGD at 0.1")
        self.assertRegex(notes[1], rf"^# {MACHINE}, \d{{4}}-\d\d-\d\d: peers.py .* --shapes 784x64x4,4096x61x2 ")
        self.assertNotIn(str(self.folder), "".join(notes))
        self.assertEqual(len(rows), 12)
        self.assertEqual(",".join(rows[0].values()), "ours,0123456789ab-modified+cuda13.0,tf32,784,64,4,1,10,9.5,11,7,0.9700,711495680")
        self.assertEqual(",".join(rows[-1].values()), "torch,1.2,fp32,4096,61,2,1,23,20,26,7,0.9600,6157451264")
        self.assertEqual([row["precision"] for row in rows], ["tf32", "3xtf32"] * 2 + ["tf32", "fp32"] * 4)
        self.assertRegex(stdout, r"784x64, 4 layers, tf32 +10.00 +23.00 +23.00 +2.30 +2.30\n")
        self.assertRegex(stdout, r"784x64, 4 layers, 3xtf32 +10.00 +23.00 +23.00 +2.30 +2.30\n")

    def test_several_gpus(self):
        """One process per GPU, except JAX, added to a CSV with rows of one GPU."""
        self.assertEqual(self.run_main("--shapes", "784x64,784x128", "--precisions", "tf32")[0], 0)
        (self.folder / "starts").write_text("")
        arguments = ["--precisions", "tf32", "--gpus", "2", "--append", "--shapes"]
        status, stdout, stderr = self.run_main(*arguments, "784x64,784x4096")
        self.assertEqual((status, len(stderr), self.starts()), (0, 6, 2 * (1 + 2)), stderr)
        self.assertEqual(stderr[0], "peers: mlpool 784x64, 4 hidden layers, tf32, 2 GPUs: 6.25 ms")
        notes, rows = self.rows()
        self.assertIn("--gpus 2", notes[-1])
        self.assertEqual([row["gpus"] for row in rows], ["1"] * 6 + ["2"] * 6)
        self.assertEqual(",".join(rows[6].values()), "ours,0123456789ab-modified+cuda13.0,tf32,784,64,4,2,6.25,9.5,11,7,0.9700,711495680")
        for want in (
            r"\n784x64, 4 layers, tf32 +10.00 +23.00 +23.00 +2.30 +2.30\n",
            r"\n784x64, 4 layers, tf32, 2 GPUs +6.25 +23.00 +23.00 +3.68 +3.68\n",
            r"\nseveral GPUs +images a second, with validation +/ one GPU, weak +/ one GPU, strong\n",
            r"\nmlpool 784x64, 4 layers, tf32, 2 GPUs +9600000 +1.60 +1.60\n",
            r"\nmlpool 784x4096, 4 layers, tf32, 2 GPUs +9600000 +– +–\n",
            r"\nPyTorch 784x64, 4 layers, tf32, 2 GPUs +2608696 +1.00 +1.00\n",
        ):
            self.assertRegex(stdout, want)
        text = self.csv.read_text() + ",".join(["ours again", *list(rows[6].values())[1:]]) + "\n"  # a name of somebody's own
        self.csv.write_text(text)
        self.assertEqual(self.run_main(*arguments, "784x64")[::2], (0, []))
        self.assertEqual(self.csv.read_text(), text)
        for gpus in (4, 8):
            arguments[arguments.index("--gpus") + 1] = str(gpus)
            status, stdout, stderr = self.run_main(*arguments, "784x64")
            self.assertEqual((status, len(stderr)), (0, 3), stderr)
            self.assertEqual([row["gpus"] for row in self.rows()[1]][-3:], [str(gpus)] * 3)
            self.assertRegex(stdout, rf"\nPyTorch 784x64, 4 layers, tf32, {gpus} GPUs +2608696 +1.00 +–\n")
        status, _, stderr = self.run_main("--device", "cpu", "--frameworks", "ours", "--gpus", "2", "--append", "--shapes", "7x8")
        self.assertEqual((status, stderr), (0, ["peers: mlpool is left out: --gpus needs --device cuda"]))

    def test_failures_are_a_line_each(self):
        """A training that fails leaves no row."""
        for framework, width, want in [
            ("ours", 13, "peers: mlpool 13x8, 4 hidden layers, tf32: train: out of memory"),
            ("ours", 14, "peers: mlpool 14x8, 4 hidden layers, tf32: not done after 4 s"),
            ("ours", 15, "peers: mlpool 15x8, 4 hidden layers, tf32: train computed in fp32"),
            ("ours", 19, "peers: mlpool 19x8, 4 hidden layers, tf32: train computed in fp32"),
            ("ours", 16, "peers: mlpool 16x8, 4 hidden layers, tf32: train -json has another format: "),
            ("jax", 13, "peers: JAX 13x8, 4 hidden layers, tf32: killed by the driver"),
            ("torch", 14, "peers: PyTorch 14x8, 4 hidden layers, tf32: not done after 4 s"),
        ]:
            with self.subTest(want):
                self.csv.unlink(missing_ok=True)
                (self.folder / "starts").write_text("")
                arguments = ["--frameworks", framework, "--precisions", "tf32", "--shapes", f"7x8,{width}x8,8x8"]
                status, _, stderr = self.run_main(*arguments, *["--timeout", "4"] * (width == 14))
                self.assertEqual((status, len(stderr), stderr[-1]), (1, 4, "peers: 1 of 3 trainings failed"), stderr)
                self.assertTrue(stderr[1].startswith(want), stderr[1])
                self.assertEqual([row["feat_dim"] for row in self.rows()[1]], ["7", "8"])
                self.assertEqual(self.starts(), 0 if framework == "ours" else 3)

    def test_failures_of_a_process(self):
        """The others of its trainings are measured, even if the process ends."""
        for width, want, starts in [(20, "JAX 20x8, 4 hidden layers, fp32: RESOURCE_EXHAUSTED: Out of memory", 1),
                                    (21, "JAX 21x8, 4 hidden layers, tf32: killed by the driver", 3)]:
            with self.subTest(want):
                self.csv.unlink(missing_ok=True)
                (self.folder / "starts").write_text("")
                status, _, stderr = self.run_main("--frameworks", "jax", "--shapes", f"{width}x8")
                self.assertEqual((status, stderr[-1]), (1, "peers: 1 of 2 trainings failed"), stderr)
                self.assertIn(f"peers: {want}", stderr)
                self.assertEqual((len(self.rows()[1]), self.starts()), (1, starts))

    def test_missing_frameworks(self):
        self.absent = {"jax"}
        status, stdout, stderr = self.run_main("--shapes", "784x64", "--precisions", "tf32")
        self.assertEqual((status, stderr[1]), (0, "peers: JAX is left out: No module named such"))
        self.assertEqual([row["framework"] for row in self.rows()[1]], ["ours", "torch"])
        self.assertRegex(stdout, r"784x64, 4 layers, tf32 +10.00 +– +23.00 +– +2.30\n")
        self.csv.unlink()
        status, _, stderr = self.run_main("--device", "cpu", "--shapes", "784x64,8x8", "--frameworks", "ours,torch")
        self.assertEqual((status, stderr[0]), (0, "peers: mlpool is left out: train: no GPU"))
        self.assertEqual([",".join(row.values())[:19] for row in self.rows()[1]], ["torch,1.2,fp32,784,", "torch,1.2,fp32,8,8,"])
        self.csv.unlink()
        self.run_main("--device", "cpu", "--shapes", "8x8", "--frameworks", "torch", "--precisions", "tf32,bf16,3xtf32")
        self.assertEqual([row["precision"] for row in self.rows()[1]], ["fp32", "bf16"])
        self.absent = {"jax", "torch"}
        self.csv.unlink()
        status, _, stderr = self.run_main("--frameworks", "jax,torch")
        self.assertEqual((status, stderr[-1], self.csv.exists()), (1, "peers: nothing was measured", False))

    def test_append(self):
        arguments = ["--frameworks", "ours", "--precisions", "tf32", "--append", "--shapes"]
        self.assertEqual(self.run_main(*arguments, "7x8")[0], 0)
        status, stdout, stderr = self.run_main(*arguments, "7x8,8x8")
        self.assertEqual((status, stderr), (0, ["peers: mlpool 8x8, 4 hidden layers, tf32: 10 ms"]))
        self.assertEqual(stdout.count("\n"), 3)
        notes, rows = self.rows()
        self.assertEqual(([row["feat_dim"] for row in rows], len(notes)), (["7", "8"], 3))
        text = self.csv.read_text()
        self.assertEqual(self.run_main(*arguments, "7x8,8x8")[::2], (0, []))
        for argv, want in [
            ({}, "peers.csv exists: --append adds the rows it lacks"),
            ({"machine": "NVIDIA H100, driver 1.2.3"}, "peers.csv is of another machine than NVIDIA H100"),
        ]:
            status, _, stderr = self.run_main(*["--append"] * bool(argv), **argv)
            self.assertEqual((status, len(stderr)), (1, 1))
            self.assertIn(want, stderr[0])
        self.assertEqual(self.csv.read_text(), text)
        for other in ("framework,ms\nours,3\n", text + "ours,1\n", ""):
            self.csv.write_text(other)
            status, _, stderr = self.run_main("--append")
            self.assertEqual((status, stderr), (1, [f"peers: {self.csv} was not written by this script: name another file"]))
            self.assertEqual(self.csv.read_text(), other)

    def test_bad_arguments(self):
        for argv, want in [
            (["--shapes", "784"], "'784' is not WIDTHxBATCH"),
            (["--shapes", "784x64x4x4"], "is not WIDTHxBATCH"),
            (["--shapes", "784x0"], "is not WIDTHxBATCH"),
            (["--shapes", "784x64,784x60001"], "a batch of 60001 exceeds the 60000 samples"),
            (["--frameworks", "ours,tf"], "'tf' is not one of ours, jax, torch"),
            (["--precisions", "fp8"], "'fp8' is not one of tf32, 3xtf32, fp32, bf16"),
            (["--shapes", "784x64,784x30001", "--gpus", "2"], "a batch of 60002 exceeds the 60000 samples"),
            (["--epochs", "0"], "must be above 0"),
            (["--gpus", "0"], "must be above 0"),
            (["--timeout", "0"], "must be above 0"),
            (["--timeout", "nan"], "must be above 0"),
            (["--timeout", "inf"], "must be above 0"),
            (["--train", "no"], "no program no"),
            (["--mnist", "no"], "no has neither train-images-idx3-ubyte nor"),
            (["--csv", "no/peers.csv"], "the folder of no/peers.csv does not exist"),
            (["--sweep", "-1"], "N must be above 0"),
            (["--sweep", "3", "--frameworks", "ours,torch"], "a sweep has only jax"),
        ]:
            status, stdout, stderr = self.run_main(*argv)
            self.assertEqual((status, stdout, self.csv.exists()), (1, "", False))
            self.assertIn(want, "".join(stderr))

    def test_sweep(self):
        """Stops between probes, continues, and then has nothing to do. A failure is kept, in one line."""
        bounds = [("many layers", ("tf32", "bf16"), "784x64x6", "784x64x7"), ("memory", ("tf32",), "12x64x2", "13x64x2")]
        argv = ["--precisions", "tf32,3xtf32", "--sweep", "3"]
        with mock.patch.object(peers_sweep, "BOUNDS", bounds):
            status, stdout, stderr = self.run_main(*argv, "--minutes", "0")
            self.assertEqual((status, len(self.rows()[1]), self.starts()), (1, 4, 1), stderr)
            self.assertRegex(stderr[0], r"^peers: \[1/5\] mlpool 4x3728, 7 hidden layers, tf32, 2 inputs: 10 ms, \d+% of the floor's speed$")
            self.assertEqual(stderr[3], "peers: [1/5] JAX 4x3728, 7 hidden layers, fp32, 2 inputs: RESOURCE_EXHAUSTED: Out of memory")
            self.assertEqual(stderr[4], "peers: stopped after 0 minutes: the same command continues")
            self.assertIn("slower than JAX: 0 of 1 compared ", stdout)
            status, stdout, stderr = self.run_main(*argv)
            self.assertEqual((status, self.starts(), stderr[-1]), (1, 1, "peers: 1 of 16 trainings failed"), stderr)
            text = self.csv.read_text()
            status, _, stderr = self.run_main(*argv)
            self.assertEqual((status, stderr, self.csv.read_text()), (0, [], text))
        notes, rows = self.rows()
        self.assertEqual(len(notes), 2)
        self.assertRegex(notes[1], rf"^# {MACHINE}, \d{{4}}-\d\d-\d\d: peers.py .* --sweep 3 --seed 1 --frameworks ours,jax ")
        self.assertEqual(list(rows[0]), peers_sweep.SWEEP_COLUMNS)
        self.assertEqual(len(rows), 20)
        shapes = {(int(row["feat_dim"]), int(row["bsz"]), int(row["layers"])) for row in rows if row["framework"] == "ours"}
        beside = {(4320, bsz, 4) for bsz in (61, 64, 67)} | {(431, bsz, 1) for bsz in (13735, 14458, 15181)}
        self.assertEqual(shapes, beside | {(4, 3728, 7), (784, 64, 6), (784, 64, 7), (12, 64, 2), (13, 64, 2)})
        self.assertEqual([(row["feat_dim"], row["framework"]) for row in rows if not row["ms"]].count(("13", "ours")), 1)
        self.assertIn("failed: 2 of 20 trainings", stdout)
        self.absent = {"jax"}
        self.csv.unlink()
        status, _, stderr = self.run_main(*argv, "--minutes", "0")
        self.assertEqual((status, stderr[2]), (0, "peers: JAX is left out: No module named such"))


class Work(unittest.TestCase):
    """What a worker answers, by a stand-in for the module of a framework."""

    def test_answers(self):
        def train(job, mnist, device):
            if job.feat_dim == 13:
                raise RuntimeError("RESOURCE_EXHAUSTED: no memory\nmore")
            return [job.feat_dim, 2.0], 0.5

        def command(*widths):
            jobs = [peers_trainers.Job("tf32", width, 64, 2, 1, 3, 784) for width in widths]
            words = peers_trainers.worker_command("jax", argparse.Namespace(mnist="m", device="cpu"), jobs)
            return peers_trainers.work("jax", peers.parse_args(words[2:]))

        fake = argparse.Namespace(measure=train, VERSION="1.2")
        with mock.patch.dict(sys.modules, {"peers_jax": fake}):
            want = [{"ms": [7, 2.0], "accuracy": 0.5}, {"failed": "RuntimeError: RESOURCE_EXHAUSTED: no memory"}, {"ms": [8, 2.0], "accuracy": 0.5}]
            self.assertEqual(command(7, 13, 8), {"version": "1.2", "trainings": want})
            with self.assertRaisesRegex(SystemExit, "^RuntimeError: RESOURCE_EXHAUSTED: no memory$"):
                command(13)
        with mock.patch.dict(sys.modules, {"peers_jax": None}):
            self.assertIn("peers_jax", command(7)["missing"])


def padded(width, value):
    """The width of a hidden layer on the device, as Width of package device pads rows of values of that many bytes."""
    widths = [-(-width // n) * n for n in (128 // value, 64 // value, 32 // value, 16 // value)]
    return next((n for n in widths if 100 * (n - width) <= width), widths[-1])


class Sweep(unittest.TestCase):
    def args(self, **values):
        known = {"sweep": 200, "seed": 1, "gpus": 1, "samples": 60000, "validated": 10000, "pixels": 784, "epochs": 7}
        known |= {"precisions": peers_table.PRECISIONS, "all_precisions": True}
        return argparse.Namespace(**known | values)

    def test_probes(self):
        probes = peers_sweep.probes_of(self.args())
        spread = [probe for probe in probes if not probe.bound]
        self.assertEqual(len(spread), 200)
        self.assertEqual([p for p in peers_sweep.probes_of(self.args(sweep=40)) if not p.bound], spread[:40])
        self.assertNotEqual([p for p in peers_sweep.probes_of(self.args(seed=2)) if not p.bound], spread)
        for some in (spread[:16], spread[100:116]):  # small and large are both there
            for i, most in enumerate((12288, 16384, 8)):
                values = sorted(probe.shapes[0][i] for probe in some)
                self.assertTrue(1 <= values[0] <= most**0.25 and most**0.75 <= values[-1] <= most, (i, values))
        self.assertTrue({p.shapes[0][0] % 8 for p in spread} == {p.shapes[0][3] % 8 for p in spread} == set(range(8)))
        for first, *others in (probe.shapes for probe in spread):
            for other in others:
                ((a, b),) = [pair for pair in zip(first, other) if pair[0] != pair[1]]
                self.assertLessEqual(abs(b - a), 0.05 * a + 0.5)
        bounds = [probe for probe in probes if probe.bound]
        self.assertEqual(sorted(p.bound for p in bounds), sorted(name for name, *_ in peers_sweep.BOUNDS))
        for probe in bounds:
            self.assertEqual(sum(a != b for a, b in zip(*probe.shapes)), 1, probe)
            for value in {2 if p == "bf16" else 4 for p in probe.precisions}:
                self.assertEqual(len({(padded(width, value), *rest) for width, *rest in probe.shapes}), 2, probe)
        of_two = {p.bound for p in peers_sweep.probes_of(self.args(gpus=2))}
        self.assertEqual(of_two - {p.bound for p in probes}, {name for name, *_ in peers_sweep.BOUNDS_OF_RANKS})

    def test_compared(self):
        """JAX trains every third random shape, in fp32 if asked. Of these, too, any beginning has small and large ones, and
        round numbers in half of them."""
        asked = {"precisions": ["tf32", "3xtf32", "fp32"], "all_precisions": False}
        for values, want in ({}, ("tf32", "bf16")), (asked, ("tf32", "fp32")), (asked | {"precisions": ["3xtf32"]}, ("fp32",)):
            probes = peers_sweep.probes_of(self.args(**values))
            self.assertEqual({p.compared for p in probes if p.bound}, {()})
            spread = [probe for probe in probes if not probe.bound]
            self.assertEqual([p.compared for p in spread], [() if i % 3 else want for i in range(200)])
            some = [probe.shapes[0] for probe in spread[:30:3]]
            for i, most in enumerate((12288, 16384)):
                values = sorted(shape[i] for shape in some)
                self.assertTrue(values[0] <= most**0.25 and most**0.75 <= values[-1], (i, values))
            self.assertEqual(sum(w % 32 == 0 for w, *_ in some if w > 16), sum(w > 16 for w, *_ in some[1::2]))

    def test_floor(self):
        """No measured epoch is faster. Those of PERFORMANCE: multiplications, bytes of memory; and epochs of at most
        half a second, of whole batches."""
        path = Path(__file__).parent.parent / "assets" / "peers_h200.csv"
        for row in script_tests.read_csv(path)[1]:
            if row["ms"]:
                precision, *sizes = (row[k] for k in ("precision", "feat_dim", "bsz", "layers", "gpus"))
                job = peers_trainers.Job(precision, *map(int, sizes), 7, 784)
                self.assertLess(1e3 * peers_sweep.floor(job, 60000, 10000), float(row["min"] or row["ms"]), row)
        known = ("tf32", (4096, 8192, 4), 44, 45), ("tf32", (2048, 64, 4), 38, 50), ("bf16", (4096, 8192, 4), 23, 24)
        for precision, shape, least, most in known:
            job = peers_trainers.Job(precision, *shape, 1, 7, 784)
            self.assertTrue(least < 1e3 * peers_sweep.floor(job, 60000, 10000) < most, shape)
        for shape in ((1, 1, 8, 784), (12288, 1, 8, 784), (12288, 16384, 8, 784), (784, 64, 4, 784)):
            job, samples, validated = peers_sweep.sized(shape, self.args())
            self.assertTrue(shape[1] <= samples <= 60000 and 1 <= validated <= 10000 and 3 <= job.epochs <= 7)
            self.assertTrue(samples == shape[1] or peers_sweep.floor(job, samples, validated) < 0.5, shape)
            self.assertEqual((samples // shape[1] == 60000 // shape[1], samples % shape[1]), (shape[0] == 784, 0))

    def test_cut(self):
        with tempfile.TemporaryDirectory() as folder:
            for prefix in ("train", "t10k"):
                common.write_idx(folder, f"{prefix}-images-idx3-ubyte", (4, 2, 3), bytes(range(24)))
                common.write_idx(folder, f"{prefix}-labels-idx1-ubyte", (4,), bytes(range(4)))
            with peers_sweep.cut(folder, 3, 1, 2) as some:
                shape, pixels = common.read_idx(some, "train-images-idx3-ubyte", 3)
                self.assertEqual((shape, list(pixels)), ((3, 1, 2), [2, 3, 8, 9, 14, 15]))
                shape, labels = common.read_idx(some, "train-labels-idx1-ubyte", 1)
                self.assertEqual((shape, list(labels)), ((3,), [0, 1, 2]))
                self.assertEqual(list(common.read_idx(some, "t10k-images-idx3-ubyte", 3)[1]), [2, 3])
        self.assertFalse(some.exists())

    def test_report(self):
        """One shape is slower than JAX, one neighbour and one side of a bound lose more than the others."""
        args = self.args(sweep=3, precisions=["tf32"])
        rows = []

        def measured(name, shape, times):
            job, *counts = peers_sweep.sized(shape, args)
            ms = 1e3 * peers_sweep.floor(job, *counts)
            row = peers_sweep.Sweep.key(name, job, counts[0]) | {"ms": ms * times, "floor_ms": ms}
            rows.append({k: str(v) for k, v in row.items()})

        with mock.patch.object(peers_sweep, "BOUNDS", [("a bound", ("tf32", "bf16"), "4096x64x2", "4104x64x2")]):
            self.assertIn("slower than JAX: 0 of 0", peers_sweep.report(args, []))
            measured("ours", (4, 3728, 7, 784), 4)
            for bsz, times in ((64, 2), (61, 2.2), (67, 3)):
                measured("ours", (4320, bsz, 4, 238), times)
            measured("jax", (4, 3728, 7, 784), 2)
            measured("jax", (4320, 64, 4, 238), 2.5)
            measured("ours", (4096, 64, 2, 784), 2)
            measured("ours", (4104, 64, 2, 784), 4)
            lines = peers_sweep.report(args, rows + [rows[0] | {"pixels": "1", "ms": ""}]).splitlines()
        self.assertEqual([re.sub(r"  +", "|", line) for line in lines if "ms" not in line], [
            "slower than JAX: 1 of 2 compared|mlpool|JAX|mlpool / JAX",
            f"4x3728, 7 layers, 784 inputs, tf32|{rows[0]['ms']}|{rows[4]['ms']}|2.00",
            "",
            "cliffs: 2|beside|share of the floor|beside|factor|bound",
            "4104x64, 2 layers, 784 inputs, tf32|4096x64x2x784|25%|50%|2.00|a bound",
            "4320x67, 4 layers, 238 inputs, tf32|4320x64x4x238|33%|50%|1.50|",
            "",
            "share of the floor in tf32: median 50%, least 25%, of 3 shapes",
            "failed: 1 of 9 trainings",
        ])


if __name__ == "__main__":
    unittest.main()
