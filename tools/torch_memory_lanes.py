"""GPUs and the worker processes of torch_memory.py on them, and tasks that are spread over the GPUs."""

import concurrent.futures
import queue
import sys
import threading
from pathlib import Path

from common import Failed, Workers
from torch_memory_worker import environment


def say(message):
    print(f"torch_memory: {message}", file=sys.stderr, flush=True)


def worker_command(allocator, args):
    program = str(Path(__file__).with_name("torch_memory.py"))
    return [sys.executable, program, "--worker", allocator, "--mlpool", str(args.mlpool), "--timeout", str(args.timeout)]


class Lane:
    """A GPU and its workers, one for each allocator; they start when they are needed."""

    def __init__(self, gpu, args):
        self.gpu, self.args = gpu, args
        self.workers, self.closed, self.lock = {}, False, threading.Lock()
        self.hello = {}

    def start(self, allocator, ranks=({},), gpus=None):
        """Starts a worker, or one for each rank."""
        with self.lock:
            if self.closed:
                raise Failed("interrupted")
            self.stop(allocator)
            env = environment(allocator, gpus or [self.gpu])
            self.workers[allocator] = Workers(worker_command(allocator, self.args), [env | rank for rank in ranks], self.args.timeout)

    def greet(self, allocator):
        """Waits until a worker has imported torch."""
        self.hello = self.answer(allocator)

    def answer(self, allocator, request=None):
        """Returns a worker's answer. A worker that fails to give one is ended."""
        try:
            answer = self.workers[allocator].ask(request)
        except (Failed, ValueError, OSError) as err:  # ValueError: the worker was closed meanwhile
            self.stop(allocator)
            raise Failed(f"{allocator}: {err}") from err
        if "failed" in answer:
            raise Failed(f"{allocator}: {answer['failed']}")
        return answer

    def ask(self, allocator, **request):
        """Returns the answer to a request in a process forked from the allocator's worker."""
        if allocator not in self.workers:
            self.start(allocator)
            self.greet(allocator)
        return self.answer(allocator, request | {"fork": True})

    def stop(self, allocator):
        if worker := self.workers.pop(allocator, None):
            worker.close()

    def close(self):
        with self.lock:
            self.closed = True
            for worker in list(self.workers.values()):
                worker.kill()

    def ended(self):
        for allocator in list(self.workers):
            self.stop(allocator)


def spread(lanes, tasks):
    """Runs tasks, functions of a lane, with one at a time on each. Returns their results, None for those that failed."""
    free = queue.SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def run(task):
        lane = free.get()
        try:
            return task(lane)
        except Failed as err:
            if not lane.closed:
                say(err)
            return None
        finally:
            free.put(lane)

    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as threads:
        futures = [threads.submit(run, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            for lane in lanes:
                lane.close()  # so that no thread waits for an answer
            raise
