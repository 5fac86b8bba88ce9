"""The paper's default MNIST run on a GPU: seconds after warm-up, where they go, and what lower precision buys.

    python benchmarks/gpu.py --out docs/results/gpu.json

Clients trained one by one (`loop`) are timed over a few rounds in the same process, for the ratio per round.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from purifl import Experiment, Profile, run
from purifl.simulation import Simulation

SETTINGS: dict[str, Any] = {
    "dataset": "mnist", "attack": "backdoor-9", "defense": "gpd", "device": "cuda", "eval_every": 10,
}  # fmt: skip


def seconds_of_runs(repeats: int, **settings: Any) -> dict[str, Any]:
    """Whole runs, from the experiment to the result, once the first has warmed everything up."""
    experiment = Experiment(**SETTINGS | settings)
    run(Experiment(**SETTINGS | settings | {"rounds": 2}))
    found, summary = [], {}
    for _ in range(repeats):
        start = time.perf_counter()
        summary = run(experiment).summary()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    accuracies = {key: summary[key] for key in ("test_accuracy", "attack_accuracy")}
    return {"median": median(found), "least": min(found), "most": max(found), **accuracies}


def seconds_of_rounds(engine: str, rounds: int) -> float:
    """The median round without evaluation."""
    simulation = Simulation(Experiment(**SETTINGS | {"engine": engine, "eval_every": 50}))
    simulation.step()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        simulation.step()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="timed with clients one by one")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for precision in ("float32", "tf32", "bf16"):
        result[precision] = seconds_of_runs(args.repeats, precision=precision)
        print(precision, json.dumps(result[precision]), flush=True)
    profile = Profile()
    run(Experiment(**SETTINGS), profile=profile)
    result["profile"] = profile.summary()
    rounds = {engine: seconds_of_rounds(engine, args.rounds) for engine in ("loop", "stacked")}
    result["round"] = rounds | {"ratio": rounds["loop"] / rounds["stacked"]}
    print(json.dumps({key: result[key] for key in ("round", "profile")}, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
