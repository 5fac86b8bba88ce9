"""Runs side by side: those that differ in their seed alone are one line, those that differ in the defence one chart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from purifl.experiment import Experiment
from purifl.intervals import Estimate, estimate
from purifl.report.text import distinct
from purifl.result import Result

T = TypeVar("T")

_OF_THE_DEFENSE = frozenset({"defense", "detector", "mixing"})


@dataclass(frozen=True)
class Group:
    """One experiment, run with one or several seeds.

    Attributes:
        name: What tells it from the others of its set-up: its defence, and settings where that is not enough.
        runs: In the order of their seeds.
    """

    name: str
    runs: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The run that is shown where only one can be."""
        return self.runs[0]

    @property
    def experiment(self) -> Experiment:
        """What was run, with the first seed."""
        return self.first.experiment

    def final(self, key: str) -> Estimate | None:
        """A number of the summary over the seeds."""
        return over_seeds([run.summary()[key] for run in self.runs])


@dataclass(frozen=True)
class Setup:
    """Defences under the same circumstances.

    Attributes:
        name: What tells it from the other set-ups.
        groups: In the order in which their runs were given.
    """

    name: str
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Result]:
        """All of them."""
        return [run for group in self.groups for run in group.runs]


def over_seeds(values: Sequence[float | None]) -> Estimate | None:
    """Their mean with its interval; None where a run has no such number, as one that diverged."""
    known = [value for value in values if value is not None]
    return estimate(known) if len(known) == len(values) else None


def setups(results: Sequence[Result]) -> list[Setup]:
    """The runs in order: by everything but defence and seed, then by everything but the seed.

    A run of an experiment that was given before is no further seed: it becomes a group of its own.
    """
    circumstances = _by(results, lambda result: _key(result.experiment, _OF_THE_DEFENSE | {"seed"}))
    names = [_circumstances(runs[0].experiment) for runs in circumstances]
    settings = [_without(runs[0].experiment, _OF_THE_DEFENSE | {"seed"}) for runs in circumstances]
    return [Setup(name, _groups(runs)) for name, runs in zip(distinct(names, settings), circumstances, strict=True)]


def _groups(runs: list[Result]) -> tuple[Group, ...]:
    keys = [_key(run.experiment, frozenset({"seed"})) for run in runs]
    again = [sum(other.experiment == run.experiment for other in runs[:k]) for k, run in enumerate(runs)]
    alike = _by(range(len(runs)), lambda k: f"{again[k]} {keys[k]}")
    found = [sorted((runs[k] for k in each), key=lambda run: run.experiment.seed) for each in alike]
    names = [each[0].experiment.defense.name for each in found]
    settings = [_without(each[0].experiment, frozenset({"seed"})) for each in found]
    return tuple(Group(name, tuple(each)) for name, each in zip(distinct(names, settings), found, strict=True))


def _by(items: Iterable[T], key: Callable[[T], str]) -> list[list[T]]:
    """The items in lists of those that have the same key, in the order in which keys first come up."""
    found: dict[str, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _without(experiment: Experiment, keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in experiment.to_dict().items() if key not in keys}


def _key(experiment: Experiment, keys: frozenset[str]) -> str:
    return json.dumps(_without(experiment, keys), sort_keys=True)


def _circumstances(experiment: Experiment) -> str:
    attack = experiment.attack.name
    under = "without an attack" if attack == "none" else f"under {attack}"
    return f"{experiment.dataset.name}, {experiment.partition.name}, {under}"
