"""Loop's walks and tests shared out over single-threaded processes, one per core: the same bits, sooner."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from purifl.data import Samples
from purifl.engines.base import Job, Work
from purifl.engines.loop import Loop
from purifl.engines.pool import Pool, WorkerLostError, cores, shared

WORTH = 0.005
"""Seconds of work in a round from which on it is shared out. A round trip to the workers takes a tenth of a
millisecond, and forking them, once, some tens."""

_AHEAD = 16  # mini-batches drawn ahead at most, for memory's sake
_TEST_SETS = 2  # known to the workers at a time: the test split, and an attacker's probe


class Workers(Loop):
    """Trains and tests the clients in worker processes where that is worth it.

    Work is a list of items: the walks of a round, or the models to test. The first time, two of each kind are done in
    this process; by the time of the second (the first warms up) it is decided where the others are, from then on.
    Every item is done by the same code in one thread, so that this cannot change a bit of the result.

    Workers have the data from the moment they were forked; it must not be changed in place.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        rows, d, dtype = len(work.clients), len(self.position), self.position.dtype
        self._theta = shared(rows, d, dtype=dtype)
        self._walks = shared(len(self.jobs), d, dtype=dtype)
        self._tests: list[tuple[Samples, Tensor]] = []
        self._worth: dict[str, bool] = {}
        visits = [sum(end - start for start, end in self.bounds(len(job.data.y))) for job in self.jobs]
        costs = [*visits, *[1] * (rows * _TEST_SETS)]
        self._ahead: dict[int, tuple[int, tuple[Tensor, Samples]]] = {}
        self._pool = Pool(_weakly(self, Workers.do), costs, min(cores(), rows), _weakly(self, Workers.look_ahead))

    @property
    def vectors(self) -> int:
        """What is shared with the workers."""
        return len(self._theta) + len(self._walks)

    def walks(self, theta: Tensor, round_: int) -> Tensor:
        """(len(jobs), d) each walk, whoever takes it."""
        self._theta.copy_(theta)
        self._carry_out("walks", range(len(self.jobs)), round_)
        return self._walks.clone()

    def hits(self, theta: Tensor, samples: Samples) -> Tensor:
        """(len(theta), len(samples)) whether each model gives each sample its label."""
        if len(theta) > len(self._theta):
            return super().hits(theta, samples)
        k, rows = self._test_set(samples), len(self.work.clients)
        self._theta[: len(theta)] = theta
        start = len(self.jobs) + k * rows
        self._carry_out(f"tests {k}", range(start, start + len(theta)), 0)
        return self._tests[k][1][: len(theta)].clone()

    def _test_set(self, samples: Samples) -> int:
        """The place of ``samples`` among the test sets; workers forked before they were known are of no use."""
        for k, (known, _) in enumerate(self._tests):
            if known.x is samples.x and known.y is samples.y:
                return k
        self._pool.close()
        del self._tests[: len(self._tests) + 1 - _TEST_SETS]
        right = shared(len(self.work.clients), len(samples.y), dtype=torch.bool)
        self._tests.append((samples, right))
        return len(self._tests) - 1

    def _carry_out(self, kind: str, items: Sequence[int], round_: int) -> None:
        """Do all items, here or in the workers."""
        with _one_thread():
            if kind not in self._worth:
                seconds = [self._timed(item, round_) for item in items[:2]]
                self._worth[kind] = seconds[-1] * len(items) > WORTH and self._started()
                items = items[2:]
            if self._worth[kind]:
                self._pool.run(items, round_)
            else:
                for item in items:
                    self.do(item, round_)

    def _timed(self, item: int, round_: int) -> float:
        start = time.perf_counter()
        self.do(item, round_)
        return time.perf_counter() - start

    def _started(self) -> bool:
        """Whether there are workers, forking them if need be."""
        try:
            self._pool.start()
        except WorkerLostError as error:
            logging.getLogger("purifl").warning("clients are computed in one process: %s", error)
            return False
        return True

    def do(self, item: int, round_: int) -> None:
        """Do one item: a walk, by its place among the jobs, or after those the test of a model."""
        if item < len(self.jobs):
            job = self.jobs[item]
            self._walks[item] = self.walk(self._theta[job.row], job, round_)
            return
        k, row = divmod(item - len(self.jobs), len(self.work.clients))
        samples, right = self._tests[k]
        with torch.no_grad():
            right[row] = self._hits(self._theta[row], samples)

    def look_ahead(self, item: int, round_: int) -> None:
        """Draw a walk's first mini-batch while the others are awaited, in time that is nobody's."""
        if item < len(self.jobs) and len(self._ahead) < _AHEAD:
            job = self.jobs[item]
            self._ahead[id(job)] = round_, super().draw(job, round_)

    def draw(self, job: Job, round_: int) -> tuple[Tensor, Samples]:
        """The order of a walk's samples, and its first mini-batch; drawn ahead, if they were."""
        known, drawn = self._ahead.pop(id(job), (None, None))
        return drawn if drawn is not None and known == round_ else super().draw(job, round_)


def _weakly(engine: Workers, method: Callable[[Workers, int, int], None]) -> Callable[[int, int], None]:
    """``engine.method`` for a pool that must not keep the engine, which has it, alive."""
    reference = weakref.ref(engine)

    def do(item: int, round_: int) -> None:
        alive = reference()
        assert alive is not None  # the engine runs its pool
        method(alive, item, round_)

    return do


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within it torch computes in one thread, as workers do: sums in another order have other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
