r"""What `gpd` keeps of what an attacker knows, and what of its attack: a figure.

    purifl sweep benchmarks/benefit.yaml --device cuda --store store
    purifl reproduce table-3 --device cuda --out reproduction
    python benchmarks/benefit.py store reproduction/store --figure docs/images/benefit.svg

In the setting of the paper's Table 3. Stores of runs, or tables exported from them; means over the seeds.
"""

from __future__ import annotations

import argparse
from math import dist
from pathlib import Path

from findings import picture
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purifl.defenses.gpd import GPD
from purifl.detection.persistence import Persistence
from purifl.drawing import drawn
from purifl.errors import PuriflError
from purifl.metrics import Row
from purifl.paper.item import items
from purifl.sweeps import table

KEPT, LEFT = "accuracy_label_1", "attack_accuracy"
SHARPNESS, KEEP = "detector.sharpness", "defense.keep"
SETTING = {"attack.sources": ["[0]"], "clients": ["5"], "partition": ["non-overlap"], "dataset": ["mnist"]}
LAX = 8.0  # the `keep` of the curve by sharpness: with the default there is next to nothing to see
CLOSE = 12  # percent of attack accuracy: what the second panel shows
NEXT = 0.65  # points between which labels would lie on each other


def figure(runs: list[Row]) -> Figure:
    """Label-1 accuracy over attack accuracy: all of it, and its lower left corner."""
    page = Figure(figsize=(10, 4.5), layout="constrained")
    whole, corner = page.subplots(1, 2)
    for axes, close in ((whole, False), (corner, True)):
        _gpd(axes, runs, close)
        _others(axes, runs, close)
        axes.set_xlabel("attack accuracy on label 0, %")
    whole.set(ylabel="test accuracy on label 1, %", xlim=(-5, 115), ylim=(-8, 110))
    corner.set(xlim=(-0.5, CLOSE), ylim=(-3, 40))
    corner.legend(loc="upper left", fontsize="small")
    return page


def _gpd(axes: Axes, runs: list[Row], close: bool) -> None:
    """Curves for `gpd` by its sharpness, and by what it keeps at most."""
    found = table.group(table.select(runs, {"defense": ["gpd"]}), [SHARPNESS, KEEP], [KEPT, LEFT])
    lax = [row for row in found if row[KEEP] == LAX]
    label = f"gpd, keep = {LAX:g}, by its sharpness c (default {Persistence().sharpness:g})"
    axes.plot(*_points(lax), "o-C0", label=label)
    _name(axes, lax, SHARPNESS, (-8, 14 if close else 7), close)
    for style, sharpness, place in (("D--C2", Persistence().sharpness, (4, -11)), ("^:C4", 2, (3, 6))):
        curve = [row for row in found if row[SHARPNESS] == sharpness]
        axes.plot(
            *_points(curve), style, markersize=4, label=f"gpd, c = {sharpness:g}, by keep (default {GPD().keep:g})"
        )
        if close:
            _name(axes, curve, KEEP, place, close, color=style[-2:])  # the style ends with its colour


def _others(axes: Axes, runs: list[Row], close: bool) -> None:
    """Points for the others and for the printed numbers."""
    others = [row for row in table.group(runs, ["defense"], [KEPT, LEFT]) if row["defense"] != "gpd"]
    axes.plot(*_points(others), "sC1", label="others, as in the paper")
    _name(axes, others[::2], "defense", (6, 6), close)  # above and below in turns: some are close to each other
    _name(axes, others[1::2], "defense", (-2, 20) if close else (6, -12), close)
    kept, left = (next(line for line in items()["table-3"].printed if line.get("measure") == m) for m in (KEPT, LEFT))
    axes.plot(left["gpd"], kept["gpd"], "*C3", markersize=14, label="GPD as the paper prints it")


def _name(axes: Axes, rows: list[Row], field: str, place: tuple[int, int], close: bool, color: str = "k") -> None:
    """What each point is, in the panel that has room for it; those next to each other have one label."""
    labels: list[tuple[tuple[float, float], list[str]]] = []
    for row in rows:
        x, y = _at(row)
        if (x <= CLOSE) != close:
            continue
        value = row[field]
        text = "null" if value is None else f"{value:g}" if isinstance(value, float) else value
        beside = next((texts for point, texts in labels if dist(point, (x, y)) < NEXT), None)
        if beside is None:
            labels.append(((x, y), [text]))
        else:
            beside.append(text)
    for point, texts in labels:
        axes.annotate(", ".join(texts), point, xytext=place, textcoords="offset points", fontsize="small", color=color)


def _at(row: Row) -> tuple[float, float]:
    return 100 * row[LEFT], 100 * row[KEPT]


def _points(rows: list[Row]) -> tuple[list[float], list[float]]:
    return [_at(row)[0] for row in rows], [_at(row)[1] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="stores, or tables exported from them")
    parser.add_argument("--figure", type=picture, required=True, help="an .svg, .pdf or .png file to draw")
    args = parser.parse_args()
    try:
        runs = {row["run"]: row for source in args.runs for row in table.select(table.rows(source), SETTING)}
    except PuriflError as error:
        parser.error(str(error))
    args.figure.write_bytes(drawn(figure(list(runs.values())), args.figure.suffix[1:]))


if __name__ == "__main__":
    main()
