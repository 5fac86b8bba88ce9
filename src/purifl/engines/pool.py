"""Forked single-threaded worker processes, one per core, that share memory with this one.

What a worker needs it has from the fork; what changes lies in memory made by :func:`shared` before it. So a round
costs a message of a few bytes to each worker and an empty answer from each, whatever the size of the model.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import multiprocessing
import os
import signal
import struct
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.util import Finalize

import torch
from torch import Tensor

from purifl.errors import ConfigError, PuriflError

Work = Callable[[int, int], None]

_START_SECONDS = 60.0  # a worker that has not begun by then hangs


class WorkerLostError(PuriflError):
    """A worker process that ended or never began. Nothing was wrong with its work as far as anyone knows."""


class WorkerError(RuntimeError):
    """An exception in a worker process, with its traceback as text."""


def shared(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor of zeros that this process and those forked from it read and write together.

    It lies in an anonymous mapping: no file, no name, no limit but the machine's memory, and gone with the last
    process that has it.
    """
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


def cores() -> int:
    """How many workers to use: ``PURIFL_WORKERS``, or the cores this process may run on.

    One in a process that :mod:`multiprocessing` started: whoever runs experiments side by side in processes has
    given the cores away already.
    """
    if given := os.environ.get("PURIFL_WORKERS"):
        if not given.isdecimal() or int(given) < 1:
            raise ConfigError("PURIFL_WORKERS", given, "give the number of worker processes, 1 or more")
        return int(given)
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available() -> bool:
    """Whether workers can be forked here: on Linux and its like, outside daemonic processes.

    macOS has fork, but its system libraries do not survive it.
    """
    known = "fork" in multiprocessing.get_all_start_methods() and os.uname().sysname != "Darwin"
    return known and not multiprocessing.current_process().daemon


def share_out(items: Sequence[int], costs: Sequence[float], workers: int) -> list[list[int]]:
    """The items of each worker: the costliest first, each to the worker that has least to do so far.

    Example:
        >>> share_out([0, 1, 2, 3], [1.0, 5.0, 2.0, 2.0], 2)
        [[1], [2, 3, 0]]
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for item in sorted(items, key=lambda item: (-costs[item], item)):
        least = loads.index(min(loads))
        shares[least].append(item)
        loads[least] += costs[item]
    return shares


class Pool:
    """Workers that call ``work(item, round)`` for their share of the items.

    They are forked at the first :meth:`run`, with everything ``work`` refers to as it is then; what it reads or
    writes later must be :func:`shared`. They end with :meth:`close`, with this object, or with this process, however
    it ends. A pool that was closed forks again when it is next used.

    Args:
        work: What to do with an item in a round.
        costs: Of each item, to share them out evenly: any measure of its work, such as a client's number of samples.
        workers: Number of processes.
        ahead: What to do with each item for the next round while that is awaited, if anything.
    """

    def __init__(self, work: Work, costs: Sequence[float], workers: int, ahead: Work | None = None) -> None:
        self._work, self._costs, self._workers, self._ahead = work, costs, workers, ahead
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        # multiprocessing runs it at exit before it asks what is left to end, by a SIGTERM that workers ignore
        Finalize(self, _end, (self._processes, self._pipes), exitpriority=0)
        _pools.add(self)

    def run(self, items: Sequence[int], round_: int) -> None:
        """Have the work done for every item; raises what the first failing worker raised, when all have answered."""
        self.start()
        shares = share_out(items, self._costs, self._workers)
        busy = [(k, share) for k, share in enumerate(shares) if share]
        with self._or_close():
            for k, share in busy:
                with self._lost(k):
                    self._pipes[k].send_bytes(struct.pack(f"<{1 + len(share)}q", round_, *share))
            failures = [text for text in [self._answer(k) for k, _ in busy] if text]
        if failures:
            raise WorkerError(failures[0])

    def start(self) -> None:
        """Fork the workers, unless they are there already; raises WorkerLostError where that does not succeed."""
        if self._processes:
            return
        with self._or_close():
            for k in range(self._workers):
                try:
                    self._fork(k)
                except OSError as error:
                    raise WorkerLostError(f"worker process {k} could not be started: {error}") from error
            for k in range(self._workers):
                if not self._pipes[k].poll(_START_SECONDS):
                    raise WorkerLostError(f"worker process {k} did not begin within {_START_SECONDS:.0f} s")
                if text := self._answer(k):
                    raise WorkerLostError(f"worker process {k} could not begin: {text}")

    def _fork(self, k: int) -> None:
        """Start worker ``k``.

        Python 3.12 warns of forking beside other threads, which may hold a lock that then stays held in the child. A
        worker takes none but torch's, and only a thread that computes with torch at this very moment could hold
        those; its first answer shows that it got past them.
        """
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        self._pipes.append(ours)
        arguments = theirs, self._work, self._ahead, k, self._workers
        process = context.Process(target=_serve, args=arguments, name=f"purifl-{k}", daemon=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            process.start()
        theirs.close()
        self._processes.append(process)

    def close(self) -> None:
        """End the workers, at once and without asking: all they have is shared memory."""
        _end(self._processes, self._pipes)

    @contextmanager
    def _or_close(self) -> Iterator[None]:
        """End the workers if they are interrupted: a late answer must not be taken for one to the next question."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _answer(self, k: int) -> str:
        """What worker ``k`` says at the end of its share: nothing, or what went wrong."""
        with self._lost(k):
            return self._pipes[k].recv_bytes().decode()

    @contextmanager
    def _lost(self, k: int) -> Iterator[None]:
        """A pipe that breaks means that worker ``k`` has ended; say how."""
        try:
            yield
        except (EOFError, ConnectionError):
            self._processes[k].join()
            code = self._processes[k].exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise WorkerLostError(
                f"worker process {k} ended ({how}), perhaps for want of memory; PURIFL_WORKERS=1 computes without"
            ) from None

    def _forget(self) -> None:
        """In a process forked from this one: the workers are not its own."""
        for pipe in self._pipes:
            pipe.close()
        self._processes.clear()
        self._pipes.clear()


def _end(processes: list[ForkProcess], pipes: list[Connection]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
        process.close()
    for pipe in pipes:
        pipe.close()
    processes.clear()
    pipes.clear()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_all() -> None:
    """A child must neither keep other workers' pipes open, or they would outlive the parent, nor end them."""
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _serve(pipe: Connection, work: Work, ahead: Work | None, k: int, workers: int) -> None:
    """A worker's life: say that it is ready, then do shares of the work until the pipe is closed."""
    try:
        _find_place(k, workers)
        pipe.send_bytes(_begin().encode())
        while True:
            round_, *share = (number for (number,) in struct.iter_unpack("<q", pipe.recv_bytes()))
            pipe.send_bytes(_do(pipe, work, share, round_).encode())
            if ahead is not None:
                with suppress(Exception):  # what cannot be done ahead is tried again in its round, and told then
                    _do_ahead(pipe, ahead, share, round_ + 1)
    except (EOFError, ConnectionError):
        return


def _begin() -> str:
    """Make this process a worker; what stands in the way of that, if anything does.

    What interrupts all processes of a group is the parent's business, which then ends its workers.
    One thread is a must, not a choice: OpenMP's other threads did not survive the fork, and it would wait for them.
    A step of autograd shows at once where that cannot follow a fork, as on machines with a GPU it was used on before.
    """
    for interruption in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interruption, signal.SIG_IGN)
    gc.freeze()  # what was here before is the parent's to collect
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)  # whatever the parent was about when it forked
    keep_memory()
    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return str(error)
    return ""


def _find_place(k: int, workers: int) -> None:
    """Keep worker ``k`` out of the others' way.

    Each has a core of its own where there is one for each: left alone, two are now and then woken on the same. And
    it does not take the core of the parent that wakes it, or the others would be woken late. Both together save a
    twentieth of a round of 25 ms.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    with suppress(OSError):  # where this is not allowed, it is slower
        places = sorted(os.sched_getaffinity(0))
        if len(places) == workers:
            os.sched_setaffinity(0, {places[k]})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_memory(for_all_threads: bool = False) -> None:
    """Have glibc keep what is freed: asking again for a batch's activations costs a fifth of a small step.

    It keeps it for the thread that had it, or ``for_all_threads``: then what one of them received another can compute
    in. To be said before there are other threads.
    """
    trim_threshold, mmap_threshold, arenas, most = -1, -3, -8, 1 << 30
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, most)
        mallopt(mmap_threshold, most)
        if for_all_threads:
            mallopt(arenas, 1)


def _do(pipe: Connection, work: Work, share: Sequence[int], round_: int) -> str:
    """Do a share, unless the parent is gone; the traceback of what went wrong, if anything did."""
    for item in share:
        if pipe.poll():  # no question comes before the answer to the last, so this is the end
            raise EOFError
        try:
            work(item, round_)
        except Exception:
            return f"item {item}, round {round_}:\n{traceback.format_exc()}"
    return ""


def _do_ahead(pipe: Connection, ahead: Work, share: Sequence[int], round_: int) -> None:
    """Prepare a share for the next round, until that comes."""
    for item in share:
        if pipe.poll():
            return
        ahead(item, round_)
