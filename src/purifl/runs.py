"""Run folders: the experiment, a row of metrics per round, events, a checkpoint, the result.

    experiment.json         what is being run
    metrics.jsonl           one row per round, readable while running; with it the trust on each edge, in the order
                            in which result.json lists them, up to 10,000 edges
    events.jsonl            every cut and re-admission of an edge, with its round
    checkpoint.safetensors  everything the next round depends on, replaced atomically after each round
    result.json             written last: a run that has it is finished

A round's rows are written before its checkpoint, and rows beyond the checkpoint are dropped on resuming,
so a run killed at any moment loses at most the round in progress.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from purifl.errors import ConfigError, RunError
from purifl.experiment import Experiment
from purifl.metrics import Row
from purifl.phases import Profile, phase, timed_by
from purifl.simulation import Simulation
from purifl.state import State

OnRound = Callable[[Row, Simulation], None]


@dataclass
class Result:
    """What a run gave.

    Attributes:
        experiment: What was run.
        malicious: Ids of the malicious clients, also where the defence excluded them from the start.
        history: A row of metrics per round.
        events: Every cut and re-admission.
        trust: For every edge of a benign client, the final trust and whether it is cut.
        histograms: Label counts of each client.
        seconds: Time spent, interruptions left out.
        folder: Where it is stored, if anywhere.
    """

    experiment: Experiment
    malicious: list[int] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    trust: list[Row] = field(default_factory=list)
    histograms: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    folder: Path | None = None

    @property
    def final(self) -> Row:
        """The last round's metrics."""
        return self.history[-1]

    @property
    def detected_round(self) -> int | None:
        """First round in which every benign client has cut every malicious neighbour; None if never.

        Also None where no benign client has a malicious neighbour (no attack, or ``upper``).
        """
        if not any(edge["neighbour"] in self.malicious for edge in self.trust):
            return None
        return next((row["round"] for row in self.history if row["missed_edges"] == 0), None)

    @property
    def epsilon(self) -> float | None:
        """ε of the differential privacy that the defence gave benign clients' data; None where it gave none."""
        sizes = [sum(counts) for k, counts in enumerate(self.histograms) if k not in self.malicious]
        spent = self.experiment.defense.privacy_spent(self.experiment.training, sizes, len(self.history))
        return None if spent is None or math.isinf(spent) else spent

    def summary(self) -> Row:
        """One flat JSON object: the final metrics and what identifies the run."""
        keys = (
            "test_accuracy", "test_accuracy_min", "test_accuracy_std", "attack_accuracy", "attack_accuracy_all",
            "missed_edges", "false_alarm_edges", "benign_components", "tracking_error", "gamma_norm",
        )  # fmt: skip
        experiment = self.experiment
        names = ("dataset", "partition", "topology", "model", "attack", "defense", "detector")
        return {
            **{name: getattr(experiment, name).name for name in names},
            "mixing": experiment.mixing,
            **{key: self.final[key] for key in keys},
            "detected_round": self.detected_round,
            "epsilon": self.epsilon,
            "malicious": self.malicious,
            "rounds": len(self.history),
            "seconds": round(self.seconds, 3),
            "seed": experiment.seed,
            "folder": str(self.folder) if self.folder else None,
        }


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _file(self, name: str) -> Path:
        return self.path / name

    @property
    def begun(self) -> bool:
        """Whether there is a run at all."""
        return self._file("experiment.json").is_file()

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
        if self.path.exists() and not self.begun and any(e.suffix != ".new" for e in self.path.iterdir()):
            raise RunError(f"out: {self.path} is not empty and not a run folder; choose another")

    def check_writable(self) -> None:
        """Refuse a place that cannot be written."""
        nearest = next(place for place in (self.path, *self.path.parents) if place.exists())
        if not (nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK)):
            raise RunError(f"out: {self.path} cannot be written: {nearest} is not a writable folder")

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
        if not self.begun:
            raise RunError(f"{self.path} is not a run folder: it has no experiment.json")
        try:
            return Experiment.parse(json.loads(file.read_text()))
        except (json.JSONDecodeError, UnicodeDecodeError, ConfigError) as error:
            raise RunError(f"{file} is damaged: {error}") from error

    @phase("store")
    def store(self, row: Row, events: list[Row], state: State, experiment: Experiment, seconds: float) -> None:
        """Write a round; where that fails (a full disk, say) the last checkpoint is still there."""
        try:
            self.append(row, events)
            self.save(state, experiment, seconds)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"round {row['round']} cannot be written to {self.path}: {error}; once that is mended, "
                f"continue with: {self.how_to_resume}"
            ) from error

    def append(self, row: Row, events: list[Row]) -> None:
        """Write a round's rows."""
        for name, rows in (("metrics.jsonl", [row]), ("events.jsonl", events)):
            with self._file(name).open("a") as out:
                out.writelines(json.dumps(r, allow_nan=False) + "\n" for r in rows)
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
        for name in ("metrics.jsonl", "events.jsonl"):
            kept = self.rows(name, upto)
            self._replace(name, "".join(json.dumps(row) + "\n" for row in kept))

    def save(self, state: State, experiment: Experiment, seconds: float) -> None:
        """Replace the checkpoint, all or nothing."""
        meta = {"experiment": json.dumps(experiment.to_dict(), sort_keys=True), "seconds": repr(seconds)}
        new = self._file("checkpoint.safetensors.new")
        save_file({key: tensor.contiguous() for key, tensor in state.items()}, new, metadata=meta)
        self._commit(new, "checkpoint.safetensors")

    def load(self, experiment: Experiment) -> tuple[State, float] | None:
        """The checkpoint and the seconds spent so far, or None where no round was finished."""
        file = self._file("checkpoint.safetensors")
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
        }
        self._replace("result.json", json.dumps(stored, indent=1, allow_nan=False) + "\n")

    def result(self) -> Result:
        """The stored result of a finished run."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; continue it with: {self.how_to_resume}")
        try:
            stored = json.loads(self._file("result.json").read_text())
            kept = {key: stored[key] for key in ("malicious", "trust", "histograms", "seconds")}
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._file('result.json')} is damaged: {error}") from error
        experiment, history, events = self.experiment(), self.rows("metrics.jsonl"), self.rows("events.jsonl")
        if len(history) != experiment.rounds:
            file = self._file("metrics.jsonl")
            raise RunError(f"{file} is damaged: it has {len(history)} rows of {experiment.rounds}")
        return Result(experiment, history=history, events=events, folder=self.path, **kept)

    def _replace(self, name: str, text: str) -> None:
        new = self._file(name + ".new")
        new.write_text(text)
        self._commit(new, name)

    def _commit(self, new: Path, name: str) -> None:
        with new.open("rb") as written:
            os.fsync(written.fileno())
        new.replace(self._file(name))


def _same_experiment(stored: dict[str, Any], experiment: Experiment, file: Path) -> None:
    given = experiment.to_dict()
    changed = sorted(key for key in given.keys() | stored.keys() if given.get(key) != stored.get(key))
    if changed:
        raise RunError(
            f"{file} does not match experiment.json, which differs in {', '.join(changed)}; "
            "restore it, or start a new run"
        )


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    force: bool = False,
    on_round: OnRound | None = None,
    profile: Profile | None = None,
) -> Result:
    """Run an experiment from the start.

    Args:
        experiment: What to run.
        out: Folder to keep it in, so that it can be resumed; nothing is written if not given.
        force: Replace a run that is already there.
        on_round: Called after each round with its metrics.
        profile: Told where the time of the rounds goes.
    """
    if out is not None:
        RunFolder(Path(out)).check_free(force)
    simulation = Simulation(experiment)
    folder = RunFolder.create(Path(out), experiment, force) if out is not None else None
    with timed_by(profile):
        return _continue(simulation, folder, 0.0, on_round)


def resume(out: Path | str, *, on_round: OnRound | None = None) -> Result:
    """Continue an interrupted run; the result is, bit for bit, that of a run never stopped.

    A finished run is returned as it is.
    """
    folder = RunFolder(Path(out))
    if folder.finished:
        return folder.result()
    experiment = folder.experiment()
    saved = folder.load(experiment)
    simulation = Simulation(experiment)
    seconds = 0.0
    if saved is not None:
        state, seconds = saved
        simulation.federation.load_state_dict(state)
    folder.rewind(simulation.federation.round)
    return _continue(simulation, folder, seconds, on_round)


def _continue(simulation: Simulation, folder: RunFolder | None, seconds: float, on_round: OnRound | None) -> Result:
    experiment, start = simulation.experiment, time.perf_counter() - seconds
    result = Result(experiment, simulation.malicious, histograms=simulation.histograms)
    if folder is not None:
        result.history, result.events = folder.rows("metrics.jsonl"), folder.rows("events.jsonl")
        result.folder = folder.path
    while not simulation.finished:
        row, events = simulation.step()
        result.history.append(row)
        result.events.extend(events)
        if folder is not None:
            folder.store(row, events, simulation.federation.state_dict(), experiment, time.perf_counter() - start)
        if on_round is not None:
            on_round(row, simulation)
    result.trust, result.seconds = simulation.trust(), time.perf_counter() - start
    if folder is not None:
        folder.finish(result)
    return result
