r"""What waiting before a cut keeps of what an attacker knows, and what of its attack: a figure.

    purifl sweep benchmarks/benefit.yaml --device cuda --store store
    purifl reproduce table-3 --device cuda --out reproduction
    python benchmarks/benefit.py store reproduction/store --figure docs/images/benefit.svg

In the setting of the paper's Table 3. Stores of runs, or tables exported from them; means over the seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from findings import picture
from matplotlib.figure import Figure

from purifl.drawing import drawn
from purifl.errors import PuriflError
from purifl.paper.item import items
from purifl.runs import Row
from purifl.sweeps import table

KEPT, LEFT = "accuracy_label_1", "attack_accuracy"
SETTING = {"attack.sources": ["[0]"], "clients": ["5"], "partition": ["non-overlap"], "dataset": ["mnist"]}


def figure(runs: list[Row]) -> Figure:
    """Label-1 accuracy over attack accuracy: a curve for `gpd`, points for the others and for the printed numbers."""
    page = Figure(figsize=(7, 4.5), layout="constrained")
    axes = page.subplots()
    curve = table.group(table.select(runs, {"defense": ["gpd"]}), ["detector.sharpness"], [KEPT, LEFT])
    axes.plot(*_points(curve), "o-", color="C0", label="gpd, by its sharpness c (4 is the default)")
    for k, row in enumerate(curve):
        place = (5, 5) if k % 2 else (-5, -14)
        axes.annotate(f"{row['detector.sharpness']:g}", _at(row), xytext=place, textcoords="offset points")
    others = [row for row in table.group(runs, ["defense"], [KEPT, LEFT]) if row["defense"] != "gpd"]
    axes.plot(*_points(others), "s", color="C1", label="others, as in the paper")
    for k, row in enumerate(others):
        place = (5, -12) if k % 2 else (-10, 8)
        axes.annotate(row["defense"], _at(row), xytext=place, textcoords="offset points", fontsize="small")
    kept, left = (next(line for line in items()["table-3"].printed if line.get("measure") == m) for m in (KEPT, LEFT))
    axes.plot(left["gpd"], kept["gpd"], "*", color="C3", markersize=14, label="GPD as the paper prints it")
    axes.set_xlabel("attack accuracy on label 0, %")
    axes.set_ylabel("test accuracy on label 1, %")
    axes.set_ylim(top=110)
    axes.legend(loc="lower right")
    return page


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
