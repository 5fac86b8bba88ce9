"""How far first messages tell clients apart: who points against most others, and who is long without pointing along.

    python benchmarks/first_messages.py --datasets digits,mnist,20newsgroups --seeds 5

Of the edges from benign clients, by what `persistence` makes of the first message of the neighbour, on a complete
graph: against, with an agreement under −0.1; long, over four medians; and astray, long with an agreement under 0.1.
Nothing is trained but the first gradients.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from purifl import Experiment
from purifl.detection.beginnings import AGAINST, ALONG, agreement_of, are_long
from purifl.errors import PuriflError
from purifl.simulation import Simulation

PARTITIONS = ("iid", "label-dir", "quantity-dir", "non-overlap")


def experiment(dataset: str, attack: str, partition: str, seed: int) -> Experiment:
    """What begins with the first messages counted."""
    return Experiment.parse({"dataset": dataset, "attack": attack, "partition": partition, "seed": seed})


def count(cell: tuple[str, str, str, int]) -> list[int]:
    """Edges against, long and astray, to benign clients and then to malicious ones."""
    torch.set_num_threads(1)
    federation = Simulation(experiment(*cell)).federation
    hood, gamma = federation.hood, federation.exchange().gamma
    long = are_long(hood, gamma.double().norm(dim=1))
    agreement = agreement_of(hood, gamma, hood.distances(gamma))
    kinds = (agreement < AGAINST, long, long & (agreement < ALONG))
    ends = (~federation.to_malicious & hood.to_others, federation.to_malicious)
    return [int((kind & end).sum()) for end in ends for kind in kinds]


def main() -> None:
    """A line for each data set, attack and partition, summed over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="digits")
    parser.add_argument("--attacks", default="none,backdoor-9,single-image,lie,fang,gaussian")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.seeds < 1 or args.workers < 1:
        parser.error(f"--seeds: {args.seeds}, --workers: {args.workers}; both have to be at least 1")
    settings = list(itertools.product(args.datasets.split(","), args.attacks.split(","), PARTITIONS))
    try:
        cells = [(*each, seed) for each in settings for seed in range(args.seeds)]
        for cell in cells:
            experiment(*cell)
        show(settings, cells, args)
    except PuriflError as error:
        parser.error(str(error))


def show(
    settings: list[tuple[str, str, str]], cells: list[tuple[str, str, str, int]], args: argparse.Namespace
) -> None:
    """Count, and print as it goes."""
    print("| data | attack | partition | benign: against, long, astray | malicious: against, long, astray |")
    print("|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        counts = pool.map(count, cells)
        for each in settings:
            sums = [str(sum(column)) for column in zip(*itertools.islice(counts, args.seeds), strict=True)]
            print(f"| {' | '.join(each)} | {', '.join(sums[:3])} | {', '.join(sums[3:])} |", flush=True)


if __name__ == "__main__":
    main()
