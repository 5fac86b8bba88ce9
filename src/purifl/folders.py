"""Run folders: the experiment, a row of metrics per round, events, a checkpoint, the result.

    experiment.json         what is being run
    metrics.jsonl           one row per round, readable while running; with it the trust on each edge, in the order
                            in which result.json lists them, up to 10,000 edges
    events.jsonl            every cut and re-admission of an edge, with its round
    checkpoint.safetensors  everything the next round depends on, replaced atomically after each round
    result.json             written last: a run that has it is finished
    lock                    held by the process that runs it, and gone when it is finished
    of-a-peer               where it is what one peer of a network keeps, with which no simulation goes on

A round's rows are written before its checkpoint, and rows beyond the checkpoint are dropped on resuming,
so a run killed at any moment loses at most the round in progress. Many short runs may give saving a share of their time
only (``saving`` in `runs.py`): where a round is over sooner than that, several go into one checkpoint, and are lost
together.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from purifl.errors import ConfigError, RunError
from purifl.experiment import Experiment
from purifl.metrics import Row
from purifl.phases import phase
from purifl.result import Result
from purifl.state import State
from purifl.stored import check_events, check_result, check_rounds


class Write(Protocol):
    """Writes tensors to a safetensors file."""

    def __call__(self, tensors: State, filename: Path, metadata: dict[str, str]) -> None:
        """Write them."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _file(self, name: str) -> Path:
        return self.path / name

    @property
    def checkpoint(self) -> Path:
        """Where the state is."""
        return self._file("checkpoint.safetensors")

    @property
    def begun(self) -> bool:
        """Whether there is a run at all."""
        return self._file("experiment.json").is_file() and not self.of_peer

    @property
    def of_peer(self) -> bool:
        """Whether it is what one peer of a federation was given, which has the experiment beside its key."""
        return self._file("peer.yaml").is_file()

    @property
    def kept_by_peer(self) -> bool:
        """Whether a peer keeps here what it knows, with which no simulation could go on."""
        return self._file("of-a-peer").is_file()

    def keep_for_peer(self) -> None:
        """Say so."""
        try:
            self._file("of-a-peer").touch()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}") from error

    @property
    def finished(self) -> bool:
        """Whether the run reached its last round."""
        return self._file("result.json").exists()

    @classmethod
    def create(cls, path: Path, experiment: Experiment, force: bool = False) -> RunFolder:
        """A new run folder; an existing run is replaced only with ``force``, anything else never."""
        folder = cls(path)
        folder.check_free(force)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name in ("result.json", "checkpoint.safetensors", "metrics.jsonl", "events.jsonl"):
                folder._file(name).unlink(missing_ok=True)
            folder._replace("experiment.json", json.dumps(experiment.to_dict(), indent=2) + "\n")
            for name in ("metrics.jsonl", "events.jsonl"):
                folder._file(name).touch()
        except OSError as error:
            raise RunError(f"out: {path} cannot be written: {error.strerror or error}") from error
        return folder

    def check_free(self, force: bool = False) -> None:
        """Refuse, without touching anything, a place where a run must not or cannot be written."""
        self.check_writable()
        if self.begun and not force:
            raise RunError(f"out: {self.path} already holds {self._state()}")
        if self.path.exists() and not self.begun and any(not _left_over(e) for e in self.path.iterdir()):
            raise RunError(f"out: {self.path} is not empty and not a run folder; choose another")

    def check_writable(self, option: str = "out") -> None:
        """Refuse a place that cannot be written, naming the ``option`` it was given by."""
        nearest = next(place for place in (self.path, *self.path.parents) if place.exists())
        if not (nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK)):
            raise RunError(f"{option}: {self.path} cannot be written: {nearest} is not a writable folder")

    def _state(self) -> str:
        if self.finished:
            return "a finished run; --force replaces it"
        return f"an unfinished run; continue it with: {self.how_to_resume} (or --force to start again)"

    @property
    def how_to_resume(self) -> str:
        """The command that continues the run, ready for a shell."""
        return shlex.join(["purifl", "resume", str(self.path)])

    def experiment(self) -> Experiment:
        """The stored experiment."""
        file = self._file("experiment.json")
        if self.of_peer:
            command = shlex.join(["purifl", "peer", str(self._file("peer.yaml"))])
            raise RunError(f"{self.path} is the folder of a peer, and no run folder; run it, or go on, with: {command}")
        if not self.begun:
            raise RunError(f"{self.path} is not a run folder: it has no experiment.json")
        try:
            return Experiment.parse(json.loads(file.read_text()))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file} is damaged: {error}") from error
        except ConfigError as error:
            raise RunError(f"{file} is damaged, or of a package that is not installed: {error}") from error

    def check_same(self, experiment: Experiment) -> None:
        """Refuse to go on with a run of something else."""
        if self.experiment() != experiment:
            raise RunError(f"out: {self.path} holds a run of another experiment; choose another folder, or --force")

    @phase("store")
    def store(
        self, rows: list[Row], events: list[Row], state: State | None, experiment: Experiment, seconds: float
    ) -> None:
        """Write rounds, and the state after them if any; where that fails the last checkpoint is still there."""
        try:
            self.append(rows, events)
            if state is not None:
                self.save(state, experiment, seconds)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"round {rows[-1]['round']} cannot be written to {self.path}: {error}; once that is mended, "
                f"continue with: {self.how_to_resume}"
            ) from error

    def append(self, rows: list[Row], events: list[Row]) -> None:
        """Write the rows of a round or of several."""
        for name, added in (("metrics.jsonl", rows), ("events.jsonl", events)):
            if not added:
                continue
            with self._file(name).open("a") as out:
                out.writelines(json.dumps(row, allow_nan=False) + "\n" for row in added)
                out.flush()
                os.fsync(out.fileno())

    def rows(self, name: str, upto: int | None = None) -> list[Row]:
        """The complete rows of a .jsonl file, up to a round; a torn last line is left out."""
        if not self._file(name).exists():
            return []
        try:
            rows = [json.loads(line) for line in self._file(name).read_text().split("\n")[:-1]]
            return [row for row in rows if row["round"] <= (math.inf if upto is None else upto)]
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{self._file(name)} is damaged: {error}") from error

    def rewind(self, upto: int) -> None:
        """Drop rows of rounds after ``upto``, which the next round will write again."""
        if (found := len(self.rows("metrics.jsonl", upto))) != upto:
            file = self._file("metrics.jsonl")
            raise RunError(f"{file} is damaged: it has {found} rows up to round {upto}, where the checkpoint stands")
        if not (file := self._file("events.jsonl")).exists():
            raise RunError(f"{file} is not there any more, and with it who was cut when")
        for unfinished in self.path.glob(".tmp??????"):  # what safetensors was writing when a process was killed
            unfinished.unlink(missing_ok=True)
        for name in ("metrics.jsonl", "events.jsonl"):
            kept = self.rows(name, upto)
            self._replace(name, "".join(json.dumps(row) + "\n" for row in kept))

    def save(self, state: State, experiment: Experiment, seconds: float, write: Write | None = None) -> None:
        """Replace the checkpoint, all or nothing; ``write`` is how, safetensors' own way if not given."""
        meta = {"experiment": json.dumps(experiment.to_dict(), sort_keys=True), "seconds": repr(seconds)}
        new = self.checkpoint.with_name(self.checkpoint.name + ".new")
        (write or save_file)({key: tensor.contiguous() for key, tensor in state.items()}, new, metadata=meta)
        self._commit(new, self.checkpoint.name)

    def load(self, experiment: Experiment) -> tuple[State, float] | None:
        """The checkpoint and the seconds spent so far, or None where no round was finished."""
        file = self.checkpoint
        if not file.exists():
            return None
        try:
            with safe_open(file, framework="pt") as stored:
                meta = stored.metadata() or {}
                state = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - not a dict
            made_by, seconds = json.loads(meta.get("experiment", "{}")), float(meta.get("seconds", 0))
        except (SafetensorError, OSError, ValueError) as error:
            raise RunError(f"{file} is damaged: {error}") from error
        _same_experiment(made_by, experiment, file)
        return state, seconds

    def finish(self, result: Result) -> None:
        """Write the result, which marks the run as finished."""
        stored = {
            "summary": result.summary(),
            "malicious": result.malicious,
            "trust": result.trust,
            "histograms": result.histograms,
            "seconds": result.seconds,
            "round_seconds": result.round_seconds,
            "hardware": result.hardware,
        }
        self._replace("result.json", json.dumps(stored, indent=1, allow_nan=False) + "\n")

    def result(self) -> Result:
        """The stored result of a finished run."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; continue it with: {self.how_to_resume}")
        experiment, history, events = self.experiment(), self.rows("metrics.jsonl"), self.rows("events.jsonl")
        with self._trusting("result.json") as file:
            stored = json.loads(file.read_text())
            check_result(stored, experiment.clients)
        with self._trusting("metrics.jsonl"):
            check_rounds(history, experiment.rounds, len(stored["trust"]))
        with self._trusting("events.jsonl"):
            check_events(events, stored["trust"], experiment.rounds)
        kept = {key: stored[key] for key in ("malicious", "trust", "histograms", "seconds")}
        kept |= {key: stored.get(key) for key in ("round_seconds", "hardware")}
        return Result(experiment, history=history, events=events, folder=self.path, **kept)

    @contextmanager
    def _trusting(self, name: str) -> Iterator[Path]:
        """Say which file it is that does not hold what it should."""
        try:
            yield self._file(name)
        except ValueError as error:
            raise RunError(f"{self._file(name)} is damaged: {error}") from error

    def forget(self) -> None:
        """Drop the state of a finished run."""
        self.checkpoint.unlink(missing_ok=True)

    def _replace(self, name: str, text: str) -> None:
        new = self._file(name + ".new")
        new.write_text(text)
        self._commit(new, name)

    def _commit(self, new: Path, name: str) -> None:
        with new.open("rb") as written:
            os.fsync(written.fileno())
        new.replace(self._file(name))


def _left_over(entry: Path) -> bool:
    """Whether a file is what a run that never began leaves."""
    return entry.suffix == ".new" or entry.name == "lock"


def _same_experiment(stored: dict[str, Any], experiment: Experiment, file: Path) -> None:
    given = experiment.to_dict()
    changed = sorted(key for key in given.keys() | stored.keys() if given.get(key) != stored.get(key))
    if changed:
        raise RunError(
            f"{file} does not match experiment.json, which differs in {', '.join(changed)}; "
            "restore it, or start a new run"
        )
