r"""What each smaller part of `gpd` is worth: the same runs without it, one part at a time.

    python benchmarks/parts.py --out docs/results/parts.csv                                # digits, two cores
    python benchmarks/parts.py --dataset mnist --device cuda --workers 15 --out docs/results/parts.csv
    python benchmarks/parts.py --only "waves,discord" --out parts.csv
    python benchmarks/parts.py --table --out docs/results/parts.csv

On digits a part is taken out in every cell that it can change anything in; on MNIST, where runs are dear, in those that
it is there for. Rows are appended as runs end, and runs whose rows are there are left out.

The table has, for each part, how many runs change by more than half a point, the mean change without it and the two
cells that lose most by it, in points of test accuracy over the seeds; and how many edges more are then missed, of those
to attackers, and wrongly cut, of the others.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import study
import torch

from purifl.defenses import gpd
from purifl.detection import beginnings, discord, kin, persistence, waves
from purifl.detection.persistence import Persistence
from purifl.errors import PuriflError
from purifl.simulation import available

LEAVES, HUB = study.STARS
ALL = "nothing"
FIELDS = ("without", *study.KEY, *study.FOUND)
IDENTITY = ("without", *study.KEY)
EDGES = ("missed_edges", "false_alarm_edges")


def cell(topology: str, partition: str, attack: str, level: float = 1.0, ratio: float = 0.2) -> dict[str, Any]:
    return {"topology": topology, "partition": partition, "attack": attack, "level": level, "ratio": ratio}


COMPLETE = {
    "honest-q": cell("complete", "quantity-dir", "none"),
    "honest-n": cell("complete", "non-overlap", "none"),
    "backdoor-l": cell("complete", "label-dir", "backdoor-9"),
    "backdoor-q": cell("complete", "quantity-dir", "backdoor-9"),
    "backdoor-n": cell("complete", "non-overlap", "backdoor-9"),
    "lie-q": cell("complete", "quantity-dir", "lie"),
    "lie-n": cell("complete", "non-overlap", "lie"),
    "weak-i": cell("complete", "iid", "lie", 0.2),
    "weak-q": cell("complete", "quantity-dir", "lie", 0.2),
    "fang-l": cell("complete", "label-dir", "fang"),
    "fang-n": cell("complete", "non-overlap", "fang"),
    "dissensus-l": cell("complete", "label-dir", "dissensus"),
    "dissensus-q": cell("complete", "quantity-dir", "dissensus"),
    "stealth-n": cell("complete", "non-overlap", "stealth"),
    "on-off-l": cell("complete", "label-dir", "on-off"),
    "equivocate-i": cell("complete", "iid", "equivocate"),
    "forty-fang-q": cell("complete", "quantity-dir", "fang", ratio=0.4),
}
STARS = {
    "star-honest-q": cell("star", "quantity-dir", "none"),
    "star-honest-l": cell("star", "label-dir", "none"),
    "leaves-backdoor-l": cell(LEAVES, "label-dir", "backdoor-9"),
    "leaves-lie-l": cell(LEAVES, "label-dir", "lie"),
    "hub-lie-l": cell(HUB, "label-dir", "lie"),
    "hub-fang-i": cell(HUB, "iid", "fang"),
}
CHAINS = {
    "ring-honest-q": cell("ring", "quantity-dir", "none"),
    "line-honest-q": cell("line", "quantity-dir", "none"),
    "grid-honest-q": cell("grid", "quantity-dir", "none"),
    "ring-backdoor-l": cell("ring", "label-dir", "backdoor-9"),
    "grid-lie-l": cell("grid", "label-dir", "lie"),
    "line-lie-l": cell("line", "label-dir", "lie"),
    "ring-fang-i": cell("ring", "iid", "fang"),
    "grid-noise-l": cell("grid", "label-dir", "gaussian"),
    "grid-on-off-l": cell("grid", "label-dir", "on-off"),
}
RUINED = {f"{graph}-lie-n": cell(graph, "non-overlap", "lie") for graph in ("ring", "line", "grid")}
CELLS = COMPLETE | STARS | CHAINS | RUINED
MANY, SPARSE = (*COMPLETE, *STARS), (*STARS, *CHAINS)
EVERYWHERE = (*COMPLETE, *SPARSE)


@dataclass(frozen=True)
class Part:
    """Something to leave out: what to put in its place, the cells that it can change, those that it is there for."""

    patches: tuple[tuple[Any, str, Any], ...]
    reach: tuple[str, ...]
    purpose: tuple[str, ...]
    defense: Any = "gpd"


def _without_mark(note: Callable[..., None], mark: str) -> Callable[..., None]:
    def noted(state: Any, *rest: Any) -> None:
        note(state, *rest)
        state[mark].zero_()

    return noted


def _without_own_gradient(push: Callable[..., Any], allowed: Callable[..., Any]) -> Callable[..., Any]:
    """Kin go by it as before."""

    def pushed(state: Any, hood: Any, distance: Any, own: Any, lengths: Any) -> Any:
        def told(state: Any, hood: Any, theirs: Any, ours: Any, _: Any, lengths: Any) -> Any:
            return allowed(state, hood, theirs, ours, own, lengths)

        with patch.object(kin, "allowed", told):
            return push(state, hood, distance, torch.zeros_like(own), lengths)

    return pushed


def _open(begin: Callable[..., Any]) -> Callable[..., Any]:
    """κ_ij = 1 over slow edges; over the others it is close to that."""

    def begun(self: Any, hood: Any, first: Any) -> Any:
        state = begin(self, hood, first)
        return state | {"openness": state["openness"].masked_fill(state["slow"].to(first.gamma.device), 1)}

    return begun


def _impatient(self: Any, state: Any, hood: Any, cut: Any) -> Any:
    return ((state["judged"] + 1) / gpd._EARNED).clamp(max=1)


def _any_size(hood: Any, lengths: Any, distance: Any, odd: Any) -> Any:
    return ((hood.size > beginnings.ENOUGH)[hood.rows] & (distance > 0)).double()


PARTS = {
    "who is odd": Part(
        ((beginnings, "note", _without_mark(beginnings.note, "odd")),), MANY, ("forty-fang-q", "fang-l")
    ),
    "unusual": Part(((persistence, "_UNUSUAL", 1.0),), MANY, ("backdoor-n", "honest-n", "stealth-n")),
    "apart": Part(
        ((persistence, "_apart", lambda state, hood, distance, among: torch.zeros_like(distance)),),
        MANY, ("fang-l", "fang-n", "dissensus-l", "stealth-n"),
    ),
    "alike": Part(((beginnings, "_alike", _any_size),), MANY, ("honest-q", "backdoor-q", "dissensus-q")),
    "slack of large clients": Part(
        ((beginnings, "note", _without_mark(beginnings.note, "large")),),
        MANY, ("honest-q", "backdoor-q", "lie-q", "weak-q", "dissensus-q", "star-honest-q"),
    ),
    "own gradient": Part(
        ((persistence, "_push", _without_own_gradient(persistence._push, kin.allowed)),),
        EVERYWHERE, ("backdoor-n", "stealth-n", "dissensus-l"),
    ),
    "openness": Part(
        ((Persistence, "begin", _open(Persistence.begin)),), SPARSE, ("star-honest-l", "leaves-lie-l", "line-honest-q")
    ),
    "share heard": Part(
        ((persistence, "_levelled", lambda hood, distance, cut: distance),),
        EVERYWHERE, ("backdoor-l", "backdoor-n", "leaves-lie-l"),
    ),
    "who passes on": Part(
        ((persistence, "_SHIELDED", 0.0),), EVERYWHERE, ("grid-lie-l", "ring-backdoor-l", "dissensus-l")
    ),
    "earned patience": Part(((gpd, "_EARNED", 1e-9),), EVERYWHERE, ("backdoor-n", "lie-n", "fang-l")),
    "patience after a cut": Part(((gpd.GPD, "patience", _impatient),), EVERYWHERE, ("dissensus-l", "dissensus-q")),
    "marked": Part(
        ((Persistence, "marked", lambda self, state: torch.zeros_like(state["against"])),), MANY, ("fang-n", "fang-l")
    ),
    "struck": Part(((Persistence, "opposed", lambda self, state: None),), MANY, ("fang-n", "fang-l")),
    "by quarters": Part(((gpd, "_SHARE", 1.0),), EVERYWHERE, ("dissensus-l", "backdoor-n", "lie-n")),
    "keep": Part((), EVERYWHERE, ("backdoor-n", "lie-n"), {"name": "gpd", "keep": None}),
    "probation": Part((), EVERYWHERE, ("honest-n", "dissensus-q"), {"name": "gpd", "probation": 1000}),
    "claims of kin": Part(
        ((kin, "beyond_kin", lambda state, hood, distance, own, kept, counts: torch.zeros_like(distance)),),
        (*COMPLETE,), ("weak-i", "weak-q"),
    ),
    "own gradient for kin": Part(((kin, "_YOUNG", 0),), (*COMPLETE,), ("weak-i", "weak-q")),
    "far smaller": Part(
        ((kin, "note", _without_mark(kin.note, "far_smaller")),), (*COMPLETE,), ("weak-q", "backdoor-q")
    ),
    "less of the same": Part(
        ((waves, "beyond_less", lambda state, hood, distance, sums: distance),),
        SPARSE, ("star-honest-q", "grid-honest-q", "ring-backdoor-l"),
    ),
    "waves": Part(
        ((waves, "let_pass", lambda push, *rest: push),), SPARSE, ("ring-honest-q", "line-honest-q", "grid-honest-q")
    ),
    "clearly": Part(
        ((waves, "_CLEARLY", torch.inf),),
        SPARSE, ("star-honest-q", "ring-honest-q", "line-honest-q", "grid-honest-q", "ring-backdoor-l", "grid-lie-l"),
    ),
    "a sound gradient": Part(((waves, "_SOUND", torch.inf),), (*SPARSE, *RUINED), (*RUINED,)),
    "half over slow edges": Part(((persistence, "_SLOWLY", 4.0),), (*STARS,), ("star-honest-l", "leaves-backdoor-l")),
    "discord": Part(
        ((discord, "discord", lambda state, hood, distance, lengths, kept: torch.zeros_like(distance)),),
        SPARSE, ("ring-fang-i", "grid-noise-l"),
    ),
    "akin for good": Part(((discord, "AKIN", 2.0),), SPARSE, ("ring-fang-i", "hub-fang-i")),
    "fading": Part(((discord, "_FADING", 1.0),), SPARSE, ("ring-fang-i", "hub-fang-i")),
    "an only neighbour": Part(
        ((persistence, "_unexcused", lambda hood, scale, first: scale[hood.listeners]),), SPARSE, ("hub-lie-l",)
    ),
    "a hub makes up": Part(
        ((gpd, "_hubs", lambda hood: torch.zeros_like(hood.size, dtype=torch.bool)),),
        (*STARS,), ("leaves-backdoor-l", "leaves-lie-l"),
    ),
}  # fmt: skip


@contextmanager
def without(name: str) -> Iterator[None]:
    """`gpd` with a part left out."""
    with ExitStack() as stack:
        for target, attribute, replacement in PARTS[name].patches if name != ALL else ():
            stack.enter_context(patch.object(target, attribute, replacement))
        yield


def measured(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """One run, as a row."""
    name = settings["without"]
    torch.set_num_threads(1)
    with without(name):
        row = study.job(settings | {"defense": PARTS[name].defense if name != ALL else "gpd"}, device)
    return row | {"defense": "gpd"}


def wanted(dataset: str, seeds: int, only: Collection[str] = tuple(PARTS)) -> list[dict[str, Any]]:
    """All runs on a data set that some parts need."""
    dear = dataset != "digits"
    chosen = {name: part.purpose if dear else part.reach for name, part in PARTS.items() if name in only}
    touched = dict.fromkeys(each for cells in chosen.values() for each in cells)
    return [
        study.USUAL | CELLS[each] | {"dataset": dataset, "part": each, "seed": seed, "without": name}
        for seed in range(seeds)
        for name, cells in ({ALL: tuple(touched)} | chosen).items()
        for each in cells
    ]


def missing(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs that have no row yet."""
    known = (
        {tuple(row[key] for key in IDENTITY) for row in study.read(args.out, FIELDS)} if args.out.exists() else set()
    )
    runs = wanted(args.dataset, args.seeds, args.only)
    return [each for each in runs if tuple(str(each[key]) for key in IDENTITY) not in known]


def table(rows: list[dict[str, str]]) -> str:
    """A line for each part, its runs compared one by one with those of all parts."""
    whole = {tuple(row[key] for key in study.KEY): row for row in rows if row["without"] == ALL}
    lines = [["without", "runs", "changed", "mean", "most", "next", "missed", "wrongly cut"], ["---"] * 8]
    for name in PARTS:
        pairs = [(row, whole.get(tuple(row[key] for key in study.KEY))) for row in rows if row["without"] == name]
        if compared := [(row, before) for row, before in pairs if before]:
            lines.append([name, *_worth(compared)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _worth(pairs: list[tuple[dict[str, str], dict[str, str]]]) -> list[str]:
    """What runs without a part differ by from those with it."""
    changes: dict[str, list[float]] = defaultdict(list)
    for row, before in pairs:
        changes[row["part"]].append(100 * (float(row["test_accuracy"]) - float(before["test_accuracy"])))
    all_changes = [change for each in changes.values() for change in each]
    means = sorted((fmean(each), cell) for cell, each in changes.items())
    least = [f"{_signed(change)} {cell}" for change, cell in means[:2] if change <= -0.05] + ["–", "–"]
    more = [sum(int(row[key]) - int(before[key]) for row, before in pairs) for key in EDGES]
    changed = sum(abs(change) > 0.5 for change in all_changes)
    return [str(len(pairs)), str(changed), _signed(fmean(all_changes)), *least[:2], *(_signed(n, "+d") for n in more)]


def _signed(number: float, form: str = "+.1f") -> str:
    return f"{number:{form}}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated; all of them if not given")
    parser.add_argument("--table", action="store_true", help="only show what is in the file")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is not one of {', '.join(PARTS)}")
    try:
        jobs = [] if args.table else missing(args)
        for each in jobs:
            study.experiment(each, args.device)
        available(args.device)
        failed = study.study(args, jobs, measured, FIELDS) if jobs else 0
        rows = study.read(args.out, FIELDS)
    except (PuriflError, OSError) as error:
        parser.error(str(error))
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        print(f"\n{dataset}\n\n{table([row for row in rows if row['dataset'] == dataset])}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
