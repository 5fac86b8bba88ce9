"""The pictures: curves over the rounds, lines over a setting, bars, and contours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from purifl.drawing import drawn
from purifl.intervals import Estimate
from purifl.paper.cells import Cells, in_words, shared
from purifl.paper.contours import Problem, Track
from purifl.paper.item import Item

LOOKS: dict[str, tuple[str, str, str]] = {
    "gpd": ("#0072B2", "o", "-"),
    "gpd-paper": ("#D55E00", "s", "-"),
    "upper": ("#000000", "^", "--"),
    "lead": ("#009E73", "v", "-."),
    "wbc": ("#E69F00", "D", ":"),
    "ldp": ("#56B4E9", "P", "-."),
    "byz": ("#CC79A7", "X", "--"),
    "lower": ("#777777", "*", ":"),
}
"""Colour, marker and line of each defence; the colours are those of Okabe and Ito, told apart without colour vision."""


HATCHES = ("", "//", "", "\\\\", "..", "xx", "--", "")
"""Of bars, in the order of the defences."""


@dataclass(frozen=True)
class Point:
    """A point of a curve."""

    panel: str
    defense: str
    round: int
    value: Estimate


def write(figure: Figure, out: Path, name: str) -> None:
    """As PNG and SVG."""
    for form in ("png", "svg"):
        (out / f"{name}.{form}").write_bytes(drawn(figure, form))


def curves(item: Item, points: Sequence[Point]) -> Figure:
    """A panel for each value of the first axis: means over the rounds, shaded by the intervals of :func:`_half`."""
    panels = list(dict.fromkeys(point.panel for point in points))
    figure, axes = _panels(panels)
    for panel, place in zip(panels, axes, strict=True):
        for defense in dict.fromkeys(point.defense for point in points):
            line = [point for point in points if (point.panel, point.defense) == (panel, defense)]
            if line:
                _line(place, defense, [point.round for point in line], [point.value for point in line])
        place.set(title=panel, xlabel="iteration", ylabel=item.measures[0].name)
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(figure, axes, item)


def lines(item: Item, cells: Cells) -> Figure:
    """A panel for each of :func:`panels_of`; the second axis across."""
    panels, across = panels_of(item, cells), cells.along(item.axes[1])
    figure, axes = _panels(list(panels))
    positions = across if all(isinstance(value, int | float) for value in across) else list(range(len(across)))
    for (panel, seeds), place in zip(panels.items(), axes, strict=True):
        for defense in cells.defenses:
            known = [
                (x, found)
                for x, value in zip(positions, across, strict=True)
                if (found := cells.estimate(item.measures[0].column, (panel, value), defense, seeds)) is not None
            ]
            if known:
                _line(place, defense, [x for x, _ in known], [found for _, found in known])
        place.set(title=str(panel), xlabel=in_words(item.axes[1]), ylabel=item.measures[0].name)
        place.set_xticks(positions, [str(value) for value in across])
    return _finish(figure, axes, item)


def bars(item: Item, cells: Cells) -> Figure:
    """A panel for each of :func:`panels_of`, a group for each value of the second axis, a bar for each defence."""
    panels, groups = panels_of(item, cells), cells.along(item.axes[1])
    figure, axes = _panels(list(panels), wide=True)
    width = 0.8 / len(cells.defenses)
    for (panel, seeds), place in zip(panels.items(), axes, strict=True):
        for k, defense in enumerate(cells.defenses):
            shift = (k - (len(cells.defenses) - 1) / 2) * width
            known = [
                (j + shift, found)
                for j, group in enumerate(groups)
                if (found := cells.estimate(item.measures[0].column, (panel, group), defense, seeds)) is not None
            ]
            if not known:
                continue
            place.bar(
                [x for x, _ in known],
                [found.mean for _, found in known],
                width,
                yerr=[_half(found) for _, found in known],
                label=defense,
                color=LOOKS[defense][0],
                hatch=HATCHES[k % len(HATCHES)],
                edgecolor="white",
                linewidth=0.5,
                error_kw={"linewidth": 0.8},
            )
        place.set(title=str(panel), ylabel=item.measures[0].name, xlim=(-0.5, len(groups) - 0.5))
        place.set_xticks(range(len(groups)), [str(group) for group in groups])
    return _finish(figure, axes, item)


def contours(item: Item, tracks: dict[str, Track]) -> Figure:
    """A panel for each way to run the problem: the benign loss, and where each benign client went."""
    assert item.problem is not None
    problem = Problem(item.problem)
    figure, axes = _panels(list(tracks))
    steps = np.concatenate([track.paths.reshape(-1, 2) for track in tracks.values()])
    low, high = steps.min(0) - 1.5, steps.max(0) + 1.5
    x, y = np.meshgrid(np.linspace(low[0], high[0], 70), np.linspace(low[1], high[1], 70))
    for (panel, track), place in zip(tracks.items(), axes, strict=True):
        honest = panel == "honest"
        height = problem.loss(np.stack([x, y], -1), honest)
        levels = height.min() + (height.max() - height.min()) * np.linspace(0, 1, 24) ** 2
        place.contour(x, y, height, levels=levels, colors="#999999", linewidths=0.6, linestyles="solid")
        best = problem.optimum(honest)
        place.plot(*best, marker="*", markersize=15, color="#F0E442", markeredgecolor="black", linestyle="none")
        for k, style in zip(range(track.paths.shape[1]), ("-", "--", ":"), strict=False):
            place.plot(*track.paths[:, k].T, style, color="#0072B2", marker=".", markersize=4, linewidth=1.2)
        place.plot(*track.paths[0, 0], marker="o", color="black", linestyle="none")
        place.plot(*track.paths[-1].mean(0), marker="X", markersize=10, color="#D55E00", linestyle="none")
        if track.cut is not None:
            where = track.paths[track.cut].mean(0)
            place.annotate(f"cut in round {track.cut}", where, (8, 8), textcoords="offset points", fontsize=8)
            place.plot(*where, marker="o", markersize=11, markerfacecolor="none", markeredgecolor="#D55E00")
        place.set(title=f"{panel}: loss {track.loss:.2f}", xlabel="parameter 1", ylabel="parameter 2")
    figure.suptitle("● start   ★ benign optimum   ✖ end   ○ attacker cut", fontsize=9)
    return figure


def panels_of(item: Item, cells: Cells) -> dict[Any, set[int]]:
    """Values of the first axis to draw a panel of, each with the seeds that all its measured cells have.

    At least half of the cells were measured: fewer show nothing.
    """
    column, across = item.measures[0].column, cells.along(item.axes[1])
    panels = {}
    for panel in cells.along(item.axes[0]):
        values = [cells.values(column, (panel, x), defense) for x in across for defense in cells.defenses]
        if 2 * sum(map(bool, values)) >= len(values) and (seeds := shared(values)):
            panels[panel] = seeds
    return panels


def _panels(names: Sequence[Any], wide: bool = False) -> tuple[Figure, list[Axes]]:
    across = 1 if wide else min(2, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=((9 if wide else 4.6) * across, 3.4 * down + 0.7), layout="constrained")
    return figure, [figure.add_subplot(down, across, k + 1) for k in range(len(names))]


def _line(axes: Axes, defense: str, x: Sequence[float], values: Sequence[Estimate]) -> None:
    color, marker, style = LOOKS[defense]
    axes.plot(
        x, [v.mean for v in values], style, color=color, marker=marker, markersize=4, label=defense, linewidth=1.5
    )
    if len(x) == 1:
        axes.errorbar(x, [values[0].mean], yerr=_half(values[0]), color=color, linewidth=0.8)
    low, high = [v.mean - _half(v) for v in values], [v.mean + _half(v) for v in values]
    axes.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)


def _half(value: Estimate) -> float:
    """Half the interval to draw, of three seeds or more: that of two is 12.7 standard errors and hides the rest."""
    return value.half if value.half is not None and value.n > 2 else 0.0


def _finish(figure: Figure, axes: Sequence[Axes], item: Item) -> Figure:
    for place in axes:
        place.grid(axis="y" if item.kind == "bars" else "both", color="#DDDDDD", linewidth=0.6)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
        if "%" in item.measures[0].name:
            place.set_ylim(-2, 102)
    handles = {
        label: handle for place in axes for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure
