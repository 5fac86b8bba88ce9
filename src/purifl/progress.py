"""Progress of a run or a sweep on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from purifl.metrics import Row
from purifl.runs import OnRound
from purifl.simulation import Simulation
from purifl.sweeps import Progress as Sweeping

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


@contextmanager
def drawing(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A callback to hand to :func:`purifl.report.write_report`; shown on a terminal only, since it is soon over."""
    columns = ("[bold]figures to print", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "left")
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def sweeping(console: Console) -> Iterator[Callable[[Sweeping], None]]:
    """A callback to hand to :func:`purifl.sweep`; a run that fails is told at once, with its reason."""
    if console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), "runs done{task.fields[note]}")
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=None, note="")

            def draw(now: Sweeping) -> None:
                _tell_failure(now, console)
                bar.update(task, completed=now.done, total=now.total, note=_standing(now))

            yield draw
    else:
        yield _sweep_lines(console)


def _sweep_lines(console: Console) -> Callable[[Sweeping], None]:
    """A line at the start and at the end, and every few seconds between."""
    shown: float | None = None

    def show(now: Sweeping) -> None:
        nonlocal shown
        _tell_failure(now, console)
        over = now.done + now.failed == now.total and now.latest is not None
        if shown is None or over or time.monotonic() - shown >= _SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            console.print(f"{now.done}/{now.total} runs done{_standing(now)}", highlight=False)

    return show


def _tell_failure(now: Sweeping, console: Console) -> None:
    _, reason = now.latest or (None, None)
    if reason is not None:
        console.print(f"[red]failed:[/] {escape(now.called)}: {escape(reason)}", highlight=False, soft_wrap=True)


def _standing(now: Sweeping) -> str:
    parts = [f"{now.running} running", f"{now.failed} failed"]
    parts += [f"{now.elsewhere} in another sweep"] if now.elsewhere else []
    parts += [f"{_duration(now.seconds_left)} left"] if now.seconds_left is not None else []
    return ", " + ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{hours:.1f} h" if hours >= 2 else f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"


def _noting() -> Callable[[Row], str]:
    """Tells the accuracies of a row, or the last ones where a round was not evaluated."""
    latest: Row = {}

    def note(row: Row) -> str:
        nonlocal latest
        latest = row if "test_accuracy" in row else latest
        parts = [("accuracy", latest.get("test_accuracy")), ("attack", latest.get("attack_accuracy"))]
        return "".join(f"{name} {value:.1%}, " for name, value in parts if value is not None)

    return note
