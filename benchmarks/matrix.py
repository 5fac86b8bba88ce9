r"""Defences × attacks × partitions × seeds, several runs at once, as a CSV file and Markdown tables.

    python benchmarks/matrix.py --dataset mnist --device cuda --partitions iid,label-dir,quantity-dir,non-overlap \
        --defenses lower,upper,ldp,wbc,lead,byz,gpd-paper --out docs/results/mnist.csv

Each worker is a process. On a GPU two are enough: one run computes while the other prepares its round.

A cell that a defence cannot run in (Bulyan with too few neighbours) is left out with its reason.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from purifl import Experiment, run
from purifl.errors import PuriflError

COLUMNS = (
    "partition", "attack", "defense", "seed", "test_accuracy", "test_accuracy_min", "attack_accuracy",
    "detected_round", "missed_edges", "false_alarm_edges", "tracking_error", "seconds", "error",
)  # fmt: skip


def cell(settings: dict[str, Any]) -> dict[str, Any]:
    """One run, as a row."""
    head = {key: settings[key] for key in ("partition", "attack", "defense", "seed")}
    try:
        summary = run(Experiment.parse(settings)).summary()
    except PuriflError as error:
        return head | {"error": str(error)}
    return head | {key: summary[key] for key in COLUMNS[4:-1]} | {"error": ""}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--defenses", default="lower,upper,gpd-paper,gpd")
    parser.add_argument("--attacks", default="backdoor-9,backdoor-1,single-image,lie,fang,ndss")
    parser.add_argument("--partitions", default="iid,label-dir")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def grid(args: argparse.Namespace) -> list[dict[str, Any]]:
    names = (args.partitions.split(","), args.attacks.split(","), args.defenses.split(","), range(args.seeds))
    return [
        {"dataset": args.dataset, "partition": p, "attack": a, "defense": d, "seed": s, "rounds": args.rounds,
         "eval_every": 10, "device": args.device}
        for p, a, d, s in itertools.product(*names)
    ]  # fmt: skip


def table(rows: list[dict[str, Any]], partition: str, key: str) -> str:
    """Defences by attacks: the mean in percent, ± standard deviation over seeds where there are several."""
    rows = [r for r in rows if r["partition"] == partition]
    attacks = list(dict.fromkeys(r["attack"] for r in rows))
    lines = [f"| {key}, {partition} | {' | '.join(attacks)} |", "|---|" + "---|" * len(attacks)]
    for defense in dict.fromkeys(r["defense"] for r in rows):
        cells = []
        for attack in attacks:
            found = [r[key] for r in rows if (r["attack"], r["defense"]) == (attack, defense) and not r["error"]]
            values = [100 * v for v in found if v is not None]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}" if values else "–")
        lines.append(f"| {defense} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    args, start = arguments(), time.perf_counter()
    jobs, rows = grid(args), []
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(cell, job) for job in jobs]):
            rows.append(future.result())
            print(f"{len(rows)}/{len(jobs)}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            ordered = sorted(rows, key=lambda r: [j for j, job in enumerate(jobs) if job.items() >= _head(r).items()])
            with args.out.open("w", newline="") as out:
                writer = csv.DictWriter(out, COLUMNS, restval="")
                writer.writeheader()
                writer.writerows(ordered)
    for partition, key in itertools.product(args.partitions.split(","), ("test_accuracy", "attack_accuracy")):
        print(table(ordered, partition, key), end="\n\n")
    print("\n".join(sorted({f"{r['defense']}: {r['error']}" for r in rows if r["error"]})))


def _head(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("partition", "attack", "defense", "seed")}


if __name__ == "__main__":
    main()
