"""mlpool's model in JAX, for peers.py. An epoch is one jitted function: its shuffle, all its steps, its validation."""

import functools
import gc
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

import common

VERSION = jax.__version__
PRECISIONS = {"tf32": "tensorfloat32", "fp32": "highest"}  # as JAX names them


def logits(weights, x):
    for w in weights[:-1]:
        x = jax.nn.relu(x @ w)
    return x @ weights[-1]


def mean_loss(weights, x, y):
    return cross_entropy(logits(weights, x), y)


def cross_entropy(out, y):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], axis=1))


def run_epoch(weights, key, x, y, val_x, val_y, *, bsz, learning_rate):
    """The new weights, the loss of each step, and the loss and the accuracy of the validation."""
    order = jax.random.permutation(key, len(x))
    whole = len(x) // bsz

    def step(weights, rows):
        loss, gradients = jax.value_and_grad(mean_loss)(weights, x[rows], y[rows])
        return [w - learning_rate * g for w, g in zip(weights, gradients)], loss

    weights, losses = jax.lax.scan(step, weights, order[: whole * bsz].reshape(whole, bsz))
    if whole * bsz < len(x):  # a scan has batches of one size: the short last one is a step of its own
        weights, loss = step(weights, order[whole * bsz :])
        losses = jnp.append(losses, loss)
    out = logits(weights, val_x)
    return weights, losses, cross_entropy(out, val_y), jnp.mean(out.argmax(axis=1) == val_y)


class Trainer:
    def __init__(self, mnist, device):
        jax.config.update("jax_platforms", device)
        try:
            self.device = jax.devices()[0].device_kind
        except RuntimeError as err:
            raise common.Failed(f"JAX has no device {device}: {common.last_line(str(err))}") from err
        self.samples = [*self.load(mnist, "train"), *self.load(mnist, "t10k")]

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
            weights.append(jnp.asarray(limit * (2 * draw.random((inputs, outputs), np.float32) - 1)))
        epoch = jax.jit(
            functools.partial(run_epoch, bsz=job.bsz, learning_rate=job.learning_rate),
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
