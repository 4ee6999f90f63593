"""mlpool's model in JAX, for peers.py. An epoch is one jitted function: its shuffle, all its steps, its validation. On
several GPUs the rows of a batch are sharded over a mesh of them; weights and samples are on each."""

import functools
import gc
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import common

VERSION = jax.__version__
PRECISIONS = {"tf32": "tensorfloat32", "fp32": "highest"}  # as JAX names them


def logits(weights, x):
    for w in weights[:-1]:
        x = jax.nn.relu(x @ w)
    return x @ weights[-1]


def mean_loss(weights, x, y, samples):
    return cross_entropy(logits(weights, x), y, samples)


def cross_entropy(out, y, samples):
    return -mean(jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], axis=1)[:, 0], samples)


def padded(rows, devices):
    """The rows and as many zeros as make them divide among the devices."""
    return jnp.pad(rows, [(0, -len(rows) % devices)] + [(0, 0)] * (rows.ndim - 1))


def mean(values, samples):
    """Of the first ones: the others pad."""
    if len(values) == samples:
        return jnp.mean(values)
    return jnp.mean(values, where=jnp.arange(len(values)) < samples)


def run_epoch(weights, key, x, y, val_x, val_y, *, bsz, validated, learning_rate, sharded):
    """The new weights, the loss of each step, and the loss and the accuracy of the validation, of validated samples.
    bsz is that of all devices."""
    order = jax.random.permutation(key, len(x))
    whole = len(x) // bsz

    def step(weights, rows):
        samples = len(rows)
        rows = jax.lax.with_sharding_constraint(padded(rows, sharded.mesh.size), sharded)
        loss, gradients = jax.value_and_grad(mean_loss)(weights, x[rows], y[rows], samples)
        return [w - learning_rate * g for w, g in zip(weights, gradients)], loss

    weights, losses = jax.lax.scan(step, weights, order[: whole * bsz].reshape(whole, bsz))
    if whole * bsz < len(x):  # a scan has batches of one size: the short last one is a step of its own
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
        mesh = Mesh(np.array(devices[:gpus]), ("rows",), axis_types=(AxisType.Auto,))  # the compiler shards what follows
        self.sharded, self.replicated = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
        train, val = self.load(mnist, "train"), self.load(mnist, "t10k")
        self.validated = len(val[0])
        self.samples = [jax.device_put(a, self.replicated) for a in train]
        self.samples += [jax.device_put(padded(a, gpus), self.sharded) for a in val]

    @staticmethod
    def load(mnist, prefix):
        """Images scaled to 0..1, a row each, and their labels, on the device."""
        (n, *_), images = common.read_idx(mnist, f"{prefix}-images-idx3-ubyte", 3)
        _, labels = common.read_idx(mnist, f"{prefix}-labels-idx1-ubyte", 1)
        x = np.frombuffer(images, np.uint8).reshape(n, -1).astype(np.float32) / 255
        return jnp.asarray(x), jnp.asarray(np.frombuffer(labels, np.uint8), jnp.int32)

    def train(self, job):
        """The ms of each epoch, the first of which compiles, and the accuracy after the last."""
        with jax.default_matmul_precision(PRECISIONS[job.precision]):
            try:
                return self.epochs(job)
            finally:
                jax.clear_caches()
                gc.collect()

    def epochs(self, job):
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
            donate_argnums=0,  # the new weights may lie where the old ones do
        )
        ms = []
        for i in range(1 + job.epochs):
            key = jax.random.key(i)
            start = time.perf_counter()
            weights, *results = epoch(weights, key, *self.samples)
            _, _, accuracy = jax.device_get(results)  # waits for the device
            ms.append(1e3 * (time.perf_counter() - start))
        return ms, float(accuracy)
