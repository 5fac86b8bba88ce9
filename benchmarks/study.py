r"""The study behind docs/method.md: `gpd` and its bounds in every setting it is meant for, on several seeds.

    python benchmarks/study.py --device cuda --seeds 5 --out docs/results/study.csv
    python benchmarks/study.py --sample 12 --seeds 5 --out sample.csv       # some runs of `gpd`, drawn from all
    python benchmarks/findings.py docs/results/study.csv        # tables of it, and a figure

Parts, of which --parts chooses some:

    attacks   six attacks and four partitions on a complete graph, with Upper
    bounds    what the attackers of a backdoor and an image would reach with Upper
    honest    nobody malicious, five topologies and four partitions
    weak      malicious level 0.2, four partitions
    ratios    malicious ratios 0.4, 0.6 and 0.8, two attacks and partitions, with Upper
    forty     malicious ratio 0.4, what else there is of six attacks and four partitions, with Upper
    sparse    ring, line, grid, and a star with malicious leaves or hub, two attacks and partitions, with Upper
    skewed    the same graphs and attacks, the other two partitions, with Upper
    noise     fang and gaussian, which push in changing directions, on the same sparse graphs, with the Upper of those
    adaptive  attacks that know the defence, four partitions
    star      the star with malicious leaves and label-dir, two attacks, with Upper: for more seeds than the others
    missed    settings of forty and skewed that miss their goal by little or in few seeds, with Upper: likewise
    data      backdoor-9 and lie on four partitions, with Upper, for another --dataset

Rows are appended as runs end, and runs whose rows are there are left out: an interrupted study continues, and what
is to be measured anew has to be removed from the file. A run that fails is named, and the exit code is 1 in the end.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import networkx as nx

from purifl import Experiment, run
from purifl.errors import DataError, PuriflError
from purifl.result import Result

PARTITIONS = ("iid", "label-dir", "quantity-dir", "non-overlap")
TOPOLOGIES = ("complete", "ring", "star", "line", "grid")
STARS = {"star with malicious leaves": (8, 9), "star with a malicious hub": (0, 9)}
SPARSE, LEAVES = ("ring", "line", "grid", *STARS), tuple(STARS)[:1]
ATTACKS = ("backdoor-9", "backdoor-1", "single-image", "lie", "fang", "ndss")
RATIOS = (0.4, 0.6, 0.8)
NOISE = ("fang", "gaussian")
ADAPTIVE = ("on-off", "stealth", "equivocate", "dissensus")

KEY = ("dataset", "part", "topology", "partition", "attack", "level", "ratio", "defense", "seed")
FOUND = (
    "test_accuracy", "test_accuracy_min", "attack_accuracy", "median_cut_round", "detected_round", "missed_edges",
    "malicious_edges", "false_alarm_edges", "benign_edges", "readmissions", "tracking_error", "components", "seconds",
)  # fmt: skip


def cells(part: str) -> list[dict[str, Any]]:
    """The settings of a part; without the attackers, all attacks are one run but for what they are tested for."""
    some, split, rest = ("backdoor-9", "lie"), PARTITIONS[:2], PARTITIONS[2:]
    forty, aimed = {"ratio": RATIOS[:1], "partition": PARTITIONS}, ("backdoor-1", "single-image")
    ratios = product(ratio=RATIOS, attack=some, partition=split)
    return {
        "attacks": product(attack=ATTACKS, partition=PARTITIONS) + uppers(partition=PARTITIONS),
        "bounds": product(attack=aimed, partition=PARTITIONS, defense=("upper",)),
        "honest": product(topology=TOPOLOGIES, partition=PARTITIONS, attack=("none",)),
        "weak": product(attack=some, partition=PARTITIONS, level=(0.2,)),
        "ratios": ratios + uppers(ratio=RATIOS, partition=split),
        "forty": [each for each in product(attack=ATTACKS, **forty) if each not in ratios]
        + product(attack=aimed, defense=("upper",), **forty)
        + uppers(ratio=RATIOS[:1], partition=rest),
        "sparse": product(topology=SPARSE, attack=some, partition=split) + uppers(topology=SPARSE, partition=split),
        "skewed": product(topology=SPARSE, attack=some, partition=rest) + uppers(topology=SPARSE, partition=rest),
        "noise": product(topology=SPARSE, attack=NOISE, partition=split),
        "adaptive": product(attack=ADAPTIVE, partition=PARTITIONS),
        "star": product(topology=LEAVES, attack=some, partition=split[1:])
        + uppers(topology=LEAVES, partition=split[1:]),
        "missed": product(ratio=RATIOS[:1], attack=("backdoor-9", "backdoor-1", "fang"), partition=rest[1:])
        + product(ratio=RATIOS[:1], attack=some[:1] + aimed[:1], partition=rest[1:], defense=("upper",))
        + product(topology=SPARSE[:3], attack=some[:1], partition=rest[:1], defense=("gpd", "upper"))
        + product(topology=SPARSE[-1:], attack=some[1:], partition=rest[:1])
        + uppers(topology=SPARSE[-1:], partition=rest[:1]),
        "data": product(attack=some, partition=PARTITIONS) + uppers(partition=PARTITIONS),
    }[part]


def uppers(**values: Any) -> list[dict[str, Any]]:
    return product(attack=ATTACKS[:1], defense=("upper",), **values)


def product(**values: Any) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


PARTS = (
    "attacks", "bounds", "honest", "weak", "ratios", "forty", "sparse", "skewed", "noise", "adaptive", "star", "missed",
    "data",
)  # fmt: skip
USUAL = {"topology": "complete", "level": 1.0, "ratio": 0.2, "defense": "gpd"}


def experiment(settings: dict[str, Any], device: str) -> Experiment:
    """What a setting runs."""
    attack = {"name": settings["attack"]}
    if settings["attack"] != "none":
        attack |= {"malicious_ratio": settings["ratio"], "malicious_level": settings["level"]}
    chosen = {key: settings[key] for key in ("dataset", "topology", "partition", "defense", "seed")}
    if settings["dataset"] == "cifar-10":
        chosen["model"] = {"name": "vit", "patch": 8, "depth": 4}  # figure 10's
    if settings["topology"] in STARS:
        chosen["topology"] = "star"
        attack["malicious_clients"] = STARS[settings["topology"]]
    return Experiment.parse(chosen | {"attack": attack, "device": device, "eval_every": 10})


def job(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """One run, as a row."""
    return settings | found(run(experiment(settings, device)))


def found(result: Result) -> dict[str, Any]:
    """What a run found, as its row has it."""
    malicious = set(result.malicious)
    to_malicious = sum(edge["neighbour"] in malicious for edge in result.trust)
    all_ = result.final | result.summary() | {
        "median_cut_round": median_cut_round(result, to_malicious),
        "malicious_edges": to_malicious,
        "benign_edges": len(result.trust) - to_malicious,
        "readmissions": sum(event["event"] == "readmitted" for event in result.events),
        "components": " ".join(f"{accuracy:.4f}" for accuracy in components(result)),
    }  # fmt: skip
    return {key: all_[key] for key in FOUND}


def median_cut_round(result: Result, edges: int) -> int | None:
    """The round by which half of the edges to attackers had been cut; None if never, or if there are none."""
    return next((row["round"] for row in result.history if edges and 2 * row["missed_edges"] <= edges), None)


def components(result: Result) -> list[float]:
    """The mean test accuracy in each part that the graph falls into without the attackers, by its first client."""
    accuracy = {int(client): value for client, value in result.final["accuracy_by_client"].items()}
    graph = nx.Graph([(edge["client"], edge["neighbour"]) for edge in result.trust])
    graph.add_nodes_from(accuracy)
    parts = nx.connected_components(graph.subgraph(accuracy))
    return [mean(accuracy[client] for client in part) for part in sorted(parts, key=min)]


def missing(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The settings that have no row yet."""
    known = {tuple(row[key] for key in KEY) for row in read(args.out)} if args.out.exists() else set()
    wanted = [
        USUAL | cell | {"dataset": args.dataset, "part": part, "seed": seed}
        for seed, part in itertools.product(range(args.seeds), args.parts.split(","))
        for cell in cells(part)
    ]
    return [each for each in wanted if tuple(str(each[key]) for key in KEY) not in known]


def sample(jobs: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """So many runs of `gpd`, the same ones whenever the same are left to do."""
    mine = [each for each in jobs if each["defense"] == "gpd"]
    return Random(0).sample(mine, min(count, len(mine)))


def study(
    args: argparse.Namespace,
    jobs: list[dict[str, Any]],
    measure: Callable[[dict[str, Any], str], dict[str, Any]] | None = None,
    fields: tuple[str, ...] = KEY + FOUND,
) -> int:
    """Run them, a row in the file as soon as a run has ended, and say how many failed.

    A run that fails stops no other, unless its process dies. ``measure`` makes a row of a setting, :func:`job` if not
    given, with these ``fields``.
    """
    start, new = time.perf_counter(), not args.out.exists() or args.out.stat().st_size == 0
    failed = 0
    with args.out.open("a", newline="") as out, ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        writer = csv.DictWriter(out, fields)
        if new:
            writer.writeheader()
            out.flush()
        running = {pool.submit(measure or job, each, args.device): each for each in jobs}
        for done, future in enumerate(as_completed(running), 1):
            if (error := future.exception()) is not None:
                failed += 1
                print(f"failed: {running[future]}: {error!r}", file=sys.stderr, flush=True)
            else:
                writer.writerow(future.result())
                out.flush()
            print(f"{done}/{len(jobs)}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return failed


def read(path: Path, fields: tuple[str, ...] = KEY + FOUND) -> list[dict[str, str]]:
    """The rows of a study, which has these ``fields``."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or fields) != fields:
            raise DataError(f"{path} is not a study: its columns are {', '.join(reader.fieldnames or [])}")
        return list(reader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument(
        "--parts", default=",".join(PARTS[:-3]), help="comma-separated; all but star, missed and data if not given"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sample", type=int, help="only so many runs of `gpd`, drawn from all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if unknown := set(args.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is not one of {', '.join(PARTS)}")
    if args.sample is not None and args.sample < 1:
        parser.error(f"--sample: {args.sample} is not at least 1")
    try:
        jobs = missing(args)
        if args.sample is not None:
            jobs = sample(jobs, args.sample)
        for each in jobs:
            experiment(each, args.device)
    except PuriflError as error:
        parser.error(str(error))
    sys.exit(1 if study(args, jobs) else 0)


if __name__ == "__main__":
    main()
