"""Runs in worker processes on this machine, which stay alive from one run to the next."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Hashable, Sequence
from multiprocessing import connection, get_context, parent_process
from typing import Any

import torch

from purifl.engines.pool import cores
from purifl.simulation import available
from purifl.sweeps.work import Job, Outcome, work

RUNS_PER_GPU = 2
"""One computes while the other prepares its round."""

_context = get_context("spawn")


class _Worker:
    """A process that does one job after the other, on one GPU where it is told which."""

    def __init__(self, gpu: str | None) -> None:
        self.gpu = gpu
        self.connection, far = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(far, gpu), daemon=True)
        self.process.start()
        far.close()

    def takes(self, job: Job) -> bool:
        """Whether it could be told what to do; a process that has died cannot."""
        try:
            self.connection.send(job)
        except OSError:
            return False
        return True

    def outcome(self) -> Outcome:
        """What came back, or that nothing ever will."""
        try:
            found: Outcome = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            return Outcome("failed", reason=f"its worker process was ended {how}", unforeseen=True)
        return found

    def stop(self) -> None:
        """End it now; a run in it can be resumed."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Local:
    """Several jobs at a time, each in a process of its own; one that dies is replaced and costs its own run only."""

    def __init__(self, workers: int | None, devices: set[str]) -> None:
        for device in sorted(devices):
            available(device)
        gpus = _visible_gpus() if devices == {"cuda"} else []
        self.capacity = workers or (RUNS_PER_GPU * len(gpus) if gpus else cores())
        places: list[str | None] = list(gpus) if len(gpus) > 1 else [None]
        self._free = [places[k % len(places)] for k in reversed(range(self.capacity))]
        self._idle: list[_Worker] = []
        self._at: dict[_Worker, Hashable] = {}

    def submit(self, key: Hashable, job: Job) -> None:
        """Give a job, known as ``key``, to an idle worker; there must be fewer than ``capacity`` under way."""
        while self._idle:
            worker = self._idle.pop()
            if worker.takes(job):
                self._at[worker] = key
                return
            self._discard(worker)
        worker = _Worker(self._free.pop())
        self._at[worker] = key
        worker.takes(job)  # where a new one has died already, its outcome says so

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """What was done meanwhile; returns at the first."""
        ready: Sequence[Any] = connection.wait([worker.connection for worker in self._at], timeout)
        ended = [worker for worker in self._at if worker.connection in ready]
        return [(self._at.pop(worker), self._received(worker)) for worker in ended]

    def _received(self, worker: _Worker) -> Outcome:
        outcome = worker.outcome()
        if outcome.unforeseen:
            self._discard(worker)
        else:
            self._idle.append(worker)
        return outcome

    def _discard(self, worker: _Worker) -> None:
        """End a worker, and make room for another in its place."""
        worker.stop()
        self._free.append(worker.gpu)

    def close(self) -> None:
        """End all workers, at once."""
        for worker in (*self._idle, *self._at):
            worker.stop()
        self._idle, self._at = [], {}


def _visible_gpus() -> list[str]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them."""
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",") if len(named.split(",")) == count else [str(k) for k in range(count)]


def _serve(jobs: connection.Connection, gpu: str | None) -> None:
    """A worker's life. Ctrl-C is its parent's business, and it does not outlive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    while True:
        try:
            job: Job = jobs.recv()
        except EOFError:
            return
        jobs.send(work(job))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
