"""mlpool's model and its training in PyTorch, for peers.py and numerics.py. On a GPU, a CUDA graph holds a step with the
choice of its batch and the update. On several GPUs each has a process, and the graph holds the all-reduces of
DistributedDataParallel."""

import itertools
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import common

VERSION = torch.__version__
PRECISIONS = {"tf32": "high", "fp32": "highest", "bf16": "highest", "fp64": "highest"}  # of products of float32


class Model(torch.nn.Module):
    """Layers without biases, each y = relu(x @ w), and a classifier."""

    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(w) for w in weights)

    def forward(self, x):
        weights = list(self.weights)
        for w in weights[:-1]:
            x = torch.relu(x @ w)
        return x @ weights[-1]


def autocast(precision, device):
    """Returns a context in which products are computed in bfloat16 if precision is bf16, and their results kept in it.
    It does not keep the casts of weights, so it may enclose many steps."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def load_samples(folder, prefix, device):
    """Reads images as rows of uint8, and their labels, onto the device."""
    (n, *_), images = common.read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)
    _, labels = common.read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1)
    x = torch.from_numpy(np.frombuffer(images, np.uint8).reshape(n, -1).copy()).to(device)
    return x, torch.from_numpy(np.frombuffer(labels, np.uint8).copy()).to(device).long()


def captured(step, optimizer, at, side):
    """Captures step in a CUDA graph and returns its replay, which runs batch number at. The capture uses the stream on
    which DistributedDataParallel was created."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warms libraries up outside the graph; DDP reads clocks in its first 10 steps
        for _ in range(11 if dist.is_initialized() else 3):
            at.zero_()
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)  # so that the graph allocates the gradients
    graph = torch.cuda.CUDAGraph()
    mode = "thread_local" if dist.is_initialized() else "global"  # NCCL's watchdog may query events meanwhile
    with torch.cuda.graph(graph, stream=side, capture_error_mode=mode):
        step()
    return graph.replay


class Trainer:
    def __init__(self, mnist, device, gpus=1):
        self.device, self.gpus, self.rank = torch.device(device), gpus, 0
        self.cuda = self.device.type == "cuda"
        if self.cuda and torch.cuda.device_count() < gpus:
            raise common.Failed(f"PyTorch sees {torch.cuda.device_count()} of {gpus} GPUs")
        if gpus > 1:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # incompatible with CUDA graphs
            self.rank = int(os.environ["RANK"])
            if self.cuda:
                torch.cuda.set_device(self.rank)
            dist.init_process_group("nccl" if self.cuda else "gloo")
        self.x, self.y = load_samples(mnist, "train", self.device)
        val_x, val_y = load_samples(mnist, "t10k", self.device)
        self.validated = len(val_x)
        self.val_x, self.val_y = (a.tensor_split(gpus)[self.rank].contiguous() for a in (val_x, val_y))

    @torch.no_grad()
    def validate(self, model, val_x):
        """Returns the mean loss and the accuracy on all GPUs; val_x are the images of this one. Waits for the device."""
        out = model(val_x)
        loss = F.cross_entropy(out, self.val_y, reduction="sum")
        sums = torch.stack([loss.double(), (out.argmax(1) == self.val_y).sum().double()])
        if self.gpus > 1:
            dist.all_reduce(sums)
        return (sums / self.validated).tolist()

    def train(self, initial, bsz, learning_rate, precision, shuffle):
        """Trains from the initial weights, [inputs, outputs] each. After each epoch it yields the milliseconds, the loss
        of each step and the accuracy; the first epoch compiles. bsz is a GPU's batch. shuffle writes the order of an
        epoch's samples to a tensor."""
        torch.set_float32_matmul_precision(PRECISIONS[precision])
        kind = torch.float64 if precision == "fp64" else torch.float32
        x, val_x = ((a.to(kind) / 255).to(torch.bfloat16 if precision == "bf16" else kind) for a in (self.x, self.val_x))
        model = local = Model([w.clone() for w in initial])
        weights = list(local.parameters())
        side = torch.cuda.Stream() if self.cuda else None
        if self.gpus > 1:
            with torch.cuda.stream(side):
                model = torch.nn.parallel.DistributedDataParallel(local, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(weights, learning_rate, **({"fused": True} if self.cuda else {}))
        whole, rest = divmod(len(x), bsz * self.gpus)
        order = torch.arange(len(x), device=self.device)
        in_batches, last = order.tensor_split([len(x) - rest])
        batches = in_batches.view(whole, self.gpus, bsz)[:, self.rank]  # of this GPU
        last = last.tensor_split(self.gpus)[self.rank]  # GPUs may have different numbers of rows, or none
        losses = torch.zeros(whole + bool(rest), dtype=kind, device=self.device)
        at = torch.zeros(1, dtype=torch.int64, device=self.device)  # the number of the batch, which the graph increments

        def step(rows, loss_of=F.cross_entropy):
            optimizer.zero_grad(set_to_none=True)
            with autocast(precision, self.device):
                loss = loss_of(model(x.index_select(0, rows)), self.y.index_select(0, rows))
            loss.backward()
            optimizer.step()
            losses.index_copy_(0, at, loss.detach().view(1))

        def whole_step():
            step(batches.index_select(0, at)[0])
            at.add_(1)

        def share(out, labels):
            """A loss whose mean over the GPUs is the mean of all rows."""
            return F.cross_entropy(out, labels, reduction="sum") * (self.gpus / rest)

        def short_step():
            step(last, F.cross_entropy if self.gpus == 1 else share)

        steps = [whole_step] * whole + [short_step] * bool(rest)
        if self.cuda:
            replays = {one: captured(one, optimizer, at, side) for one in dict.fromkeys(steps)}
            steps = [replays[one] for one in steps]
            with torch.no_grad():
                for w, first in zip(weights, initial):  # the steps before the capture changed them
                    w.copy_(first)
        while True:
            if self.cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            shuffle(order)
            at.zero_()
            for one in steps:
                one()
            if self.gpus > 1:
                dist.all_reduce(losses)
                losses /= self.gpus
            found = losses.cpu()
            with autocast(precision, self.device):
                _, accuracy = self.validate(local, val_x)
            yield 1e3 * (time.perf_counter() - start), found.clone(), accuracy


def measure(job, mnist, device):
    """Trains a job of peers.py. Returns the milliseconds of each epoch and the last accuracy."""
    trainer = Trainer(mnist, device, job.gpus)
    torch.manual_seed(0)
    widths = job.widths()
    initial = []
    for shape in zip(widths, widths[1:]):
        limit = 1 / math.sqrt(shape[0])
        initial.append(torch.empty(shape, device=device).uniform_(-limit, limit))

    def shuffle(order):
        torch.randperm(len(order), device=device, out=order)

    epochs = trainer.train(initial, job.bsz, job.learning_rate, job.precision, shuffle)
    found = list(itertools.islice(epochs, 1 + job.epochs))
    return [ms for ms, _, _ in found], found[-1][2]
