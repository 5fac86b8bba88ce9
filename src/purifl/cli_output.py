"""What several commands print, and where: results and errors."""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from purifl.phases import Profile
    from purifl.result import Result

err = Console(stderr=True, emoji=False)
out_console = Console(emoji=False)


def finish(results: list[Result], folder: Path, as_json: bool, summary: dict[str, Any]) -> None:
    """Write the report; print the table, or the JSON object."""
    from purifl.report import write_report

    page = write_report(results, folder / "report")
    if as_json:
        sys.stdout.write(json.dumps(summary | {"report": str(page)}) + "\n")
        return
    table = Table("defence", "test accuracy", "worst client", "attack accuracy", "attackers cut in", "benign edges cut")
    for result in results:
        s = result.summary()
        cut = f"round {s['detected_round']}" if s["detected_round"] is not None else _no_cut(result)
        shares = [f"{s[key]:.1%}" if s[key] is not None else "–" for key in
                  ("test_accuracy", "test_accuracy_min", "attack_accuracy")]  # fmt: skip
        wrong = s["false_alarm_edges"]
        table.add_row(s["defense"], *shares, cut, "–" if wrong is None else str(wrong))
    table.columns[0].no_wrap = True
    out_console.print(table)
    for result in results:
        _note_divergence(result)
    name_report(page)


def _note_divergence(result: Result) -> None:
    """Say so where some model or gradient is no number any more: an accuracy of 0 % would pass for one measured."""
    lost = list(takewhile(lambda row: row.get("gamma_norm", 0) is None, reversed(result.history)))
    if lost:
        name, since = result.experiment.defense.name, lost[-1]["round"]
        err.print(f"[yellow]note:[/] {name} has diverged: since round {since} gradients are not finite, or too long")


def name_report(page: Path) -> None:
    """Say which page to open."""
    out_console.print(f"Report to look at: {page}", highlight=False, soft_wrap=True, markup=False)


def show_profile(profile: Profile) -> None:
    """A table of the phases of a round."""
    table = Table("phase", title="Where the time of a round goes")
    for column in ("total s", "ms per round", "share"):
        table.add_column(column, justify="right")
    phases = profile.summary()
    whole = {key: sum(spent[key] for spent in phases.values()) for key in ("seconds", "ms_per_round", "share")}
    for name, spent in (*phases.items(), ("all", whole)):
        cells = f"{spent['seconds']:.3f}", f"{spent['ms_per_round']:.2f}", f"{spent['share']:.1%}"
        table.add_row(name, *cells, end_section=name == "other")
    out_console.print(table)


def _no_cut(result: Result) -> str:
    return "never" if result.malicious and not result.experiment.defense.knows_malicious else "–"
