"""From folders to finished runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from purifl.errors import RunError
from purifl.folders import RunFolder
from purifl.result import Result


def find(folders: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """The finished runs at or anywhere under ``folders``, in order, each once; and of the others why they are left out.

    A run folder that is named itself has to be finished, and what is read has to be that of a run.
    """
    runs: dict[Path, RunFolder] = {}
    named = set()
    for folder in folders:
        found = [RunFolder(path) for path in _run_folders(folder)]
        if not found:
            raise RunError(f"{folder}: there is no run folder at or under it (one with an experiment.json)")
        if found[0].path == folder:
            named.add(folder.resolve())
        for run in found:
            runs.setdefault(run.path.resolve(), run)
    results, left_out = [], []
    for path, run in runs.items():
        try:
            results.append(run.result())
        except RunError as error:
            if path in named:
                raise
            left_out.append(str(error))
    if not results:
        raise RunError(f"there is nothing to report on: of {len(runs)} runs none can be used; {left_out[0]}")
    return results, left_out


def _run_folders(folder: Path) -> list[Path]:
    """Sorted; what lies within a run folder, or the folder of a peer, is its own business."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give a run folder, or one that holds run folders")
    found = []
    for where, below, _ in os.walk(folder):
        below.sort()
        run = RunFolder(Path(where))
        if run.begun:
            found.append(run.path)
        if run.begun or (run.of_peer and run.path != folder):
            below.clear()
    return found
