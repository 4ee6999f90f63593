"""mlpool's model in PyTorch, for peers.py. A CUDA graph holds a step with the choice of its batch and the update. On
several GPUs each has a process, and the graph holds the all-reduces of DistributedDataParallel."""

import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import common
import torch_comparison as tc

VERSION = torch.__version__
PRECISIONS = {"tf32": "high", "fp32": "highest", "bf16": "highest"}  # of float32, as PyTorch names them


class Model(torch.nn.Module):
    def __init__(self, widths, device):
        super().__init__()
        shapes = zip(widths, widths[1:])
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes)

    def forward(self, x):
        return tc.logits(x, list(self.weights))


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


@torch.no_grad()
def initialize(weights):
    torch.manual_seed(0)
    for w in weights:
        limit = 1 / math.sqrt(len(w))
        w.uniform_(-limit, limit)


class Trainer:
    def __init__(self, mnist, device, gpus):
        self.cuda, self.gpus, self.rank = device == "cuda", gpus, 0
        if self.cuda and torch.cuda.device_count() < gpus:
            raise common.Failed(f"PyTorch sees {torch.cuda.device_count()} of {gpus} GPUs")
        if gpus > 1:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # incompatible with CUDA graphs
            self.rank = int(os.environ["RANK"])
            if self.cuda:
                torch.cuda.set_device(self.rank)
            dist.init_process_group("nccl" if self.cuda else "gloo")
        self.x, self.y = tc.load_samples(mnist, "train", torch.device(device))
        val_x, val_y = tc.load_samples(mnist, "t10k", torch.device(device))
        self.validated = len(val_x)
        self.val_x, self.val_y = (a.tensor_split(gpus)[self.rank].contiguous() for a in (val_x, val_y))

    def train(self, job):
        """Returns the milliseconds of each epoch and the last accuracy."""
        torch.set_float32_matmul_precision(PRECISIONS[job.precision])
        try:
            return self.epochs(job)
        finally:
            if self.cuda:
                torch.cuda.empty_cache()

    def accuracy(self, weights, val_x):
        """The accuracy on all GPUs; val_x are the images of this one. Waits for the device."""
        _, accuracy = tc.validate(weights, val_x, self.val_y, len(val_x))
        if self.gpus == 1:
            return accuracy
        hits = torch.tensor(accuracy * len(val_x), device=val_x.device)
        dist.all_reduce(hits)
        return hits.item() / self.validated

    def epochs(self, job):
        kind = torch.bfloat16 if job.precision == "bf16" else torch.float32
        x, y, val_x = self.x.to(kind), self.y, self.val_x.to(kind)
        model = Model(job.widths(), x.device)
        weights = list(model.parameters())
        side = torch.cuda.Stream() if self.cuda else None
        if self.gpus > 1:
            with torch.cuda.stream(side):
                model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(weights, job.learning_rate, **({"fused": True} if self.cuda else {}))
        whole, rest = divmod(len(x), job.bsz * self.gpus)
        order = torch.randperm(len(x), device=x.device)
        in_batches, last = order.tensor_split([len(x) - rest])
        batches = in_batches.view(whole, self.gpus, job.bsz)[:, self.rank]  # of this GPU
        last = last.tensor_split(self.gpus)[self.rank]  # GPUs may have different numbers of rows, or none
        losses = torch.zeros(whole + bool(rest), device=x.device)
        at = torch.zeros(1, dtype=torch.int64, device=x.device)  # the number of the batch, which the graph increments

        def step(rows, loss_of=F.cross_entropy):
            optimizer.zero_grad(set_to_none=True)
            with tc.autocast(job.precision, x.device):
                loss = loss_of(model(x.index_select(0, rows)), y.index_select(0, rows))
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
        initialize(weights)

        ms = []
        for _ in range(1 + job.epochs):
            if self.cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            torch.randperm(len(x), device=x.device, out=order)
            at.zero_()
            for one in steps:
                one()
            if self.gpus > 1:
                dist.all_reduce(losses)
                losses /= self.gpus
            losses.cpu()
            with tc.autocast(job.precision, x.device):
                accuracy = self.accuracy(weights, val_x)
            ms.append(1e3 * (time.perf_counter() - start))
        return ms, accuracy
