r"""What attackers gain by lying about others: each says in every round that it has found out every benign client.

    python benchmarks/slander.py --seeds 3 --out docs/results/slander.csv
    python benchmarks/slander.py --table --out docs/results/slander.csv

Digits: the study's six attacks on four partitions, a complete graph, a fifth and 40 % attackers, and 60 % on iid data;
each run with lies and without. The table has both accuracies, and how many edges to attackers are left and how many
between benign clients are cut, in all seeds together. Rows are appended as runs end.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import study
import torch

from purifl import federation
from purifl.errors import PuriflError
from purifl.hearsay import accusers

FIELDS = ("lying", *study.KEY, *study.FOUND)
IDENTITY = ("lying", *study.KEY)


def lied(self: federation.Federation) -> torch.Tensor:
    """What benign clients are told, by each other the truth and by attackers that all of them were found out."""
    hood, n = self.hood, len(self.clients)
    said = self.theta.new_zeros(n, n)
    if self.rows.found is not None:
        said[hood.owner[hood.listeners], hood.senders] = self.rows.found.to(said.dtype)
    for attacker in self.malicious:
        said[attacker, self.benign] = 1
    return accusers(hood, said)


def measured(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """One run, as a row."""
    torch.set_num_threads(1)
    if not settings["lying"]:
        return study.job(settings, device)
    with patch.object(federation.Federation, "_accusers", lied):
        return study.job(settings, device)


def missing(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs that have no row yet."""
    known = {tuple(row[key] for key in IDENTITY) for row in study.read(args.out, FIELDS)} if args.out.exists() else ()
    cells = study.product(attack=study.ATTACKS, partition=study.PARTITIONS, ratio=(0.2, 0.4), lying=(False, True))
    cells += study.product(attack=study.ATTACKS, partition=study.PARTITIONS[:1], ratio=(0.6,), lying=(False, True))
    runs = [
        study.USUAL | cell | {"dataset": "digits", "part": "slander", "seed": seed}
        for seed in range(args.seeds)
        for cell in cells
    ]
    return [each for each in runs if tuple(str(each[key]) for key in IDENTITY) not in known]


def table(rows: list[dict[str, str]]) -> str:
    """A line for each partition and share of attackers, means over attacks and seeds."""
    groups: dict[tuple[str, str], dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["ratio"], row["partition"]][row["lying"]].append(row)
    lines = ["| attackers | partition | runs | silent, % | lying, % | left | wrongly cut |", "|" + "---|" * 7]
    for (ratio, partition), by in sorted(groups.items()):
        silent, lying = by["False"], by["True"]
        accuracy = [f"{100 * fmean(float(row['test_accuracy']) for row in each):.1f}" for each in (silent, lying)]
        edges = [
            " → ".join(str(sum(int(row[key]) for row in each)) for each in (silent, lying))
            for key in ("missed_edges", "false_alarm_edges")
        ]
        share = f"{100 * float(ratio):.0f} %"
        lines.append("| " + " | ".join([share, partition, str(len(lying)), *accuracy, *edges]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only show what is in the file")
    args = parser.parse_args()
    args.device = "cpu"
    try:
        failed = 0 if args.table else study.study(args, missing(args), measured, FIELDS)
        rows = study.read(args.out, FIELDS)
    except (PuriflError, OSError) as error:
        parser.error(str(error))
    print(table(rows))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
