"""One run of a sweep, as a worker does it: it ends with an outcome, whatever happens."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from purifl.errors import BusyError, PuriflError
from purifl.experiment import Experiment
from purifl.logs import logged
from purifl.runs import run_or_continue

SAVING = 0.02
"""The share of its time that a run in a sweep may spend on saving: an interruption costs it the round in progress, and
where rounds are short at most fifty times as long as one saving takes."""


@dataclass(frozen=True)
class Job:
    """What a worker is told; plain data, so that it can travel.

    Attributes:
        settings: Of the experiment.
        folder: Where to run it.
        log: Where to log its metrics besides, if anywhere.
    """

    settings: dict[str, Any]
    folder: str
    log: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        state: Finished, failed, or busy: another process is at it.
        seconds: Time that this worker spent on it.
        reason: Why it failed.
        unforeseen: Whether that is nothing purifl knows, so that the process may be in a bad state.
        notes: What it warned of.
    """

    state: Literal["finished", "failed", "busy"]
    seconds: float = 0.0
    reason: str | None = None
    unforeseen: bool = False
    notes: tuple[str, ...] = ()


def work(job: Job) -> Outcome:
    """Run or resume, and say how it went."""
    start = time.perf_counter()
    with _noted() as notes:
        outcome = _tried(job)
    return replace(outcome, seconds=time.perf_counter() - start, notes=tuple(notes))


def _tried(job: Job) -> Outcome:
    try:
        experiment, folder = Experiment.parse(job.settings), Path(job.folder)
        with logged(job.log, experiment, folder) as on_round:
            run_or_continue(experiment, folder, on_round=on_round, saving=SAVING, wait=0)
    except BusyError:
        return Outcome("busy")
    except PuriflError as error:
        return Outcome("failed", reason=str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        return Outcome("failed", reason=reason, unforeseen=True)
    return Outcome("finished")


class _Notes(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Once, however often."""
        if (text := record.getMessage()) not in self.said:
            self.said.append(text)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """Warnings go into a list, for whoever shows the progress; workers have nowhere to show them."""
    logger, notes = logging.getLogger("purifl"), _Notes()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(notes)
    try:
        yield notes.said
    finally:
        logger.removeHandler(notes)
        logger.propagate = before
