"""What of an attack accuracy is the trigger's: how often inputs get the attacker's label with it and without it.

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

from purifl import Experiment
from purifl.data import Samples
from purifl.determinism import deterministic
from purifl.errors import PuriflError
from purifl.simulation import Simulation, available

ATTACKS, DEFENSES = ("backdoor-9", "backdoor-1"), ("upper", "gpd")
KEY = ("attack", "seed", "defense")
FOUND = ("test_accuracy", "with_trigger", "without_trigger", "accuracy_on_label")
Cell = tuple[str, int, str, str]


def experiment(attack: str, seed: int, defense: str, device: str) -> Experiment:
    """What is trained."""
    chosen = {"dataset": "mnist", "partition": "non-overlap", "attack": attack, "defense": defense}
    return Experiment.parse(chosen | {"seed": seed, "device": device, "eval_every": 50})


def measured(cell: Cell) -> dict[str, object]:
    """One run, as a row."""
    simulation = Simulation(experiment(*cell))
    while not simulation.finished:
        row, _ = simulation.step()
    federation, targets = simulation.federation, simulation.targets
    assert targets.probe is not None
    label = int(targets.probe.y[0])
    plain = Samples(targets.test.x[targets.others], targets.probe.y[targets.others])
    with deterministic(simulation.experiment.precision):
        given = federation.engine.hits(federation.theta[federation.benign], plain).float().mean().item()
    found = (row["test_accuracy"], row["attack_accuracy"], given, row["accuracy_by_label"][label])
    shares = {name: f"{100 * share:.2f}" for name, share in zip(FOUND, found, strict=True)}
    return dict(zip(KEY, cell[:3], strict=True)) | shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.seeds < 1 or args.workers < 1:
        parser.error(f"--seeds: {args.seeds}, --workers: {args.workers}; both have to be at least 1")
    if not args.out.parent.is_dir():
        parser.error(f"--out: {args.out}; there is no folder {args.out.parent}")
    if args.out.exists():
        parser.error(f"--out: {args.out} is there already; remove it, or give another file")
    cells = [(*each, args.device) for each in itertools.product(ATTACKS, range(args.seeds), DEFENSES)]
    try:
        available(args.device)
        experiment(*cells[0]).dataset.load()
        measure(cells, args)
    except PuriflError as error:
        parser.error(str(error))


def measure(cells: list[Cell], args: argparse.Namespace) -> None:
    """All runs, a row in the file as soon as it and those before it are done; nothing is written before the first."""
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for done, row in enumerate(pool.map(measured, cells), 1):
            with args.out.open("a" if done > 1 else "w", newline="") as out:
                writer = csv.DictWriter(out, KEY + FOUND)
                if done == 1:
                    writer.writeheader()
                writer.writerow(row)
            print(f"{done}/{len(cells)}", *row.values(), flush=True)


if __name__ == "__main__":
    main()
