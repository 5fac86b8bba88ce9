"""One run of a sweep, as a worker does it: it ends with an outcome, whatever happens."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from purifl.errors import BusyError, PuriflError
from purifl.experiment import Experiment
from purifl.logs import logged
from purifl.runs import run_or_continue

CHECKPOINT_SECONDS = 10.0
"""Between two checkpoints of a run in a sweep: what an interruption costs at most, beside the round in progress."""


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
    """

    state: Literal["finished", "failed", "busy"]
    seconds: float = 0.0
    reason: str | None = None
    unforeseen: bool = False


def work(job: Job) -> Outcome:
    """Run or resume, and say how it went."""
    start = time.perf_counter()
    try:
        experiment, folder = Experiment.parse(job.settings), Path(job.folder)
        with logged(job.log, experiment, folder) as on_round:
            run_or_continue(experiment, folder, on_round=on_round, checkpoint_seconds=CHECKPOINT_SECONDS, wait=0)
    except BusyError:
        return Outcome("busy", time.perf_counter() - start)
    except PuriflError as error:
        return Outcome("failed", time.perf_counter() - start, str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
        return Outcome("failed", time.perf_counter() - start, reason, unforeseen=True)
    return Outcome("finished", time.perf_counter() - start)
