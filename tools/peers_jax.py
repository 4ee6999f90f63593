"""mlpool's model in JAX, for peers.py. One jitted function shuffles, runs all steps and validates. On several GPUs the
rows of a batch are sharded over a mesh; every GPU has the weights and the samples."""

import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import common

VERSION = jax.__version__
PRECISIONS = {"tf32": "tensorfloat32", "fp32": "highest", "bf16": "bfloat16"}  # as JAX names them


def logits(weights, x):
    """Computes in the type of x, and returns float32. Gradients of the weights have the type of the weights."""
    weights = [w.astype(x.dtype) for w in weights]
    for w in weights[:-1]:
        x = jax.nn.relu(x @ w)
    return (x @ weights[-1]).astype(jnp.float32)


def mean_loss(weights, x, y, samples):
    return cross_entropy(logits(weights, x), y, samples)


def cross_entropy(out, y, samples):
    return -mean(jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], axis=1)[:, 0], samples)


def padded(rows, devices):
    """The rows, padded with zeros to a multiple of devices."""
    return jnp.pad(rows, [(0, -len(rows) % devices)] + [(0, 0)] * (rows.ndim - 1))


def mean(values, samples):
    """The mean of the first samples values; the rest is padding."""
    if len(values) == samples:
        return jnp.mean(values)
    return jnp.mean(values, where=jnp.arange(len(values)) < samples)


def run_epoch(weights, key, x, y, val_x, val_y, *, bsz, validated, learning_rate, sharded):
    """Returns the new weights, the loss of each step, and the loss and accuracy of the validated samples. bsz is the
    batch of all devices together."""
    order = jax.random.permutation(key, len(x))
    whole = len(x) // bsz

    def step(weights, rows):
        samples = len(rows)
        rows = jax.lax.with_sharding_constraint(padded(rows, sharded.mesh.size), sharded)
        loss, gradients = jax.value_and_grad(mean_loss)(weights, x[rows], y[rows], samples)
        return [w - learning_rate * g for w, g in zip(weights, gradients)], loss

    weights, losses = jax.lax.scan(step, weights, order[: whole * bsz].reshape(whole, bsz))
    if whole * bsz < len(x):  # a scan needs equal batches, so the short last one is a separate step
        weights, loss = step(weights, order[whole * bsz :])
        losses = jnp.append(losses, loss)
    out = logits(weights, val_x)
    return weights, losses, cross_entropy(out, val_y, validated), mean(out.argmax(axis=1) == val_y, validated)


class Trainer:
    def __init__(self, mnist, device, gpus):
        jax.config.update("jax_platforms", device)
        try:
            devices = jax.devices()
        except RuntimeError as err:
            raise common.Failed(f"JAX has no device {device}: {common.last_line(str(err))}") from err
        if len(devices) < gpus:
            raise common.Failed(f"JAX sees {len(devices)} of {gpus} devices")
        mesh = Mesh(np.array(devices[:gpus]), ("rows",), axis_types=(AxisType.Auto,))  # the compiler shards the computation
        self.sharded, self.replicated = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
        train, val = self.load(mnist, "train"), self.load(mnist, "t10k")
        self.validated = len(val[0])
        self.samples = [jax.device_put(a, self.replicated) for a in train]
        self.samples += [jax.device_put(padded(a, gpus), self.sharded) for a in val]

    @staticmethod
    def load(mnist, prefix):
        """Images as rows scaled to 0..1, and their labels, on the device."""
        (n, *_), images = common.read_idx(mnist, f"{prefix}-images-idx3-ubyte", 3)
        _, labels = common.read_idx(mnist, f"{prefix}-labels-idx1-ubyte", 1)
        x = np.frombuffer(images, np.uint8).reshape(n, -1).astype(np.float32) / 255
        return jnp.asarray(x), jnp.asarray(np.frombuffer(labels, np.uint8), jnp.int32)

    def images(self, job):
        """The samples with images of the type to compute in."""
        x, y, val_x, val_y = self.samples
        kind = jnp.bfloat16 if job.precision == "bf16" else jnp.float32
        return x.astype(kind), y, val_x.astype(kind), val_y

    def train(self, job):
        """Returns the milliseconds of each epoch, the first of which compiles, and the last accuracy."""
        samples = self.images(job)
        draw = np.random.default_rng(0)
        widths = job.widths()
        weights = []
        for inputs, outputs in zip(widths, widths[1:]):
            limit = 1 / math.sqrt(inputs)
            w = limit * (2 * draw.random((inputs, outputs), np.float32) - 1)
            weights.append(jax.device_put(w, self.replicated))
        epoch = jax.jit(
            functools.partial(
                run_epoch,
                bsz=job.bsz * job.gpus,
                validated=self.validated,
                learning_rate=job.learning_rate,
                sharded=self.sharded,
            ),
            out_shardings=self.replicated,
            donate_argnums=0,  # the new weights may overwrite the old ones
        )
        ms = []
        for i in range(1 + job.epochs):
            key = jax.random.key(i)
            start = time.perf_counter()
            weights, *results = epoch(weights, key, *samples)
            _, _, accuracy = jax.device_get(results)  # waits for the device
            ms.append(1e3 * (time.perf_counter() - start))
        return ms, float(accuracy)


def measure(job, mnist, device):
    """Trains a job of peers.py. Returns the milliseconds of each epoch and the last accuracy."""
    with jax.default_matmul_precision(PRECISIONS[job.precision]):
        return Trainer(mnist, device, job.gpus).train(job)
