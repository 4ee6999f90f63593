#!/usr/bin/env python3
"""Trains mlpool's model in PyTorch, from the same initial weights on the same batches
in the same order, in float32, to compare the two loss curves.

    build/train -export build/export configs/mnist.toml
    tools/torch_comparison.py build/export MNIST_DIR --log-dir logs/torch
    go run ./tools/plot -o both.png -smooth 100 mlpool=logs/mnist PyTorch=logs/torch

Needs numpy and torch. The model has `num_layers` hidden layers of `feat_dim` without
biases, each y = relu(x @ w), and a classifier of ten classes, trained by plain SGD on
softmax cross-entropy. The logs have train's format, one value a line: the loss of each
step, and the validation loss and accuracy (0 to 1) of each epoch.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leave no __pycache__ in tools
import common


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path, metavar="EXPORT_DIR", help="the folder of train -export")
    parser.add_argument("mnist", type=Path, metavar="MNIST_DIR", help="the four IDX files, gzipped or plain")
    parser.add_argument("--log-dir", type=Path, required=True, metavar="OUT")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda if torch sees a GPU")
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()  # before the imports, since -h needs no torch
common.need("numpy", "torch")
import numpy as np
import torch
import torch.nn.functional as F


KEYS = ["feat_dim", "num_layers", "bsz", "learning_rate", "num_epochs", "dataset"]  # of an export's run.json


def read_idx(folder, name, dims):
    """Reads the uint8 array in an IDX file, gzipped or plain."""
    try:
        shape, raw = common.read_idx(folder, name, dims)
    except common.Failed as err:
        sys.exit(f"torch_comparison: {err}")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def load_samples(folder, prefix, device, dtype=torch.float32):
    """Reads images as rows scaled to 0..1, and their labels, onto the device."""
    images = read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)
    labels = read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1)
    x = torch.from_numpy(images.reshape(len(images), -1).copy()).to(device).to(dtype) / 255
    y = torch.from_numpy(labels.copy()).to(device).long()
    return x, y


def no_export(export, why):
    sys.exit(f"torch_comparison: {export} was not written by train -export: {why}")


def read_run(export):
    """Reads the run.json of an export."""
    try:
        run = json.loads((export / "run.json").read_text())
        missing = [key for key in KEYS if key not in run]
    except (OSError, ValueError, TypeError) as err:
        no_export(export, err)
    if missing:
        no_export(export, f"its run.json has no {', '.join(missing)}")
    return run


def load_array(export, name):
    try:
        return np.load(export / name)
    except (OSError, ValueError, EOFError) as err:
        no_export(export, err)


def load_weights(export, run, device, dtype=torch.float32):
    """Reads the initial weights, [inputs, outputs] each."""
    weights = []
    for i in range(run["num_layers"] + 1):
        w = load_array(export, f"w{i}.npy")
        if w.dtype != np.float32 or w.ndim != 2:
            sys.exit(f"torch_comparison: {export}/w{i}.npy holds {w.dtype}{list(w.shape)}, not a float32 matrix")
        weights.append(torch.from_numpy(np.ascontiguousarray(w)).to(device, dtype).requires_grad_())
    return weights


def load_order(export, epoch, samples, device):
    """Reads the order in which an epoch takes the samples."""
    order = load_array(export, f"order{epoch}.npy")
    if not np.array_equal(np.sort(order), np.arange(samples)):
        sys.exit(f"torch_comparison: {export}/order{epoch}.npy is not a permutation of {samples} samples")
    return torch.from_numpy(order.astype(np.int64)).to(device)


def autocast(precision, device):
    """Returns a context in which products are computed in bfloat16 if precision is bf16, and their results kept in it.
    It does not keep the casts of weights, so it may enclose many steps."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def logits(x, weights):
    for w in weights[:-1]:
        x = torch.relu(x @ w)
    return x @ weights[-1]


def train_epoch(weights, x, y, bsz, learning_rate):
    """Trains one epoch on samples in their order, and returns the loss of each step."""
    losses = []
    for xb, yb in zip(x.split(bsz), y.split(bsz)):  # the last batch may be short
        loss = F.cross_entropy(logits(xb, weights), yb)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, g in zip(weights, gradients):
                w -= learning_rate * g
        losses.append(loss.detach())  # stays on the device: .item() would wait for it
    return torch.stack(losses)


@torch.no_grad()
def validate(weights, x, y, bsz):
    """Returns the mean loss of a sample and the accuracy."""
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    hits = torch.zeros((), dtype=torch.int64, device=x.device)
    for xb, yb in zip(x.split(bsz), y.split(bsz)):
        out = logits(xb, weights)
        loss += F.cross_entropy(out, yb, reduction="sum")
        hits += (out.argmax(1) == yb).sum()
    return loss.item() / len(x), hits.item() / len(x)


def write_log(path, values):
    # str writes the shortest decimal that reads back as the same float32; format does not.
    path.write_text("".join(str(v) + "\n" for v in values))


def main(args):
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_comparison: torch sees no GPU; use --device cpu")
    run = read_run(args.export)

    # TF32 would round the inputs of every product.
    torch.set_float32_matmul_precision("highest")
    device = torch.device(args.device)

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    train_x, train_y = load_samples(args.mnist, "train", device)
    val_x, val_y = load_samples(args.mnist, "t10k", device)
    weights = load_weights(args.export, run, device)
    bsz = run["bsz"]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU"
    print(
        f"PyTorch {torch.__version__} on {where}: {run['dataset']}, "
        f"feat_dim {run['feat_dim']}, num_layers {run['num_layers']}, bsz {bsz}, learning_rate {run['learning_rate']}"
    )

    train_losses, val_losses, val_accs = [], [], []
    for epoch in range(run["num_epochs"]):
        order = load_order(args.export, epoch, len(train_x), device)
        start = now()
        losses = train_epoch(weights, train_x[order], train_y[order], bsz, run["learning_rate"])
        trained = now()
        val_loss, val_acc = validate(weights, val_x, val_y, bsz)
        end = now()
        train_losses.extend(losses.cpu().numpy())
        val_losses.append(val_loss)
        val_accs.append(val_acc)
        print(
            f"epoch {epoch + 1}/{run['num_epochs']}  "
            f"train {1e3 * (trained - start):.1f} ms  validation {1e3 * (end - trained):.1f} ms  "
            f"loss {losses.mean().item():.4f}  val loss {val_loss:.4f}  val acc {100 * val_acc:.2f} %",
            flush=True,
        )

    args.log_dir.mkdir(parents=True, exist_ok=True)
    write_log(args.log_dir / "train_losses.txt", train_losses)
    write_log(args.log_dir / "val_losses.txt", val_losses)
    write_log(args.log_dir / "val_accs.txt", val_accs)


if __name__ == "__main__":
    main(asked)
