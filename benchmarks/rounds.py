"""What a round of `gpd` costs beside a round of plain DSGT, on the same clients and in one process.

    python benchmarks/rounds.py

Rounds of the two alternate, so that whatever else the machine does falls on both; the ratio is that of neighbours in
time. Complete graphs, mini-batches of 256, one a round unless --samples are more, a worker for each core. Federations
begin anew in each repeat: labels are random here, and whoever learns such data by heart for hundreds of rounds is
suspect in the end.

The last column is of eight rounds in a row: the mean of their medians, each over all rounds at that place. The median
of all alone would leave out every eighth round, in which records take in a block.
"""

from __future__ import annotations

import argparse
import time
from statistics import fmean, median, quantiles

import networkx as nx
from work import CLASSES, SHAPE, random_images, small_cnn

from purifl import Client, Federation, Training
from purifl.defenses import defenses
from purifl.simulation import deterministic

BATCH = 256
BLOCK = 8


def federation(defense: str, clients: int, rounds: int, samples: int) -> Federation:
    return Federation(
        lambda: small_cnn(SHAPE, CLASSES),
        [Client(k, random_images(samples, k)) for k in range(clients)],
        nx.complete_graph(clients),
        training=Training(gradient="epoch-sum", batch_size=BATCH, step_size=0.01),
        defense=defenses.resolve(defense).for_rounds(rounds),
    )


def seconds(fed: Federation) -> float:
    start = time.perf_counter()
    fed.step()
    return time.perf_counter() - start


def compare(clients: int, rounds: int, samples: int) -> list[tuple[float, float]]:
    """Seconds of each round of `lower` and of `gpd`, after two rounds to warm up."""
    plain, purified = (federation(name, clients, rounds, samples) for name in ("lower", "gpd"))
    times: tuple[list[float], list[float]] = ([], [])
    for k in range(rounds):
        pair = [(plain, times[0]), (purified, times[1])]
        for fed, taken in pair if k % 2 else reversed(pair):
            taken.append(seconds(fed))
    return list(zip(*times, strict=True))[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 80])
    parser.add_argument("--rounds", type=int, default=50, help="two to warm up, and a multiple of eight")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--samples", type=int, default=BATCH, help="of each client, all of which it sees once a round")
    args = parser.parse_args()
    if args.rounds < BLOCK + 2 or (args.rounds - 2) % BLOCK:
        parser.error(f"--rounds: {args.rounds} is not two and a multiple of {BLOCK}; the first two are left out")
    if args.samples < 1 or args.repeats < 1:
        parser.error(f"--samples: {args.samples}, --repeats: {args.repeats}; both have to be at least 1")
    print(
        "| clients | lower, ms a round | gpd, ms a round | gpd / lower: median | middle half | of eight in a row |\n"
        "|---|---|---|---|---|---|"
    )
    with deterministic():
        for clients in args.clients:
            times = [pair for _ in range(args.repeats) for pair in compare(clients, args.rounds, args.samples)]
            ratios = [purified / plain for plain, purified in times]
            low, _, high = quantiles(ratios, n=4)
            eight = fmean(median(ratios[k::BLOCK]) for k in range(BLOCK))
            took = (f"{1000 * median(t):.1f}" for t in zip(*times, strict=True))
            print(
                f"| {clients} | {' | '.join(took)} | {median(ratios):.3f} | {low:.3f} to {high:.3f} | {eight:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
