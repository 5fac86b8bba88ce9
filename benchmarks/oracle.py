"""What a perfect detector would reach: `gpd` on a star, told who is malicious, and cutting them in a given round.

    python benchmarks/oracle.py --device cuda --workers 15 --seeds 10 --out docs/results/oracle.csv

MNIST, label-dir, the star with malicious leaves of benchmarks/study.py, whose rows of Upper and of `gpd` it is to be
compared with. Only how late the attackers are found differs, so what is lost here no detector can win back.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from pydantic import Field
from study import STARS, USUAL, experiment, median_cut_round
from torch import Tensor

from purifl import Experiment, run
from purifl.defenses import Heard
from purifl.detection import Detector, detectors
from purifl.errors import PuriflError
from purifl.neighbourhood import Neighbourhood
from purifl.simulation import available
from purifl.state import State

TOPOLOGY = "star with malicious leaves"
ATTACKS, CUT_IN = ("backdoor-9", "lie"), (3, 6, 10)
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


def told(attack: str, cut_in: int, seed: int, device: str) -> Experiment:
    """What is trained: a setting of the study but for the detector."""
    settings = USUAL | {"dataset": "mnist", "topology": TOPOLOGY, "partition": "label-dir"}
    chosen = experiment(settings | {"attack": attack, "seed": seed}, device).model_dump()
    return Experiment.parse(chosen | {"detector": {"name": "told", "malicious": STARS[TOPOLOGY], "cut_in": cut_in}})


def measured(cell: Cell) -> dict[str, object]:
    """One run, as a row."""
    result = run(told(*cell))
    cut_round = median_cut_round(result, len(STARS[TOPOLOGY]))
    return dict(zip(KEY, cell[:3], strict=True)) | {key: result.final[key] for key in FOUND[:2]} | {FOUND[2]: cut_round}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    cells = [(*each, args.device) for each in itertools.product(ATTACKS, CUT_IN, range(args.seeds))]
    try:
        available(args.device)
        told(*cells[0]).dataset.load()
    except PuriflError as error:
        parser.error(str(error))
    with args.out.open("w", newline="") as out, ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        writer = csv.DictWriter(out, KEY + FOUND)
        writer.writeheader()
        for done, row in enumerate(pool.map(measured, cells), 1):
            writer.writerow(row)
            out.flush()
            print(f"{done}/{len(cells)}", *row.values(), flush=True)


if __name__ == "__main__":
    main()
