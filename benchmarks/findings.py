r"""What the study found: a table for each of its parts, and a figure.

    python benchmarks/findings.py docs/results/study.csv
    python benchmarks/findings.py docs/results/study.csv --figure docs/images/study.svg
    python benchmarks/findings.py docs/results/study-digits.csv --short     # a line for each part

Means over the seeds with 95 % intervals (Student's t). *gpd − Upper* is taken seed by seed, in points; a seed fixes the
data, the attackers and the initial model. *Worst part* is that difference in the part of the graph where it is least,
the graph falling into parts without the attackers. *Half cut by* is the median over the seeds of the round by which
half of the edges from benign clients to malicious ones were cut, *all cut by* that of the last; *missed* and *wrongly
cut* are edges to malicious and to benign clients, of all such edges.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from matplotlib.figure import Figure
from study import ADAPTIVE, ATTACKS, KEY, NOISE, PARTITIONS, PARTS, STARS, TOPOLOGIES, USUAL, read

from purifl.drawing import drawn
from purifl.errors import PuriflError
from purifl.intervals import estimate

FORMS = (".svg", ".pdf", ".png")
Row = dict[str, str]
SETTING = KEY[:-1]
WHERE_UPPER_IS = dict.fromkeys(("attacks", "weak", "adaptive"), ("attacks", "bounds"))
WHERE_UPPER_IS |= {"noise": ("sparse",), "forty": ("ratios", "forty")}
GOALS = {"attacks": -0.5, "adaptive": -2.0, "ratios": -0.5, "forty": -0.5}
GOALS |= dict.fromkeys(("sparse", "skewed", "star"), -1.0)
"""How far under Upper a setting may be, in points."""
ALSO = {"weak": GOALS["attacks"], "data": GOALS["attacks"], "noise": GOALS["sparse"]}
NO_GOAL = ("0.6", "0.8")
"""Ratios for which there is none."""
TITLES = {
    "attacks": "two attackers of ten, complete graph",
    "adaptive": "attacks that know the defence",
    "ratios": "more attackers, iid and label-dir",
    "forty": "40 % attackers, what else there is of six attacks and four partitions",
    "sparse": "sparse graphs, iid and label-dir; the worst part is in the table",
    "skewed": "sparse graphs, quantity-dir and non-overlap; likewise",
    "star": "star with malicious leaves",
}


class Findings:
    """Rows of the study by setting."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in rows:
            self._groups[tuple(row[key] for key in SETTING)].append(row)

    def tables(self) -> dict[tuple[str, str], list[Row]]:
        """The settings of each data set and part in which `gpd` ran, as the study lists them."""
        found: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for key in sorted(self._groups, key=_order):
            setting = dict(zip(SETTING, key, strict=True))
            if setting["defense"] == "gpd":
                found[setting["dataset"], setting["part"]].append(setting)
        return found

    def gpd(self, setting: Row) -> list[Row]:
        """The runs of a setting."""
        return self._groups[tuple(setting[key] for key in SETTING)]

    def upper(self, setting: Row, attack: str = ATTACKS[0]) -> dict[str, Row]:
        """Upper's runs without the attackers of a setting, for the seeds it was run with, tested for ``attack``."""
        parts = WHERE_UPPER_IS.get(setting["part"], (setting["part"],))
        changed = {"attack": attack, "defense": "upper", "level": str(USUAL["level"])}
        keys = [tuple((setting | changed | {"part": part})[key] for key in SETTING) for part in parts]
        seeds = {row["seed"] for row in self.gpd(setting)}
        return {row["seed"]: row for key in keys for row in self._groups.get(key, []) if row["seed"] in seeds}

    def differences(self, setting: Row, of: Callable[[Row, Row], float]) -> list[float]:
        """What ``of`` makes of a run and Upper's with the same seed, for each seed that has both."""
        upper = self.upper(setting)
        return [of(row, upper[row["seed"]]) for row in self.gpd(setting) if row["seed"] in upper]


def ahead(run: Row, upper: Row) -> float:
    """By how much `gpd` is more accurate."""
    return float(run["test_accuracy"]) - float(upper["test_accuracy"])


def worst_part(run: Row, upper: Row) -> float:
    """The same in the part of the graph where it is least."""
    ours, theirs = ([float(x) for x in row["components"].split()] for row in (run, upper))
    return min(a - b for a, b in zip(ours, theirs, strict=True))


def markdown(findings: Findings, settings: list[Row]) -> str:
    """A table with a line for each setting; columns of which nothing is known are left out."""
    lines = [_line(findings, setting) for setting in settings]
    names = [name for name in lines[0] if any(line[name] != "–" for line in lines)]
    table = [names, ["---"] * len(names), *([line[name] for name in names] for line in lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


def _line(findings: Findings, setting: Row) -> Row:
    runs, upper = findings.gpd(setting), list(findings.upper(setting).values())
    aimed = list(findings.upper(setting, setting["attack"]).values())
    sparse = setting["topology"] != USUAL["topology"]
    return {
        "setting": words(setting),
        "seeds": str(len(runs)),
        "Upper, %": percent(_values(upper, "test_accuracy")),
        "gpd, %": percent(_values(runs, "test_accuracy")),
        "gpd − Upper": percent(findings.differences(setting, ahead), sign="+"),
        "worst part": percent(findings.differences(setting, worst_part), sign="+") if sparse else "–",
        "attack accuracy: Upper, %": percent(_values(aimed, "attack_accuracy")),
        "gpd's, %": percent(_values(runs, "attack_accuracy")),
        "half cut by": _round(runs, "median_cut_round"),
        "all cut by": _round(runs, "detected_round"),
        "missed": _share(runs, "missed_edges", "malicious_edges"),
        "wrongly cut": _share(runs, "false_alarm_edges", "benign_edges"),
    }


def short(findings: Findings, settings: list[Row]) -> str:
    """A table with a line for each part and ratio: how many settings are within the goal for accuracy, and the least.

    Settings count by their means over the seeds, and on sparse graphs by the worst part of the graph.
    """
    parts: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for setting in settings:
        parts[setting["part"], setting["ratio"]].append(setting)
    names = ["part", "settings", "runs", "within the goal", "gpd − Upper", "least", "", "missed", "wrongly cut"]
    table = [names, ["---"] * len(names), *(_part(findings, *key, each) for key, each in parts.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


def _part(findings: Findings, part: str, ratio: str, settings: list[Row]) -> list[str]:
    name = part if ratio == str(USUAL["ratio"]) else f"{part}, ratio {ratio}"
    goal = None if ratio in NO_GOAL else (GOALS | ALSO).get(part)
    runs = [run for setting in settings for run in findings.gpd(setting)]
    means = [(fmean(found), words(setting)) for setting in settings if (found := _compared(findings, setting))]
    within, mean, worst, where = ["–"] * 4
    if means:
        mean, (least, where) = percent([fmean(each for each, _ in means)], sign="+"), min(means)
        worst = percent([least], sign="+")
    if means and goal is not None:
        within = f"{sum(100 * each >= goal for each, _ in means)} of {len(means)}"
    cut = [_share(runs, "missed_edges", "malicious_edges"), _share(runs, "false_alarm_edges", "benign_edges")]
    return [name, str(len(settings)), str(len(runs)), within, mean, worst, where, *cut]


def _compared(findings: Findings, setting: Row) -> list[float]:
    return findings.differences(setting, ahead if setting["topology"] == USUAL["topology"] else worst_part)


def _round(runs: list[Row], column: str) -> str:
    """The median round in a column, empty for never; not known where it is empty though all were cut."""
    attacked = [row for row in runs if int(row["malicious_edges"])]
    if not attacked or any(row["detected_round"] and not row[column] for row in attacked):
        return "–"
    return f"{median_low(float(row[column] or 'inf') for row in attacked):.0f}".replace("inf", "never")


def figure(findings: Findings, dataset: str) -> Figure:
    """The difference between `gpd` and Upper with its interval in every setting, a panel for each part."""
    tables = findings.tables()
    parts = [part for part in GOALS if (dataset, part) in tables]
    page = Figure(figsize=(10, 3.2 * len(parts)), layout="constrained")
    for axes, part in zip(page.subplots(len(parts), 1, squeeze=False)[:, 0], parts, strict=True):
        _panel(axes, findings, tables[dataset, part])
        axes.axhline(GOALS[part], color="black", linewidth=0.8, linestyle=":", label="goal")
        axes.set_title(TITLES[part], loc="left")
    page.axes[0].legend(ncols=len(PARTITIONS) + 1, fontsize="small", loc="lower left")
    return page


def _panel(axes: Any, findings: Findings, settings: list[Row]) -> None:
    """A tick for each setting but for the partition, which has a marker and a place of its own beside it."""
    ticks = list(dict.fromkeys(words(setting, partition=False) for setting in settings))
    for k, partition in enumerate(PARTITIONS):
        own = [setting for setting in settings if setting["partition"] == partition]
        chosen = [setting for setting in own if findings.differences(setting, ahead)]
        found = [estimate([100 * d for d in findings.differences(setting, ahead)]) for setting in chosen]
        places = [ticks.index(words(setting, partition=False)) + 0.15 * (k - 1.5) for setting in chosen]
        axes.errorbar(
            places, [each.mean for each in found], [each.half or 0 for each in found],
            fmt="os^D"[k], markersize=5, linewidth=1, label=partition,
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_yticks([-30, -10, -3, -1, 0, 1, 3, 10], ["−30", "−10", "−3", "−1", "0", "1", "3", "10"])
    axes.set_ylabel("gpd − Upper, points")
    upright = max(map(len, ticks)) * len(ticks) < 120
    axes.set_xticks(range(len(ticks)), ticks, **({} if upright else {"rotation": 20, "ha": "right"}))


def _order(key: tuple[str, ...]) -> list[Any]:
    """MNIST first, and then as the study lists parts, partitions, attacks and topologies."""
    known = dict(zip(SETTING, key, strict=True))
    attacks, topologies = ("none", *ATTACKS, *NOISE, *ADAPTIVE), (*TOPOLOGIES, *STARS)
    lists = {"part": PARTS, "partition": PARTITIONS, "attack": attacks, "topology": topologies}
    places = [values.index(known[name]) for name, values in lists.items()]
    return [known["dataset"] != "mnist", known["dataset"], *places, known["level"], known["ratio"]]


def words(setting: Row, partition: bool = True) -> str:
    """A setting in words, what is usual left out."""
    unusual = [f"{name} {setting[name]}" for name in ("level", "ratio") if setting[name] != str(USUAL[name])]
    place = [setting["topology"]] if setting["topology"] != USUAL["topology"] else []
    return ", ".join([setting["attack"], *([setting["partition"]] if partition else []), *place, *unusual])


def _values(rows: list[Row], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row[key]]


def percent(values: list[float], sign: str = "") -> str:
    """Mean and interval of shares, in percent."""
    if not values:
        return "–"
    found = estimate([100 * value for value in values])
    mean = f"{found.mean:{sign}.1f}".replace("-", "−")
    return mean if found.half is None else f"{mean} ± {found.half:.1f}"


def _share(rows: list[Row], some: str, all_: str) -> str:
    total = sum(int(row[all_]) for row in rows)
    return f"{100 * sum(int(row[some]) for row in rows) / total:.1f} %" if total else "–"


def file(text: str) -> Path:
    """An argument: a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return Path(text)


def picture(text: str) -> Path:
    """An argument: a file that can be drawn."""
    if Path(text).suffix not in FORMS:
        raise argparse.ArgumentTypeError(f"{text} does not end in {', '.join(FORMS)}")
    return Path(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=file, help="what benchmarks/study.py wrote")
    parser.add_argument("--figure", type=picture, help="an .svg, .pdf or .png file to draw")
    parser.add_argument("--short", action="store_true", help="a table of the parts in place of one for each")
    args = parser.parse_args()
    try:
        findings = Findings(read(args.study))
    except PuriflError as error:
        parser.error(str(error))
    tables = findings.tables()
    for dataset in dict.fromkeys(dataset for dataset, _ in tables) if args.short else ():
        own = [setting for (data, _), settings in tables.items() if data == dataset for setting in settings]
        print(f"\n{dataset}\n\n{short(findings, own)}")
    for (dataset, part), settings in () if args.short else tables.items():
        print(f"\n{dataset}, {part}\n\n{markdown(findings, settings)}")
    if args.figure and findings.tables().keys() & {("mnist", part) for part in GOALS}:
        args.figure.write_bytes(drawn(figure(findings, "mnist"), args.figure.suffix[1:]))


if __name__ == "__main__":
    main()
