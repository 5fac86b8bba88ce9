r"""What a perfect detector would reach: `gpd` told who is malicious, and cutting them in a given round.

    python benchmarks/oracle.py --study docs/results/star.csv --parts star --cut-in 3,6,10,20 \
        --device cuda --workers 15 --out docs/results/oracle.csv
    python benchmarks/oracle.py --study docs/results/study.csv --parts forty,skewed --missed --cut-in 2,6 \
        --device cuda --workers 10 --out docs/results/oracle.csv

Settings are those of benchmarks/study.py, whose rows have `gpd` and Upper; --missed leaves out all in which `gpd` is
within the goal on average. What differs from `gpd` is how late the attackers are cut, and that nobody else ever is. In
the part star there is a line `nobody` besides: of Upper itself, whose hub mixes until then as if two more clients were
there that say nothing. That is what it costs to have listened to anybody else, attack or not.

Runs whose rows are there are not run again. The table is of the difference to Upper in points, seed by seed and in the
part of the graph where it is least, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import study
import torch
from findings import GOALS, SETTING, Findings, Row, file, percent, words, worst_part
from pydantic import Field
from torch import Tensor

from purifl import Experiment, run
from purifl.defenses import Heard, Turn, defenses
from purifl.defenses.bounds import Upper
from purifl.detection import detectors
from purifl.detection.persistence import Persistence
from purifl.errors import DataError, PuriflError
from purifl.neighbourhood import Neighbourhood
from purifl.simulation import attackers_of, available
from purifl.state import State

NOBODY = "nobody"
IDENTITY = ("cut_in", *study.KEY)
FIELDS = (*IDENTITY, *study.FOUND)


@detectors.register("told")
class Told(Persistence):
    """Everybody is trusted until a round, in which those who are malicious are cut at once."""

    malicious: tuple[int, ...] = Field(description="who is")
    cut_in: int = Field(ge=2, description="the first round without them")

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """Who is told of, and what tells who began against the client itself."""
        told = torch.isin(hood.senders, torch.tensor(self.malicious, device=hood.senders.device))
        return super().begin(hood, first) | {"told": told}

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor:
        """0 for them from the round before on, since a cut is in force in the one after it is decided."""
        super().scores(state, hood, gamma, kept, own)
        late = bool(state["rounds"] >= self.cut_in - 1)
        return (~state["told"]).to(gamma.dtype) if late else torch.ones_like(state["told"], dtype=gamma.dtype)

    def marked(self, state: State) -> Tensor:
        """They have no claim to patience."""
        return state["told"]


@defenses.register("delayed")
class Delayed(Upper):
    """Upper, with places kept free for attackers until a round."""

    places: int = Field(gt=0, description="how many")
    until: int = Field(ge=1, description="the first round without them")

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """w_ij m / (m + places) before, m being the largest neighbourhood, and what is left to oneself."""
        if turn.round + 1 >= self.until:
            return turn.weights
        hood, most = turn.hood, int(turn.hood.size.max())
        others = turn.weights.masked_fill(hood.to_self, 0) * most / (most + self.places)
        return torch.where(hood.to_self, 1 - hood.sums(others)[hood.rows], others)


def told(settings: dict[str, Any], device: str) -> Experiment:
    """What is trained: a setting of the study but for the detector."""
    cut_in, nobody = settings["cut_in"], settings["attack"] == NOBODY
    usual = study.experiment(settings | ({"attack": "lie"} if nobody else {}), device)
    malicious = attackers_of(usual)
    detector = {"detector": {"name": "told", "malicious": malicious, "cut_in": cut_in}}
    delayed = {"defense": {"name": "delayed", "places": len(malicious), "until": cut_in}, "detector": {"name": "none"}}
    return Experiment.parse(usual.model_dump() | (delayed if nobody else detector))  # Upper leaves attackers out anyway


def measured(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """One run, as a row."""
    return settings | study.found(run(told(settings, device)))


def cells(dataset: str, parts: list[str], findings: Findings, missed: bool) -> list[dict[str, Any]]:
    """The settings of these parts with attackers that the study has; if only ``missed``, those in which the goal is."""
    all_ = [study.USUAL | each | {"dataset": dataset, "part": part} for part in parts for each in study.cells(part)]
    attacked = [each for each in all_ if each["defense"] == "gpd" and each["attack"] != "none"]
    differences = [findings.differences(as_text(each), worst_part) for each in attacked]
    chosen = [
        each
        for each, found in zip(attacked, differences, strict=True)
        if found and (not missed or 100 * fmean(found) < GOALS[each["part"]])
    ]
    if not chosen:
        raise DataError(f"--study has nothing to compare on {dataset} in {', '.join(parts)}")
    stars = [each | {"attack": NOBODY} for each in chosen if each["part"] == "star"]
    return stars[:1] + chosen


def missing(args: argparse.Namespace, chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that have no row yet."""
    rows = study.read(args.out, FIELDS) if args.out.exists() else []
    known = {tuple(row[key] for key in IDENTITY) for row in rows}
    runs = itertools.product(range(args.seeds), chosen, args.cut_in)
    wanted = [each | {"cut_in": cut_in, "seed": seed} for seed, each, cut_in in runs]
    return [each for each in wanted if tuple(str(each[key]) for key in IDENTITY) not in known]


def table(args: argparse.Namespace, findings: Findings, chosen: list[dict[str, Any]]) -> str:
    """Differences to Upper, a line for each setting."""
    rows = [row for row in study.read(args.out, FIELDS) if int(row["seed"]) < args.seeds]
    names = ["setting", *(f"cut in round {cut_in}" for cut_in in args.cut_in), "`gpd`"]
    lines = [names, ["---"] * len(names)]
    for setting in map(as_text, chosen):
        upper = findings.upper(setting | ({"attack": study.ATTACKS[0]} if setting["attack"] == NOBODY else {}))
        mine = [row for row in rows if all(row[key] == setting[key] for key in SETTING)]
        groups = [[row for row in mine if row["cut_in"] == str(cut_in)] for cut_in in args.cut_in]
        groups.append([row for row in findings.gpd(setting) if int(row["seed"]) < args.seeds])
        lines.append([words(setting), *(_percent(each, upper) for each in groups)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(runs: list[Row], upper: dict[str, Row]) -> str:
    return percent([worst_part(row, upper[row["seed"]]) for row in runs if row["seed"] in upper], sign="+")


def as_text(settings: dict[str, Any]) -> Row:
    """As rows have it."""
    return {key: str(value) for key, value in settings.items()}


def rounds(text: str) -> list[int]:
    """An argument: rounds to cut in, the second being the first that there can be."""
    last = Experiment().rounds
    if not all(each.isdecimal() and 1 < int(each) <= last for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text} is not a list of rounds from 2 to {last}, as 3,6,10")
    return sorted({int(each) for each in text.split(",")})


def parts(text: str) -> list[str]:
    """An argument: parts of the study that have a goal."""
    if unknown := set(text.split(",")) - set(GOALS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is not one of {', '.join(GOALS)}")
    return list(dict.fromkeys(text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=file, required=True, help="rows of benchmarks/study.py with `gpd` and Upper")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--parts", type=parts, required=True, help="parts of it, comma-separated")
    parser.add_argument("--missed", action="store_true", help="only settings in which `gpd` misses the goal")
    parser.add_argument("--cut-in", type=rounds, required=True, help="rounds to cut in, comma-separated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        findings = Findings(study.read(args.study))
        chosen = cells(args.dataset, args.parts, findings, args.missed)
        if jobs := missing(args, chosen):
            available(args.device)
            told(jobs[0], args.device).dataset.load()
        failed = study.study(args, jobs, measured, FIELDS) if jobs else 0
        print(table(args, findings, chosen))
    except (PuriflError, OSError) as error:
        parser.error(str(error))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
