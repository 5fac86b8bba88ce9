"""What of an attack accuracy is the trigger's: how often a backdoored input gets the attacker's label, and without it.

    python benchmarks/trigger.py --device cuda --seeds 5 --out docs/results/trigger.csv

MNIST without overlap, the paper's defaults, `upper` and `gpd`. A model that has not learned the attacker's label never
gives it, and one that has gives it by mistake as well; so beside the attack accuracy there is the share of the same
inputs without the trigger that get the label, and the accuracy on those that truly have it. In percent, means over the
benign clients.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from purifl import Experiment
from purifl.data import Samples
from purifl.errors import PuriflError
from purifl.simulation import Simulation

ATTACKS, DEFENSES = ("backdoor-9", "backdoor-1"), ("upper", "gpd")
COLUMNS = ("attack", "seed", "defense", "test_accuracy", "with_trigger", "without_trigger", "truly")


def experiment(attack: str, seed: int, defense: str, device: str) -> Experiment:
    """What is trained."""
    chosen = {"dataset": "mnist", "partition": "non-overlap", "attack": attack, "defense": defense}
    return Experiment.parse(chosen | {"seed": seed, "device": device, "eval_every": 50})


def measured(cell: tuple[str, int, str, str]) -> dict[str, Any]:
    """One run, as a row."""
    simulation = Simulation(experiment(*cell))
    while not simulation.finished:
        row, _ = simulation.step()
    federation, targets = simulation.federation, simulation.targets
    assert targets.probe is not None
    label = int(targets.probe.y[0])
    models, test = federation.theta[federation.benign], targets.test
    given = federation.engine.hits(models, Samples(test.x, torch.full_like(test.y, label))).float()
    found = {
        "test_accuracy": row["test_accuracy"],
        "with_trigger": row["attack_accuracy"],
        "without_trigger": given[:, test.y != label].mean().item(),
        "truly": given[:, test.y == label].mean().item(),
    }
    return dict(zip(COLUMNS, cell[:3], strict=False)) | {name: f"{100 * value:.2f}" for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.seeds < 1 or args.workers < 1:
        parser.error(f"--seeds: {args.seeds}, --workers: {args.workers}; both have to be at least 1")
    cells = [(*each, args.device) for each in itertools.product(ATTACKS, range(args.seeds), DEFENSES)]
    try:
        for cell in cells:
            experiment(*cell)
    except PuriflError as error:
        parser.error(str(error))
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool, args.out.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        for done, row in enumerate(pool.map(measured, cells), 1):
            writer.writerow(row)
            out.flush()
            print(f"{done}/{len(cells)}", row, flush=True)


if __name__ == "__main__":
    main()
