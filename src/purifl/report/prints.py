"""The figures of a report to print, as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from purifl.drawing import drawn
from purifl.report.content import CURVES
from purifl.report.downloads import slug
from purifl.report.figures import FORMATS, curves, heat_map
from purifl.report.graph import trust_graph
from purifl.report.groups import Setup

NAMES = (*map(slug, CURVES), "trust", "data")


def write_figures(found: Sequence[Setup], out: Path, on_setup: Callable[[int, int], None] | None = None) -> list[Path]:
    """Every figure as SVG, PDF and PNG in ``out``, in a folder for each set-up where there are several.

    ``on_setup`` is called as each begins, and once more in the end, with how many are done and how many there are.
    """
    _clear(out)
    written = []
    tell = on_setup or (lambda done, total: None)
    for k, setup in enumerate(found):
        tell(k, len(found))
        folder = out / f"{k + 1}-{slug(setup.name)}" if len(found) > 1 else out
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures(setup):
            for form in FORMATS:
                file = folder / f"{name}.{form}"
                file.write_bytes(drawn(figure, form))
                written.append(file)
    tell(len(found), len(found))
    return written


def _clear(out: Path) -> None:
    """Remove the figures of an earlier report, and the folders that only held such."""
    for folder in (out, *out.glob("[0-9]*-*/")):
        for stale in (folder / f"{name}.{form}" for name in NAMES for form in FORMATS):
            stale.unlink(missing_ok=True)
        if folder != out and not any(folder.iterdir()):
            folder.rmdir()


def figures(setup: Setup) -> Iterator[tuple[str, Figure]]:
    """All figures that there is something to show in; graphs and data are those of the first seed."""
    for key in CURVES:
        if any(row.get(key) is not None for run in setup.runs for row in run.history):
            yield slug(key), curves(setup.groups, key)
    first, names = [group.first for group in setup.groups], [group.name for group in setup.groups]
    yield "trust", trust_graph(first, names)
    if all(run.histograms for run in first):
        same = all((run.histograms, run.malicious) == (first[0].histograms, first[0].malicious) for run in first)
        yield "data", heat_map(first[:1], names[:1]) if same else heat_map(first, names)
