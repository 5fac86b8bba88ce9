"""Several defences on one set-up."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from purifl.defenses import Setting, defenses
from purifl.errors import ConfigError, RunError
from purifl.experiment import Experiment
from purifl.folders import RunFolder
from purifl.simulation import place
from purifl.topology import neighbourhood


def experiments(settings: dict[str, Any], chosen: str) -> list[Experiment]:
    """One experiment per defence in ``chosen``, a comma-separated list or ``all``.

    Of ``all``, those that cannot work in the set-up are left out, and the log says why.
    """
    names = list(defenses) if chosen == "all" else [name.strip() for name in chosen.split(",") if name.strip()]
    if not names:
        raise ConfigError("defenses", chosen, f"give names separated by commas, or 'all': {', '.join(defenses)}")
    if len(set(names)) != len(names):
        raise ConfigError("defenses", chosen, "name each defence once")
    given = settings.get("defense")
    shared = given if isinstance(given, dict) else {}
    if (named := shared.get("name", given if isinstance(given, str) else None)) is not None and named not in names:
        logging.getLogger("purifl").warning("defense: %r is not compared; --defenses says what is", named)
    found = []
    for name in names:
        try:
            experiment = Experiment.parse(settings | {"defense": shared | {"name": name}})
            possible(experiment)
        except ConfigError as error:
            if chosen != "all":
                raise
            logging.getLogger("purifl").warning("%s is left out: %s", name, error)
        else:
            found.append(experiment)
    return found


def possible(experiment: Experiment) -> None:
    """Ask the defence, before anything is loaded or trained, whether it can work in this set-up."""
    graph, malicious = place(experiment)
    if experiment.defense.knows_malicious:
        return
    benign = [k for k in range(experiment.clients) if k not in malicious]
    hood = neighbourhood(graph, list(range(experiment.clients)), benign)
    to_malicious = torch.isin(hood.senders, torch.tensor(malicious, dtype=torch.int64))
    mixing = experiment.mixing or experiment.defense.mixing
    experiment.defense.settle(Setting(hood, to_malicious, experiment.training, mixing))


def claim(folder: Path) -> None:
    """Mark a new or empty folder as a comparison's; refuse, before any training, one that holds anything else."""
    RunFolder(folder).check_writable()
    marker = folder / "comparison.json"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise RunError(f"out: {folder} is not empty and holds no comparison; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text('{"kind": "comparison"}\n')
