"""Progress of a run on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from purifl.metrics import Row
from purifl.runs import OnRound
from purifl.simulation import Simulation

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def reporting(label: str, rounds: int, console: Console) -> Iterator[OnRound]:
    """A callback to hand to :func:`purifl.run`, shown as ``label``."""
    note = _noting()
    if console.is_terminal:
        columns = ("[bold]{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[note]}", "left")
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(label, total=rounds, note="")
            yield lambda row, _: bar.update(task, completed=row["round"], note=note(row))
    else:
        yield _lines(label, rounds, console, note)


def _lines(label: str, rounds: int, console: Console, note: Callable[[Row], str]) -> OnRound:
    """A line at the first and the last round, and every few seconds between."""
    start = shown = time.monotonic()
    first: int | None = None

    def show(row: Row, _: Simulation) -> None:
        nonlocal shown, first
        now, done, said = time.monotonic(), row["round"], note(row)
        if first is None:
            first = done
        if done not in {first, rounds} and now - shown < _SECONDS_BETWEEN_LINES:
            return
        shown = now
        left = (now - start) / (done - first + 1) * (rounds - done)
        console.print(f"{label}: round {done}/{rounds}, {said}{left:.0f} s left", highlight=False)

    return show


def _noting() -> Callable[[Row], str]:
    """Tells the accuracies of a row, or the last ones where a round was not evaluated."""
    latest: Row = {}

    def note(row: Row) -> str:
        nonlocal latest
        latest = row if "test_accuracy" in row else latest
        parts = [("accuracy", latest.get("test_accuracy")), ("attack", latest.get("attack_accuracy"))]
        return "".join(f"{name} {value:.1%}, " for name, value in parts if value is not None)

    return note
