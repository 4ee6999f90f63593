#!/usr/bin/env python3
"""Loads the weights of a run into PyTorch, evaluates them on the test set, and compares
accuracy and mean loss with what the run logged for the same epoch.

    build/train configs/mnist.toml
    tools/torch_load.py logs/mnist/latest MNIST_DIR

Needs numpy and torch, and uses the module safetensors if it is installed. Exits with 1 if
the loss differs by more than --loss-tolerance nats, or more than --images predictions
differ. PyTorch computes in float32, so a run in tf32 needs a tolerance of 1e-3.
"""

import argparse
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("mnist", type=Path, metavar="MNIST_DIR", help="the four IDX files, gzipped or plain")
    parser.add_argument("--loss-tolerance", type=float, default=1e-4, metavar="NATS")
    parser.add_argument("--images", type=int, default=5, help="largest number of predictions that differ")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()  # before the imports, since -h needs no torch
common.need("numpy", "torch")
import torch
import torch.nn.functional as F
import torch_comparison as tc
from torch import nn

try:
    import safetensors
except ImportError:
    safetensors = None

FILE = "weights.safetensors"
DAMAGED = (OSError, ValueError, KeyError, TypeError) + ((safetensors.SafetensorError,) if safetensors else ())


def fail(message):
    sys.exit(f"torch_load: {message}")


def read_weights(path):
    """Returns the tensors by name, and the metadata."""
    if safetensors:
        with safetensors.safe_open(path, "pt") as f:
            return {name: f.get_tensor(name) for name in f.keys()}, f.metadata()
    raw = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(raw, dtype=torch.float32, count=(end - begin) // 4, offset=start + begin)
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def build(tensors):
    """Builds the perceptron with these tensors as its state."""
    layers = []
    for i in range(len(tensors)):
        name = f"{2 * i}.weight"
        if name not in tensors:
            fail(f"{FILE} has {', '.join(sorted(tensors))} but no {name}")
        outputs, inputs = tensors[name].shape
        layers += [nn.ReLU()] if i else []
        layers.append(nn.Linear(inputs, outputs, bias=False))
    model = nn.Sequential(*layers)
    model.load_state_dict(tensors)
    return model


@torch.no_grad()
def evaluate(model, x, y, rows=2500):
    """Returns the mean loss of an image in nats, and the number of correct predictions."""
    loss, hits = 0.0, 0
    for xb, yb in zip(x.split(rows), y.split(rows)):
        out = model(xb)
        loss += F.cross_entropy(out, yb, reduction="sum").item()
        hits += (out.argmax(1) == yb).sum().item()
    return loss / len(x), hits


def logged(folder, epoch):
    """Returns the record of a whole epoch from the log."""
    try:
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["epoch"] == epoch and not record.get("interrupted"):
                return record
    except DAMAGED as err:
        fail(f"{folder}/metrics.jsonl was not written by train: {err}")
    fail(f"{folder}/metrics.jsonl has no whole epoch {epoch}, which the weights are of")


def main(args):
    torch.set_float32_matmul_precision("highest")
    try:
        tensors, metadata = read_weights(args.run / FILE)
        epoch, step = int(metadata["epoch"]), int(metadata["step"])
    except DAMAGED as err:
        fail(f"{args.run / FILE} was not written by train: {err}")
    device = torch.device(args.device)
    model = build(tensors).to(device)
    x, y = tc.load_samples(args.mnist, "t10k", device)
    loss, hits = evaluate(model, x, y)
    print(model)
    print(f"PyTorch {torch.__version__}  loss {loss:.6f}  accuracy {100 * hits / len(x):.2f} % of {len(x)} images")
    if step or not epoch:
        print(f"the weights are from step {step} of epoch {epoch + 1}, for which the run logged no validation")
        return
    record = logged(args.run, epoch)
    print(f"train, epoch {epoch}  loss {record['val_loss']:.6f}  accuracy {100 * record['val_acc']:.2f} %")
    apart = abs(hits - round(record["val_acc"] * len(x)))
    if abs(loss - record["val_loss"]) > args.loss_tolerance or apart > args.images:
        fail(f"the losses differ by {abs(loss - record['val_loss']):.2e} nats, {apart} predictions differ")


if __name__ == "__main__":
    main(asked)
