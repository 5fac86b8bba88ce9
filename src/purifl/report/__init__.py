"""Reports for people: pictures, a table and the settings on one page that can be mailed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from purifl.errors import RunError
from purifl.report.page import page
from purifl.report.pictures import pictures
from purifl.report.text import labels
from purifl.runs import Result

__all__ = ["write_report"]


def write_report(results: Sequence[Result], out: Path) -> Path:
    """Write a report on finished runs of the same set-up, typically with different defences.

    Args:
        results: The runs, in the order in which they shall be listed.
        out: The folder; made if it is not there. An earlier report in it is replaced.

    Returns:
        The path of its ``index.html``, which holds the pictures too; they also lie beside it as PNG files.
    """
    if not results:
        raise RunError("there is nothing to report on: give at least one finished run")
    names = labels(results)
    shown = pictures(results, names)
    index = out / "index.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for stale in ("attack-accuracy.png", "data.png"):
            (out / stale).unlink(missing_ok=True)
        for picture in shown:
            (out / picture.file).write_bytes(picture.png)
        index.write_text(page(results, names, shown), encoding="utf-8")
    except OSError as error:
        raise RunError(f"out: {out} cannot be written: {error.strerror or error}") from error
    return index
