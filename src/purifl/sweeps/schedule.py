"""Carrying out a sweep: what is to be done, who does it, and how far it is."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from purifl.errors import ConfigError, DataError
from purifl.experiment import Experiment
from purifl.logs import Log, check_log
from purifl.result import Result
from purifl.sweeps.cluster import Cluster
from purifl.sweeps.grid import Sweep
from purifl.sweeps.local import Local
from purifl.sweeps.store import Store
from purifl.sweeps.table import called, write_table
from purifl.sweeps.work import Job, Outcome

EngineName = Literal["local", "ray"]
_LOOK = 0.5
"""Seconds between two looks at what other sweeps on the same store have done."""


class Engine(Protocol):
    """What carries jobs out, several at a time."""

    @property
    def capacity(self) -> int:
        """How many at a time."""

    def submit(self, key: Hashable, job: Job) -> None:
        """Begin a job, known as ``key``."""

    def wait(self, timeout: float) -> list[tuple[Hashable, Outcome]]:
        """The jobs that ended; returns at the first, or after ``timeout`` seconds."""

    def close(self) -> None:
        """End everything that is under way."""


@dataclass
class Progress:
    """How far a sweep is.

    Attributes:
        total: Runs altogether.
        done: Finished, also by others or before.
        skipped: Of these, finished before the sweep began.
        running: Under way here.
        elsewhere: Under way in another sweep on the same store.
        failed: Not possible.
        seconds_left: An estimate from the runs finished here; None before the first.
        latest: The run that just ended, and the reason if it failed.
        called: What a run that just failed is called, to tell it from the others.
    """

    total: int
    done: int = 0
    skipped: int = 0
    running: int = 0
    elsewhere: int = 0
    failed: int = 0
    seconds_left: float | None = None
    latest: tuple[Experiment, str | None] | None = None
    called: str = ""


@dataclass
class Report:
    """What a sweep gave.

    Attributes:
        store: Where the runs are.
        experiments: All of them, in the order of the grid.
        skipped: How many were finished before.
        failures: The experiments that could not be run, and why.
    """

    store: Store
    experiments: list[Experiment]
    skipped: int = 0
    failures: list[tuple[Experiment, str]] = field(default_factory=list)

    def results(self) -> list[Result]:
        """The finished runs, in the order of the grid."""
        return self.store.results(self.experiments)


OnProgress = Callable[[Progress], None]


def sweep(
    what: Sweep | Mapping[str, Any] | Path | str | Sequence[Experiment],
    store: Path | str,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    known: Sequence[Path | str] = (),
    log: Log | None = None,
    on_progress: OnProgress | None = None,
) -> Report:
    """Run every experiment of a sweep that the store does not have yet.

    Finished runs are skipped and interrupted ones resumed; what runs in another sweep on the same store is waited for.
    A run that fails is reported and does not stop the rest. A script that calls this needs an
    ``if __name__ == "__main__":``, as always with processes.

    Args:
        what: The sweep, its settings, a file with them, or the experiments themselves.
        store: Folder of the runs.
        workers: Runs at a time; as many as cores, two for each GPU, or as many as a cluster has room for if not given.
        engine: Processes on this machine, or a Ray cluster.
        address: Of the cluster; one is started on this machine if not given.
        known: Tables of runs that were done elsewhere, exported as Parquet; these are finished, too.
        log: Where the metrics shall go besides.
        on_progress: Called whenever something changes, and twice a second.
    """
    if workers is not None and workers < 1:
        raise ConfigError("workers", workers, "it should be at least 1")
    if engine not in get_args(EngineName):
        raise ConfigError("engine", engine, f"one of {', '.join(get_args(EngineName))}")
    tables = tuple(Path(file) for file in known)
    if address is not None and engine != "ray":
        raise ConfigError("address", address, "it is for engine 'ray'")
    check_log(log)
    experiments = _experiments(what)
    if engine == "local":
        check_data(experiments, Store(Path(store), tables))
    schedule = _Schedule(Store.adopting(store, tables, experiments), experiments, log, on_progress or (lambda _: None))
    if schedule.queue:
        devices = {experiment.device for experiment in experiments}
        chosen = Local(workers, devices) if engine == "local" else Cluster(workers, devices, address)
        try:
            schedule.carry_out(chosen)
        finally:
            chosen.close()
    write_table(schedule.store)
    return schedule.report


def check_data(experiments: Sequence[Experiment], store: Store) -> None:
    """Refuse to begin where not one run finds its data; where some do, the others fail with the reason."""
    missing = None
    for source in {each.dataset.name: each.dataset for each in experiments}.values():
        try:
            source.check()
        except DataError as error:
            missing = missing or error
        else:
            return
    if missing is not None and not all(map(store.has, experiments)):
        raise missing


def _experiments(what: Sweep | Mapping[str, Any] | Path | str | Sequence[Experiment]) -> list[Experiment]:
    if isinstance(what, Path | str):
        what = Sweep.read(Path(what))
    if isinstance(what, Mapping):
        what = Sweep.parse(dict(what))
    return what.experiments() if isinstance(what, Sweep) else list({each.digest(): each for each in what}.values())


class _Schedule:
    """The runs still to do, and those under way."""

    def __init__(self, store: Store, experiments: list[Experiment], log: Log | None, tell: OnProgress) -> None:
        self.store, self._log, self._tell = store, log, tell
        todo = [experiment for experiment in experiments if not store.has(experiment)]
        skipped = len(experiments) - len(todo)
        self.report = Report(store, experiments, skipped)
        datasets = list(dict.fromkeys(each.dataset.name for each in todo))  # a worker keeps the one it has read last
        self.queue = deque(sorted(todo, key=lambda each: datasets.index(each.dataset.name)))
        self._elsewhere: list[tuple[float, Experiment]] = []
        self._progress = Progress(len(experiments), done=skipped, skipped=skipped)
        self._running: dict[Hashable, Experiment] = {}
        self._spent: list[float] = []
        self._capacity = 1
        self._noted: set[str] = set()
        self._update()

    def carry_out(self, engine: Engine) -> None:
        """Until every run is finished or has failed."""
        while self.queue or self._running or self._elsewhere:
            self._look_again()
            self._capacity = engine.capacity
            while self.queue and len(self._running) < self._capacity:
                self._begin(engine, self.queue.popleft())
            self._update()
            if not self._running:
                time.sleep(_LOOK)
                continue
            for key, outcome in engine.wait(_LOOK):
                self._end(self._running.pop(key), outcome)

    def _begin(self, engine: Engine, experiment: Experiment) -> None:
        folder = self.store.folder(experiment)
        if folder.finished:
            self._end(experiment, Outcome("finished"))
            return
        self._running[experiment.digest()] = experiment
        engine.submit(experiment.digest(), Job(experiment.to_dict(), str(folder.path.absolute()), self._log))

    def _end(self, experiment: Experiment, outcome: Outcome) -> None:
        progress, reason = self._progress, outcome.reason or "no reason was given"
        for note in set(outcome.notes) - self._noted:
            logging.getLogger("purifl").warning("%s", note)
        self._noted |= set(outcome.notes)
        if outcome.state == "busy":
            self._elsewhere.append((time.monotonic() + _LOOK, experiment))
            return
        if outcome.state == "failed":
            self.store.fail(experiment, reason)
            self.report.failures.append((experiment, reason))
            progress.failed, progress.latest = progress.failed + 1, (experiment, reason)
            progress.called = called(experiment, self.report.experiments)
        else:
            self.store.succeed(experiment)
            progress.done, progress.latest = progress.done + 1, (experiment, None)
            self._spent += [outcome.seconds] if outcome.seconds else []
        self._update()
        progress.latest = None

    def _look_again(self) -> None:
        """Try the runs of others again, after a while: they are finished, or were given up."""
        due = [experiment for when, experiment in self._elsewhere if when <= time.monotonic()]
        self._elsewhere = [(when, each) for when, each in self._elsewhere if each not in due]
        self.queue.extend(due)

    def _update(self) -> None:
        progress = self._progress
        progress.running, progress.elsewhere = len(self._running), len(self._elsewhere)
        left = progress.total - progress.done - progress.failed
        mean = sum(self._spent) / len(self._spent) if self._spent else None
        progress.seconds_left = None if mean is None or not left else mean * max(1.0, left / self._capacity)
        self._tell(progress)
