"""Reports for people: a page to play with and figures to print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from purifl.errors import RunError
from purifl.report.groups import setups
from purifl.report.page import GENERATOR, page
from purifl.result import Result

__all__ = ["write_report"]


def write_report(
    results: Sequence[Result],
    out: Path,
    *,
    figures: bool = False,
    on_setup: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a report on finished runs: several defences, set-ups and seeds as they come.

    Args:
        results: The runs, in the order in which they shall be listed.
        out: The folder; made if it is not there. An earlier report in it is replaced.
        figures: Whether to write figures to print, too, into ``figures`` under it.
        on_setup: Called while these are drawn, which takes seconds for each set-up, with how many are done of how many.

    Returns:
        The path of its ``index.html``, a page that holds everything.
    """
    if not results:
        raise RunError("there is nothing to report on: give at least one finished run")
    found, index = setups(results), out / "index.html"
    try:
        if index.exists() and GENERATOR not in index.read_text(encoding="utf-8", errors="replace")[:1000]:
            raise RunError(f"out: {index} is not a report of purifl's; choose another folder")
        if figures and not index.exists() and (out / "figures").exists():
            raise RunError(f"out: {out / 'figures'} is there without a report; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        index.write_text(page(found), encoding="utf-8")
        if figures:
            from purifl.report.prints import write_figures  # noqa: PLC0415 - matplotlib, which the page does without

            write_figures(found, out / "figures", on_setup)
    except OSError as error:
        raise RunError(f"out: {out} cannot be written: {error.strerror or error}") from error
    return index
