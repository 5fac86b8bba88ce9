"""Curves over rounds and the heat map of the data, drawn without pyplot and so without global state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from purifl.report.text import percent
from purifl.runs import Result

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
"""The colours of Okabe and Ito that stand out on white: told apart also by the colour-blind."""

INK, FAINT = "#222222", "#8A8A8A"
_CELLS_WITH_NUMBERS = 400


class Look(NamedTuple):
    """How a run's line is drawn; colour, dashes and marker each tell neighbouring runs apart."""

    color: str
    linestyle: str
    marker: str


def _look(k: int) -> Look:
    colors, dashes, markers = (INK, BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY), ("-", "--", "-.", ":"), "osD^vPX*"
    return Look(colors[k % 7], dashes[k % 4], markers[k % 8])


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    out = BytesIO()
    FigureCanvasAgg(figure).print_figure(out, format="png", dpi=150)
    return out.getvalue()


def plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def curves(results: Sequence[Result], names: Sequence[str], key: str, worst: str = "") -> Figure:
    """A metric over the rounds, a line per run, the best at the end first in the legend.

    Args:
        results: The runs.
        names: What they are called.
        key: The metric, a share of 1.
        worst: The metric of the worst client; the band from it to ``key`` is shaded.
    """
    figure = Figure(figsize=(6, 4.2 + 0.22 * len(results)), layout="constrained")
    axes = figure.add_subplot()
    handles = []
    for k, (result, name) in enumerate(zip(results, names, strict=True)):
        look = _look(k)
        line = _curve(axes, result, key, look)
        line.set_label(plain(f"{name}: {percent(result.final[key])} %"))
        handles.append((result.final[key] or 0.0, line))
        if worst:
            rounds, low = _series(result, worst)
            axes.fill_between(rounds, low, _series(result, key)[1], color=look.color, alpha=0.15, linewidth=0)
    _percent_axes(axes, key.replace("_", " "), max(len(result.history) for result in results))
    lines = [line for _, line in sorted(handles, key=lambda handle: -handle[0])]
    if any(result.detected_round is not None for result in results):
        lines.append(_ring([], [], INK))
    columns = 2 if max(len(name) for name in names) < 24 else 1
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False, handlelength=3)
    return figure


def _curve(axes: Axes, result: Result, key: str, look: Look) -> Line2D:
    """One run's line, ringed where its attackers were cut off."""
    rounds, values = _series(result, key)
    marked = [*range(0, len(rounds), max(1, len(rounds) // 10))]
    (line,) = axes.plot(rounds, values, **look._asdict(), linewidth=1.8, markersize=5, markevery=marked, clip_on=False)
    cut = result.detected_round
    if cut is not None:
        axes.axvline(cut, color=look.color, linestyle=look.linestyle, linewidth=0.8, alpha=0.6)
        if len(rounds):
            height = float(np.interp(cut, rounds, values))
            axes.add_line(_ring([cut], [height], look.color))
    return line


def _ring(x: list[float], y: list[float], color: str) -> Line2D:
    """Marks the round in which all attackers were cut off, in the picture and in the legend."""
    ring = Line2D(x, y, marker="o", markersize=13, linestyle="none", label="all attackers cut off", zorder=5)
    ring.set(markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.5, clip_on=False)
    return ring


def _series(result: Result, key: str) -> tuple[list[int], list[float]]:
    """The rounds in which ``key`` was measured, and its values in percent, a gap where it is null."""
    rows = [row for row in result.history if key in row]
    return [row["round"] for row in rows], [float("nan") if row[key] is None else 100 * row[key] for row in rows]


def _percent_axes(axes: Axes, ylabel: str, rounds: int) -> None:
    axes.set(xlabel="round", ylabel=ylabel, ylim=(0, 100), xlim=(min(1, rounds - 1), rounds + 0.02 * rounds))
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
