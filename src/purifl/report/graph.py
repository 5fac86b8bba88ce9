"""The trust graph: who still listens to whom at the end, and who was wrongly cut off."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from purifl.metrics import Row
from purifl.report.figures import BLUE, FAINT, INK, ORANGE, PURPLE, SKY, VERMILION, plain
from purifl.report.layout import CROWD, Position, layout
from purifl.result import Result


class EdgeStyle(NamedTuple):
    """How a benign client's edge is drawn; ``width`` None means by trust."""

    label: str
    color: str
    dashes: str
    width: float | None


EDGES = {
    (False, False): EdgeStyle("trusts a benign client", BLUE, "-", None),
    (True, True): EdgeStyle("has cut an attacker", FAINT, "--", 0.9),
    (False, True): EdgeStyle("still trusts an attacker", VERMILION, "-", None),
    (True, False): EdgeStyle("false alarm: cut a benign client", PURPLE, ":", 2.0),
}
"""By whether the edge is cut and whether it leads to a malicious client; what matters most is drawn last."""


class NodeStyle(NamedTuple):
    """How a kind of client is drawn."""

    label: str
    marker: str
    fill: str
    edge: str


BENIGN = NodeStyle("benign client", "o", SKY, INK)
MALICIOUS = NodeStyle("attacker", "D", ORANGE, INK)
EXCLUDED = NodeStyle("attacker (left out)", "D", "white", ORANGE)


def columns(results: Sequence[Result]) -> int:
    """Panels side by side, fewer where they are crowded."""
    return min(len(results), 2 if _largest(results) > CROWD else 4)


def trust_graph(results: Sequence[Result], names: Sequence[str]) -> Figure:
    """A panel per run; the half of a line next to a client tells that client's trust in the other."""
    across = columns(results)
    down = math.ceil(len(results) / across)
    side = (5.2 if across == 1 else 3.2) + min(_largest(results) / 40, 3)
    figure = Figure(figsize=(max(side * across, 6.4), (side + 0.5) * down + 0.7), layout="compressed")
    handles: dict[str, Artist] = {}
    for k, (result, name) in enumerate(zip(results, names, strict=True)):
        axes = figure.add_subplot(down, across, k + 1)
        handles |= _panel(axes, result, layout(result, results))
        missed, wrong = result.final["missed_edges"], result.final["false_alarm_edges"]
        title = f"{textwrap.fill(name, 34)}\nopen to attackers: {missed}, false alarms: {wrong}"
        axes.set_title(plain(title), fontsize=10)
    order = [node.label for node in (BENIGN, MALICIOUS, EXCLUDED)] + [edge.label for edge in EDGES.values()]
    found = [handles[label] for label in order if label in handles]
    figure.legend(handles=found, loc="outside lower center", ncols=min(across + 1, 4), frameon=False)
    return figure


def _largest(results: Sequence[Result]) -> int:
    return max(result.experiment.clients for result in results)


def _panel(axes: Axes, result: Result, spots: dict[int, Position]) -> dict[str, Artist]:
    """Draw one run; the legend entries of what it shows."""
    axes.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
    axes.axis("off")
    handles: dict[str, Artist] = {}
    for (cut, malicious), style in EDGES.items():
        edges = [e for e in result.trust if (e["cut"], e["neighbour"] in result.malicious) == (cut, malicious)]
        if edges:
            _draw_edges(axes, result, edges, style, spots)
            width = style.width or 2
            handles[style.label] = Line2D([], [], color=style.color, ls=style.dashes, lw=width, label=style.label)
    excluded = result.experiment.defense.knows_malicious
    for client, spot in spots.items():
        style_of = (EXCLUDED if excluded else MALICIOUS) if client in result.malicious else BENIGN
        handles[style_of.label] = _draw_node(axes, client, spot, style_of, len(spots))
    return handles


def _draw_edges(axes: Axes, result: Result, edges: list[Row], style: EdgeStyle, spots: dict[int, Position]) -> None:
    """Half a line to a benign client, who draws the other half; a whole one to a malicious client."""
    segments, widths, colors = [], [], []
    degrees = Counter(edge["client"] for edge in result.trust)
    crowding = min(1.0, max(0.25, math.sqrt(100 / len(result.trust))))
    for edge in edges:
        (x, y), (to_x, to_y) = spots[edge["client"]], spots[edge["neighbour"]]
        malicious = edge["neighbour"] in result.malicious
        part = 1.0 if malicious else 0.5
        segments.append([(x, y), (x + part * (to_x - x), y + part * (to_y - y))])
        share = _share(edge["trust"], 1 + degrees[edge["client"]])
        wrong = edge["cut"] != malicious
        widths.append((max(crowding, 0.6) if wrong else crowding) * (style.width or 0.6 + 1.5 * share))
        colors.append(to_rgba(style.color, 1 if style.width or malicious else crowding * (0.35 + 0.4 * share)))
    axes.add_collection(
        LineCollection(segments, linewidths=widths, colors=colors, linestyles=style.dashes, capstyle="butt", zorder=1)
    )


def _share(trust: float | None, size: int) -> float:
    """Trust relative to 1/|N_i|, what each of the ``size`` members starts with, between 0 and 1.5."""
    return min(trust * size, 1.5) if trust is not None and math.isfinite(trust) else 0.0


def _draw_node(axes: Axes, client: int, spot: Position, style: NodeStyle, clients: int) -> Artist:
    size = max(17 * min(1, math.sqrt(12 / clients)), 7)
    axes.add_line(_dot(style, size, [spot[0]], [spot[1]]))
    axes.text(*spot, str(client), ha="center", va="center_baseline", fontsize=max(size / 2, 4), color=INK, zorder=3)
    return _dot(style, 9, [], [])


def _dot(style: NodeStyle, size: float, x: list[float], y: list[float]) -> Line2D:
    """A client of that kind, on the graph or in the legend."""
    dot = Line2D(x, y, marker=style.marker, markersize=size, linestyle="none", label=style.label, zorder=2)
    dot.set(markerfacecolor=style.fill, markeredgecolor=style.edge)
    return dot
