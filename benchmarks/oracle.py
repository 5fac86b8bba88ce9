r"""What a perfect detector would reach: `gpd` on a star, told who is malicious, and cutting them in a given round.

    python benchmarks/study.py --parts star --device cuda --workers 15 --seeds 20 --out docs/results/star.csv
    python benchmarks/oracle.py --device cuda --workers 15 --seeds 10 --out docs/results/oracle.csv \
        --upper docs/results/star.csv

MNIST, label-dir, the star with malicious leaves of benchmarks/study.py. Only how late the attackers are found differs
from `gpd`, which makes up for what they had of the hub's weight. The line `nobody` is of Upper itself, whose hub mixes
until then as if two more clients were there that say nothing: what it costs to have listened to anybody else, attack or
not. Cells whose rows are there are not run again; the table is of the difference to Upper in points, seed by seed, with
95 % intervals, and of `gpd` with the same seeds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import study
import torch
from pydantic import Field
from torch import Tensor

from purifl import Experiment, run
from purifl.defenses import Heard, Turn, defenses
from purifl.defenses.bounds import Upper
from purifl.detection import Detector, detectors
from purifl.errors import PuriflError
from purifl.intervals import estimate
from purifl.neighbourhood import Neighbourhood
from purifl.simulation import available
from purifl.state import State

TOPOLOGY = study.LEAVES[0]
NOBODY = "nobody"
ATTACKS, CUT_IN = (NOBODY, "backdoor-9", "lie"), (3, 6, 10, 20)
KEY = ("attack", "cut_in", "seed")
FOUND = ("test_accuracy", "attack_accuracy", "median_cut_round")
Cell = tuple[str, int, int, str]


@detectors.register("told")
class Told(Detector):
    """Everybody is trusted until a round, in which those who are malicious are cut at once."""

    malicious: tuple[int, ...] = Field(description="who is")
    cut_in: int = Field(ge=2, description="the first round without them")

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """Who is told of, and the number of rounds."""
        told = torch.isin(hood.senders, torch.tensor(self.malicious, device=hood.senders.device))
        return {"told": told, "rounds": torch.zeros((), dtype=torch.int64)}

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor:
        """0 for them from the round before on, since a cut is in force in the one after it is decided."""
        state["rounds"] += 1
        late = bool(state["rounds"] >= self.cut_in - 1)
        return (~state["told"]).to(gamma.dtype) if late else torch.ones_like(state["told"], dtype=gamma.dtype)

    def marked(self, state: State) -> Tensor:
        """They have no claim to patience."""
        return state["told"]


@defenses.register("delayed")
class Delayed(Upper):
    """Upper, with places kept free for attackers until a round."""

    places: int = Field(gt=0, description="how many")
    until: int = Field(ge=2, description="the first round without them")

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """w_ij m / (m + places) before, m being the largest neighbourhood, and what is left to oneself."""
        if turn.round + 1 >= self.until:
            return turn.weights
        hood, most = turn.hood, int(turn.hood.size.max())
        others = turn.weights.masked_fill(hood.to_self, 0) * most / (most + self.places)
        return torch.where(hood.to_self, 1 - hood.sums(others)[hood.rows], others)


def told(attack: str, cut_in: int, seed: int, device: str) -> Experiment:
    """What is trained: a setting of the study but for the detector."""
    settings = study.USUAL | {"dataset": "mnist", "topology": TOPOLOGY, "partition": "label-dir", "seed": seed}
    malicious = study.STARS[TOPOLOGY]
    changed = {"detector": {"name": "told", "malicious": malicious, "cut_in": cut_in}}
    if attack == NOBODY:  # Upper leaves the attackers out, whatever they do
        attack, changed = "lie", {"defense": {"name": "delayed", "places": len(malicious), "until": cut_in}}
    return Experiment.parse(study.experiment(settings | {"attack": attack}, device).model_dump() | changed)


def measured(cell: Cell) -> dict[str, object]:
    """One run, as a row."""
    result = run(told(*cell))
    cut_round = study.median_cut_round(result, len(study.STARS[TOPOLOGY]))
    return dict(zip(KEY, cell[:3], strict=True)) | {key: result.final[key] for key in FOUND[:2]} | {FOUND[2]: cut_round}


def measure(cells: list[Cell], args: argparse.Namespace) -> None:
    """The runs, a row in the file as soon as it and those before it are done."""
    new = not args.out.exists()
    with args.out.open("a", newline="") as out, ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        writer = csv.DictWriter(out, KEY + FOUND)
        if new:
            writer.writeheader()
        for done, row in enumerate(pool.map(measured, cells), 1):
            writer.writerow(row)
            out.flush()
            print(f"{done}/{len(cells)}", *row.values(), flush=True)


def table(args: argparse.Namespace) -> str:
    """Differences to Upper, a line for each attack."""
    rows, star = read(args.out), [row for row in study.read(args.upper) if int(row["seed"]) < args.seeds]
    upper = {row["seed"]: float(row["test_accuracy"]) for row in star if row["defense"] == "upper"}
    names = [*(f"cut in round {cut_in}" for cut_in in CUT_IN), "`gpd`"]
    lines = [["attack", *names], ["---"] * (len(names) + 1)]
    for attack in ATTACKS:
        groups = [[r for r in rows if (r["attack"], r["cut_in"]) == (attack, str(cut_in))] for cut_in in CUT_IN]
        groups.append([r for r in star if (r["attack"], r["defense"]) == (attack, "gpd")])
        differences = [[100 * (float(r["test_accuracy"]) - upper[r["seed"]]) for r in group] for group in groups]
        lines.append([attack, *(_percent(each) for each in differences)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(values: list[float]) -> str:
    found = estimate(values) if values else None
    return f"{found.mean:+.1f} ± {found.half or 0:.1f}" if found else "–"


def read(path: Path) -> list[dict[str, str]]:
    """The rows so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--upper", type=Path, required=True, help="rows of the part star of benchmarks/study.py")
    args = parser.parse_args()
    known = {tuple(row[key] for key in KEY) for row in read(args.out)}
    wanted = itertools.product(ATTACKS, CUT_IN, range(args.seeds))
    cells = [(*each, args.device) for each in wanted if tuple(map(str, each)) not in known]
    try:
        study.read(args.upper)
        if cells:
            available(args.device)
            told(*cells[0]).dataset.load()
            measure(cells, args)
        print(table(args))
    except (PuriflError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
