"""How time and memory of a round of `gpd` grow with the number of clients on sparse graphs.

    python benchmarks/growth.py --out growth      # growth/growth.csv and growth/growth.svg, and the slopes
    python benchmarks/growth.py --large           # 80 clients, complete graph, 1,000,120 parameters, records for T = 50

Linux only. Every size runs in a process of its own, one thread, so that its peak memory is its own. A round is one of
`purifl run` on digits with everything that belongs to it: exchange, mixing, one mini-batch for each client, tracking,
detection and metrics. Slopes are those of a straight line through the logarithms, over 100 clients and more.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, get_args

import matplotlib as mpl
import networkx as nx
from matplotlib import pyplot as plt
from torch import nn
from work import CLASSES, random_images

from purifl import Client, Experiment, Federation, Training, memory
from purifl.defenses.gpd import GPD
from purifl.simulation import Simulation, deterministic

mpl.use("svg")

SIZES, TOPOLOGIES, ROUNDS, WARM_UP = (10, 30, 100, 300, 1000), ("ring", "k-regular"), 12, 2
MIB = 2**20


def peak() -> int:
    """Bytes that this process ever held at once; unlike getrusage's, not those of the process that started it."""
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def small(topology: str, clients: int) -> dict[str, Any]:
    """One size, measured in this process; what it took before there was a simulation is left out."""
    training = {"gradient": "batch", "batch_size": 32}
    settings = {"topology": topology, "model": "cnn", "training": training, "rounds": 50, "eval_every": 50}
    warm = Simulation(Experiment.parse(settings | {"clients": 5}))
    warm.step()
    before, start = peak(), time.perf_counter()
    simulation = Simulation(Experiment.parse(settings | {"clients": clients}))
    built, times = time.perf_counter() - start, []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        simulation.step()
        times.append(time.perf_counter() - start)
    graph = simulation.federation.graph
    return {
        "topology": topology, "clients": clients, "edges": graph.number_of_edges(), "setup_s": round(built, 3),
        "round_ms": round(1000 * median(times[WARM_UP:]), 2), "peak_mib": round((peak() - before) / MIB, 1),
    }  # fmt: skip


def large(records: str) -> dict[str, Any]:
    """80 clients that all talk to all, a multilayer perceptron of a million parameters, a cut on the way."""
    width, clients = 1258, 80
    rows = []
    with deterministic():
        before = peak()
        fed = Federation(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, CLASSES)),
            [Client(k, random_images(32, k)) for k in range(clients)],
            nx.complete_graph(clients),
            training=Training(gradient="batch", batch_size=32, step_size=0.01),
            defense=GPD.model_validate({"records": records}).for_rounds(50),
        )
        for t in range(8):
            if t == 5:
                fed.trust[(fed.everyone.rows == 3) & (fed.everyone.cols == 7)] = 0
            start = time.perf_counter()
            fed.step()
            rows.append({"round": t + 1, "seconds": round(time.perf_counter() - start, 1), "peak_gib": gib(peak())})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    vector = fed.theta[0].nbytes
    needed = memory.of_a_round(clients, fed.hood) * vector + sum(
        part.memory(fed.hood, vector) for part in (fed.defense, fed.detector)
    )
    kept = type(fed.defense.kept_as(fed.hood, vector)).__name__
    return {"parameters": fed.theta.shape[1], "records": kept, "estimate_gib": gib(needed),
            "without_python_gib": gib(peak() - before), "rounds": rows}  # fmt: skip


def gib(size: float) -> float:
    return round(size / 2**30, 2)


def apart(*arguments: str) -> dict[str, Any]:
    """What this script says when it is called with ``arguments``."""
    told = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def slope(rows: list[dict[str, Any]], key: str) -> float:
    """The exponent b in ``key`` ≈ a · edges^b, by least squares over 100 clients and more."""
    points = [(math.log(r["edges"]), math.log(r[key])) for r in rows if r["clients"] >= 100]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, key, label in zip(panels, ("round_ms", "peak_mib"), ("ms a round", "peak MiB"), strict=True):
        for topology, style in zip(TOPOLOGIES, ("o-", "s--"), strict=True):
            chosen = [r for r in rows if r["topology"] == topology]
            points = [r["edges"] for r in chosen], [r[key] for r in chosen]
            axes.loglog(*points, style, label=f"{topology}, slope {slope(chosen, key):.2f}")
        axes.set(xlabel="edges", ylabel=label)
        axes.legend(frameon=False)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("growth"))
    parser.add_argument(
        "--large", nargs="?", const="auto", choices=get_args(GPD.model_fields["records"].annotation),
        help="the large case alone, and how it keeps records; auto if not said",
    )  # fmt: skip
    parser.add_argument("--one", nargs=2, metavar=("TOPOLOGY", "CLIENTS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(small(args.one[0], int(args.one[1]))))
        return
    if args.large:
        print(json.dumps(large(args.large), indent=1))
        return
    rows = []
    for topology in TOPOLOGIES:
        for clients in SIZES:
            rows.append(apart("--one", topology, str(clients)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "growth.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, args.out / "growth.svg")
    print("| topology | slope of set-up time | of time a round | of peak memory |\n|---|---|---|---|")
    for topology in TOPOLOGIES:
        chosen = [r for r in rows if r["topology"] == topology]
        slopes = (f"{slope(chosen, key):.2f}" for key in ("setup_s", "round_ms", "peak_mib"))
        print(f"| {topology} | {' | '.join(slopes)} |")


if __name__ == "__main__":
    main()
