"""What a peer keeps: an ordinary run folder, with its own rows in it, written before anything is said about a round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from purifl.errors import PeerError
from purifl.experiment import Experiment
from purifl.metrics import Row
from purifl.peer.config import PeerConfig
from purifl.runs import Result, RunFolder
from purifl.state import State

WriteError = (OSError, SafetensorError)
_PATIENCE = 2.0  # seconds, for one that is just ending


class Store:
    """A peer's run folder."""

    def __init__(self, config: PeerConfig, experiment: Experiment) -> None:
        self.experiment, self._seconds = experiment, 0.0
        self.folder = RunFolder(config.folder)
        if not self.folder.begun:
            self.folder = RunFolder.create(config.folder, experiment)
        self._done, self._torn = 0, False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it no other process can run the same peer; the system lets go of the lock however this one ends."""
        path = self.folder.path
        lock = FileLock(path.with_name(path.name + ".lock"))
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            raise PeerError(f"folder: {path} is in use: this peer is already running") from None
        try:
            yield
        finally:
            lock.release()

    def load(self) -> State | None:
        """The state after the last round that was finished; rows of later ones are dropped."""
        saved = self.folder.load(self.experiment)
        state, self._seconds = saved if saved is not None else (None, 0.0)
        self._done = int(state["round"]) if state is not None else 0
        self.folder.rewind(self._done)
        return state

    def commit(self, rows: list[Row], events: list[Row], state: State, seconds: float) -> None:
        """Keep a round, all or nothing; where that failed (a full disk, say) it can be tried again."""
        if self._torn:
            self.folder.rewind(self._done)
        self._torn = True
        self.folder.append(rows, events)
        self.folder.save(state, self.experiment, self._seconds + seconds)
        self._done, self._torn = int(state["round"]), False

    def finish(self, trust: list[Row], histogram: list[int], seconds: float) -> None:
        """All rounds are done."""
        rows, events = self.folder.rows("metrics.jsonl"), self.folder.rows("events.jsonl")
        self.folder.finish(
            Result(
                self.experiment,
                [],
                rows,
                events,
                trust,
                [histogram],
                self._seconds + seconds,
                folder=self.folder.path,
            )
        )
