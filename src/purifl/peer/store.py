"""What a peer keeps: an ordinary run folder, with its own rows in it, written before anything is said about a round."""

from __future__ import annotations

from contextlib import AbstractContextManager

from safetensors import SafetensorError

from purifl.experiment import Experiment
from purifl.folders import RunFolder
from purifl.locks import held
from purifl.metrics import Row
from purifl.peer.config import PeerConfig
from purifl.peer.turns import by_turns, end_turns, write_over
from purifl.result import Result
from purifl.state import State

WriteError = (OSError, SafetensorError)


class Store:
    """A peer's run folder."""

    def __init__(self, config: PeerConfig, experiment: Experiment) -> None:
        self.experiment, self._seconds = experiment, 0.0
        self.folder = RunFolder(config.folder)
        if not self.folder.begun:
            self.folder = RunFolder.create(config.folder, experiment)
        self.folder.keep_for_peer()
        self._done, self._torn = 0, False

    def alone(self) -> AbstractContextManager[None]:
        """Within it no other process can run the same peer; the system lets go of the lock however this one ends."""
        return held(self.folder.path)

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
        with by_turns(self.folder.checkpoint):
            self.folder.save(state, self.experiment, self._seconds + seconds, write_over)
        self._done, self._torn = int(state["round"]), False

    def finish(self, trust: list[Row], histogram: list[int], seconds: float) -> None:
        """All rounds are done."""
        end_turns(self.folder.checkpoint)
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
