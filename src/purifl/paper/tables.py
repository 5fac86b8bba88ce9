"""What was found, to be read: ours beside the printed numbers, and the verdicts."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from purifl.intervals import Estimate
from purifl.paper.cells import Cells, in_words, scale
from purifl.paper.claims import printed
from purifl.paper.item import SUBJECTS, Item

WORDS = {"reproduced": "reproduced", "partly": "partly reproduced", "not": "not reproduced", "open": "open"}
NOTHING = "–"


def number(value: float, column: str) -> str:
    """One decimal of a percentage, three digits of anything else."""
    return f"{value:.1f}" if scale(column) == 100 else f"{value:.3g}"


def estimated(found: Estimate | None, column: str) -> str:
    """A mean with the half-width of its interval, if there is one."""
    if found is None:
        return NOTHING
    spread = f" ± {number(found.half, column)}" if found.half is not None else ""
    return number(found.mean, column) + spread


def cells_table(item: Item, cells: Cells) -> str:
    """Ours, with the printed numbers in brackets."""
    several = len(item.measures) > 1
    head = [
        *map(in_words, cells.axes),
        *(["measure"] if several else []),
        *(f"`{defense}`" for defense in cells.defenses),
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    most = max(_numbers_of_seeds(item, cells), default=0)
    for place in cells.places:
        for measure in item.measures:
            column, shown = measure.column, []
            for defense in cells.defenses:
                theirs = printed(item, cells, column, place, defense)
                found = cells.estimate(column, place, defense)
                ours = estimated(found, column) + (f" [{found.n}]" if found and found.n < most else "")
                shown.append(ours + (f" ({theirs:g})" if theirs is not None else ""))
            names = [*map(str, place), *([measure.name] if several else [])]
            lines.append(f"| {' | '.join([*names, *shown])} |")
    return "\n".join(lines)


def _numbers_of_seeds(item: Item, cells: Cells) -> set[int]:
    found = (cells.values(m.column, p, d) for m in item.measures for p in cells.places for d in cells.defenses)
    return {len(values) for values in found if values}


def seeds_in_words(count: int, planned: int | None = None) -> str:
    """1 seed, 2 seeds; 1 of 3 seeds complete where more are ``planned``."""
    if planned is not None and count < planned:
        return f"{count} of {planned} seeds complete"
    return "1 seed" if count == 1 else f"{count} seeds"


_UNEVEN = (
    "In square brackets the number of seeds, where others have more. Means over different seeds cannot be compared."
)


def verdict_table(judged: Mapping[str, Mapping[str, Any]]) -> str:
    """Each claim with its verdict for each subject, and in how many cells it holds, is open, or fails."""
    lines = [f"| claim | {' | '.join(f'`{subject}`' for subject in judged)} |", "|---|" + "---|" * len(judged)]
    for claims in zip(*(found["claims"] for found in judged.values()), strict=True):
        cells = [f"{WORDS[c['verdict']]} ({c['holds']} hold, {c['open']} open, {c['fails']} fail)" for c in claims]
        lines.append(f"| {claims[0]['says']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_the_picture(drawn: int, seeds: int) -> list[str]:
    """What to know of a picture that is not of all seeds, or whose intervals are left out; page's ``drawn``."""
    some = f"Each panel is of the seeds that all its measured cells have, {drawn} at least."
    said = [some] if 0 < drawn < seeds else []
    said += ["Intervals are drawn from three seeds on."] if 0 < drawn < 3 and seeds > 1 else []
    return [" ".join(said)] if said else []


def page(item: Item, cells: Cells, facts: Mapping[str, Any], setting: str, gaps: Sequence[str], drawn: int) -> str:
    """The Markdown page of an item, whose picture has panels of so many seeds at least; 0 where there is none."""
    judged = facts["judged"]
    title = f"{item.name.replace('-', ' ').capitalize()}: {facts['title']}"
    verdicts = ", ".join(f"`{subject}` **{WORDS[found['verdict']]}**" for subject, found in judged.items())
    what = " and ".join(measure.name for measure in item.measures)
    brackets = " In brackets what the paper prints, for its own data." if item.printed else ""
    seeds = ", the mean ± half the 95 % interval over the seeds (Student's t)" if facts["seeds"] > 1 else ""
    parts = [
        f"# {title}",
        f"Verdict: {verdicts}.",
        *([f"![{title}]({item.name}.svg)"] if drawn else []),
        *_of_the_picture(drawn, facts["seeds"]),
        f"{what[0].upper()}{what[1:]}{seeds}.{brackets} {setting}",
        cells_table(item, cells),
        *([_UNEVEN] if len(_numbers_of_seeds(item, cells)) > 1 else []),
        verdict_table(judged),
        *([item.note] if item.note else []),
        *(["Missing:", "\n".join(f"- {gap}" for gap in gaps)] if gaps else []),
    ]
    return "\n\n".join(parts) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def cells_csv(item: Item, cells: Cells) -> str:
    """A line for each cell: mean, half-width, n, and the printed number."""
    rows = []
    for place in cells.places:
        for measure in item.measures:
            for defense in cells.defenses:
                found = cells.estimate(measure.column, place, defense)
                theirs = printed(item, cells, measure.column, place, defense)
                rows.append(
                    {
                        **dict(zip(cells.axes, place, strict=True)),
                        "measure": measure.column,
                        "defense": defense,
                        "mean": found and found.mean,
                        "half_width_95": found and found.half,
                        "n": found.n if found else 0,
                        "printed": theirs,
                        "difference": found.mean - theirs if found and theirs is not None else None,
                    }
                )
    return csv_text(rows)


def summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The list of all items that were looked at, with the verdicts."""
    subjects = [f"`{subject}`" for subject in SUBJECTS]
    head = f"| | what it shows | {' | '.join(subjects)} | runs | seeds complete |"
    lines = [head, "|---|---|" + "---|" * (2 + len(SUBJECTS))]
    for name, item in found.items():
        verdicts = [WORDS[item["judged"][subject]["verdict"]] for subject in SUBJECTS]
        runs, seeds = _of(item["done"], item["runs"]), _of(item["complete"], item["seeds"])
        lines.append(f"| [{name}]({name}.md) | {item['title']} | {' | '.join(verdicts)} | {runs} | {seeds} |")
    return "\n".join(lines)


def _of(count: int, planned: int) -> str:
    return str(planned) if count == planned else f"{count} of {planned}"
