"""mlpool's model in PyTorch, for peers.py. A step is a CUDA graph, with the choice of its batch and the update."""

import math
import time

import torch
import torch.nn.functional as F

import common
import torch_comparison as tc

VERSION = torch.__version__
PRECISIONS = {"tf32": "high", "fp32": "highest"}  # as PyTorch names them


def captured(step, optimizer, at):
    """A CUDA graph's replay, which does what the step does on batch number at."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries get ready, which a graph cannot hold
        for _ in range(3):
            at.zero_()
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)  # the gradients are to be the graph's own
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class Trainer:
    def __init__(self, mnist, device):
        if device == "cuda" and not torch.cuda.is_available():
            raise common.Failed("PyTorch sees no GPU")
        self.cuda = device == "cuda"
        self.device = torch.cuda.get_device_name() if self.cuda else "the CPU"
        self.x, self.y = tc.load_samples(mnist, "train", torch.device(device))
        self.val_x, self.val_y = tc.load_samples(mnist, "t10k", torch.device(device))

    def train(self, job):
        """The ms of each epoch, and the accuracy after the last."""
        torch.set_float32_matmul_precision(PRECISIONS[job.precision])
        try:
            return self.epochs(job)
        finally:
            if self.cuda:
                torch.cuda.empty_cache()

    def epochs(self, job):
        x, y = self.x, self.y
        widths = job.widths()
        weights = [torch.zeros(shape, device=x.device, requires_grad=True) for shape in zip(widths, widths[1:])]
        optimizer = torch.optim.SGD(weights, job.learning_rate, **({"fused": True} if self.cuda else {}))
        whole, rest = divmod(len(x), job.bsz)
        order = torch.randperm(len(x), device=x.device)
        batches = order[: whole * job.bsz].view(whole, job.bsz)
        losses = torch.zeros(whole + bool(rest), device=x.device)
        at = torch.zeros(1, dtype=torch.int64, device=x.device)  # the batch's number, which a graph counts by itself

        def step(rows):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(tc.logits(x.index_select(0, rows), weights), y.index_select(0, rows))
            loss.backward()
            optimizer.step()
            losses.index_copy_(0, at, loss.detach().view(1))

        def whole_step():
            step(batches.index_select(0, at)[0])
            at.add_(1)

        def short_step():
            step(order[whole * job.bsz :])

        steps = [whole_step] * whole + [short_step] * bool(rest)
        if self.cuda:
            replays = {one: captured(one, optimizer, at) for one in dict.fromkeys(steps)}
            steps = [replays[one] for one in steps]
        torch.manual_seed(0)
        with torch.no_grad():
            for w in weights:
                limit = 1 / math.sqrt(len(w))
                w.uniform_(-limit, limit)

        ms = []
        for _ in range(1 + job.epochs):
            if self.cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            torch.randperm(len(x), device=x.device, out=order)
            at.zero_()
            for one in steps:
                one()
            losses.cpu()
            _, accuracy = tc.validate(weights, self.val_x, self.val_y, len(self.val_x))  # waits for the device
            ms.append(1e3 * (time.perf_counter() - start))
        return ms, accuracy
