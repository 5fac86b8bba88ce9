"""Several defences on one set-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purifl.defenses import defenses
from purifl.errors import ConfigError, RunError
from purifl.experiment import Experiment
from purifl.runs import OnRound, Result, RunFolder, resume, run


def experiments(settings: dict[str, Any], chosen: str) -> list[Experiment]:
    """One experiment per defence in ``chosen``, a comma-separated list or ``all``."""
    names = list(defenses) if chosen == "all" else [name.strip() for name in chosen.split(",") if name.strip()]
    if not names:
        raise ConfigError("defenses", chosen, f"give names separated by commas, or 'all': {', '.join(defenses)}")
    if len(set(names)) != len(names):
        raise ConfigError("defenses", chosen, "name each defence once")
    given = settings.get("defense")
    shared = given if isinstance(given, dict) else {}
    return [Experiment.parse(settings | {"defense": shared | {"name": name}}) for name in names]


def run_or_continue(experiment: Experiment, out: Path, force: bool, on_round: OnRound) -> Result:
    """Run into ``out``, or take up what the same experiment left there."""
    if force or not RunFolder(out).begun:
        return run(experiment, out, force=force, on_round=on_round)
    if RunFolder(out).experiment() != experiment:
        raise RunError(f"out: {out} holds a run of another experiment; choose another folder, or --force")
    return resume(out, on_round=on_round)
