"""Running experiments: from the start, or on from where one stopped; in memory, or kept in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from purifl.errors import ConfigError, RunError
from purifl.experiment import Experiment
from purifl.folders import RunFolder
from purifl.locks import PATIENCE, held
from purifl.metrics import Row
from purifl.phases import Profile, timed_by
from purifl.result import Result
from purifl.simulation import Simulation

OnRound = Callable[[Row, Simulation], None]


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
    if not isinstance(experiment, Experiment):
        raise ConfigError("experiment", experiment, "give an Experiment, such as Experiment(attack='lie')")
    if out is None:
        with timed_by(profile):
            return _continue(Simulation(experiment), None, 0.0, on_round)
    RunFolder(Path(out)).check_free(force)
    simulation = Simulation(experiment)
    with held(Path(out)), timed_by(profile):
        return _continue(simulation, RunFolder.create(Path(out), experiment, force), 0.0, on_round)


def resume(out: Path | str, *, on_round: OnRound | None = None) -> Result:
    """Continue an interrupted run; the result is, bit for bit, that of a run never stopped.

    A finished run is returned as it is.
    """
    folder = RunFolder(Path(out))
    if folder.finished:
        return folder.result()
    if folder.kept_by_peer:
        raise RunError(f"{folder.path} is what a peer of a federation keeps; go on with purifl peer and its peer.yaml")
    return run_or_continue(folder.experiment(), folder.path, on_round=on_round)


def run_or_continue(
    experiment: Experiment,
    out: Path | str,
    *,
    force: bool = False,
    on_round: OnRound | None = None,
    saving: float | None = None,
    wait: float = PATIENCE,
) -> Result:
    """Run into ``out``, or take up what the same experiment left there.

    Args:
        experiment: What to run.
        out: Folder to keep it in.
        force: Replace a run that is already there.
        on_round: Called after each round with its metrics.
        saving: Save after a round only if that takes at most this share of the time since the last time, and keep no
            state of a finished run; by default every round is saved, and the last one's state stays.
        wait: Seconds to wait for another process that is at work there; then a :class:`BusyError`.
    """
    folder = RunFolder(Path(out))
    if force or not folder.begun:
        folder.check_free(force)
    elif folder.finished:
        folder.check_same(experiment)
        return folder.result()
    with held(folder.path, wait):
        if folder.begun and not force:
            folder.check_same(experiment)
            if folder.finished:  # by somebody else, a moment ago
                return folder.result()
            simulation, seconds = _restored(folder, experiment)
        else:
            simulation, seconds = Simulation(experiment), 0.0
            RunFolder.create(folder.path, experiment, force)
        return _continue(simulation, folder, seconds, on_round, saving)


def _restored(folder: RunFolder, experiment: Experiment) -> tuple[Simulation, float]:
    """The simulation as the checkpoint has it, and the seconds spent so far; later rows are dropped."""
    saved = folder.load(experiment)
    simulation = Simulation(experiment)
    seconds = 0.0
    if saved is not None:
        state, seconds = saved
        simulation.federation.load_state_dict(state)
    folder.rewind(simulation.federation.round)
    return simulation, seconds


class _Keeper:
    """Writes the rounds of a run to its folder: each when it is done, or as often as a share of the time allows."""

    def __init__(self, folder: RunFolder, result: Result, share: float | None, started: float) -> None:
        self._folder, self._result, self._share, self._started = folder, result, share, started
        self._rows, self._events, self._saved = len(result.history), len(result.events), time.perf_counter()
        self._cost = 0.0

    def keep(self, simulation: Simulation) -> None:
        """Write what is due after a round; without a state where the run is over and nobody will want it."""
        now = time.perf_counter()
        due = self._share is None or self._cost <= self._share * (now - self._saved)
        if not (due or simulation.finished):
            return
        result, spent = self._result, now - self._started
        state = simulation.federation.state_dict() if self._share is None or not simulation.finished else None
        rows, events = result.history[self._rows :], result.events[self._events :]
        self._folder.store(rows, events, state, result.experiment, spent)
        self._rows, self._events, self._saved = len(result.history), len(result.events), time.perf_counter()
        self._cost = self._saved - now

    def finish(self) -> None:
        """Write the result; then nobody needs the last state, unless every one was wanted."""
        self._folder.finish(self._result)
        if self._share is not None:
            self._folder.forget()


def _continue(
    simulation: Simulation,
    folder: RunFolder | None,
    seconds: float,
    on_round: OnRound | None,
    saving: float | None = None,
) -> Result:
    start, paces = time.perf_counter() - seconds, []
    result = Result(simulation.experiment, simulation.malicious, histograms=simulation.histograms)
    result.hardware = simulation.hardware
    if folder is not None:
        result.history, result.events = folder.rows("metrics.jsonl"), folder.rows("events.jsonl")
        result.folder = folder.path
    keeper = _Keeper(folder, result, saving, start) if folder is not None else None
    while not simulation.finished:
        begun = time.perf_counter()
        row, events = simulation.step()
        paces.append(time.perf_counter() - begun)
        result.history.append(row)
        result.events.extend(events)
        if keeper is not None:
            keeper.keep(simulation)
        if on_round is not None:
            on_round(row, simulation)
    result.trust, result.seconds = simulation.trust(), time.perf_counter() - start
    result.round_seconds = median(paces) if paces else None
    if keeper is not None:
        keeper.finish()
    return result
