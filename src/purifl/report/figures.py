"""Figures to print: curves over rounds and the heat map of the data; without pyplot and so without global state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from purifl.report.content import CURVES, curve
from purifl.report.groups import Group
from purifl.report.text import interval, number, share
from purifl.result import Result

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
"""The colours of Okabe and Ito that stand out on white: told apart also by the colour-blind."""

INK, FAINT = "#222222", "#8A8A8A"
FORMATS = ("svg", "pdf", "png")
_CELLS_WITH_NUMBERS = 400


class Look(NamedTuple):
    """How a run's line is drawn; colour, dashes and marker each tell neighbouring runs apart."""

    color: str
    linestyle: str
    marker: str


def _look(k: int) -> Look:
    colors, dashes, markers = (INK, BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY), ("-", "--", "-.", ":"), "osD^vPX*"
    return Look(colors[k % 7], dashes[k % 4], markers[k % 8])


def plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def curves(groups: Sequence[Group], key: str) -> Figure:
    """A metric over the rounds, a line per defence, the best at the end first in the legend."""
    figure = Figure(figsize=(6, 4.2 + 0.22 * len(groups)), layout="constrained")
    axes = figure.add_subplot()
    sign = 1 if key == "tracking_error" else -1
    handles = []
    for k, group in enumerate(groups):
        end = group.final(key)
        line = _curve(axes, group, key, _look(k))
        handles.append((math.inf if end is None else sign * end.mean, line))
    _axes(axes, key, max(len(group.first.history) for group in groups))
    if key == "tracking_error" and any(row.get(key) for group in groups for run in group.runs for row in run.history):
        axes.set_yscale("log", nonpositive="mask")
    lines = [line for _, line in sorted(handles, key=lambda handle: handle[0])]
    if any(len(group.runs) == 1 and group.first.detected_round is not None for group in groups):
        lines.append(_ring([], [], INK))
    columns = 2 if max(len(group.name) for group in groups) < 24 else 1
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False, handlelength=3)
    return figure


def _curve(axes: Axes, group: Group, key: str, look: Look) -> Line2D:
    """One line with its band, ringed where a single run's attackers were cut off."""
    found, log = curve(group, key), key == "tracking_error"
    rounds = found["rounds"]
    mean, low, high = (
        np.array([math.nan if value is None else value if log else 100 * value for value in found[part]], dtype=float)
        for part in ("mean", "low", "high")
    )
    marked = [*range(0, len(rounds), max(1, len(rounds) // 10))]
    (line,) = axes.plot(rounds, mean, **look._asdict(), linewidth=1.8, markersize=5, markevery=marked, clip_on=False)
    axes.fill_between(rounds, low, high, color=look.color, alpha=0.15, linewidth=0)
    end = group.final(key)
    line.set_label(plain(f"{group.name}: {interval(end, number) if log else share(end)}"))
    cut = group.first.detected_round if len(group.runs) == 1 else None
    if cut is not None and len(rounds):
        axes.add_line(_ring([cut], [float(np.interp(cut, rounds, mean))], look.color))
    return line


def _ring(x: list[float], y: list[float], color: str) -> Line2D:
    """Marks the round in which all attackers were cut off, in the picture and in the legend."""
    ring = Line2D(x, y, marker="o", markersize=13, linestyle="none", label="all attackers cut off", zorder=5)
    ring.set(markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.5, clip_on=False)
    return ring


def _axes(axes: Axes, key: str, rounds: int) -> None:
    axes.set(xlabel="round", ylabel=CURVES[key].lower(), xlim=(min(1, rounds - 1), rounds + 0.02 * rounds))
    if key != "tracking_error":
        axes.set_ylim(0, 100)
        axes.yaxis.set_major_formatter(PercentFormatter(100, symbol=" %"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def heat_map(results: Sequence[Result], names: Sequence[str]) -> Figure:
    """How many training samples of each label each client holds, a panel per run, two side by side."""
    clients = max(len(result.histograms) for result in results)
    classes = max(len(result.histograms[0]) for result in results)
    across, down = min(len(results), 2), math.ceil(len(results) / 2)
    width, height = max(1.6 + 0.42 * min(classes, 20), 4), 1.3 + 0.28 * min(clients, 40)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    top = max(count for result in results for row in result.histograms for count in row)
    for k, (result, name) in enumerate(zip(results, names, strict=True)):
        axes = figure.add_subplot(down, across, k + 1)
        image = axes.imshow(result.histograms, cmap="Blues", vmin=0, vmax=max(top, 1), aspect="auto")
        _describe_cells(axes, result, top)
        if len(results) > 1:
            axes.set_title(plain(name), fontsize=10)
    figure.colorbar(image, ax=figure.axes, label="training samples", fraction=0.05)
    return figure


def _describe_cells(axes: Axes, result: Result, top: int) -> None:
    """Clients down, labels across, the counts written where there is room."""
    table = result.histograms
    shown = range(0, len(table), 1 + len(table) // 120)
    marked = [f"attacker ◆ {k}" if k in result.malicious else str(k) for k in shown]
    axes.set_yticks(list(shown), marked, fontsize=max(5, min(10, 500 / len(table))))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=min(len(table[0]), 20)))
    axes.set(xlabel="label", ylabel="client")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if len(table) * len(table[0]) <= _CELLS_WITH_NUMBERS:
        for i, row in enumerate(table):
            for j, count in enumerate(row):
                axes.text(j, i, str(count), ha="center", va="center", fontsize=7, color="w" if count > top / 2 else INK)
