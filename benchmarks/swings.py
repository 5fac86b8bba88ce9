r"""How much of what a star loses is the luck of the last round: test accuracy in every round, and over the last ten.

    python benchmarks/swings.py --device cuda --workers 6 --seeds 0,1,2,3,4,19 --out docs/results/swings.csv \
        --figure docs/images/swings.svg

MNIST, label-dir, the star with malicious leaves of benchmarks/study.py, where accuracies swing from round to round,
also those of Upper. The table has gpd − Upper in points, seed by seed, after the last round and on average over the
last ten. Runs whose rows are there are not run again.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import study
from findings import picture
from matplotlib.figure import Figure

from purifl import Experiment, run
from purifl.drawing import drawn
from purifl.errors import PuriflError
from purifl.intervals import estimate
from purifl.simulation import available

KEY = ("attack", "defense", "seed")
FIELDS = (*KEY, "round", "test_accuracy")
UPPER = ("backdoor-9", "upper")  # trained without the attackers, whatever they do
RUNS = (UPPER, ("backdoor-9", "gpd"), ("lie", "gpd"))
LAST = 10
Curves = dict[tuple[str, str, int], list[float]]
Job = tuple[str, str, int, str]


def setting(job: Job) -> Experiment:
    """What is trained."""
    attack, defense, seed, device = job
    chosen = {"topology": study.LEAVES[0], "partition": "label-dir", "attack": attack, "defense": defense, "seed": seed}
    usual = study.experiment(study.USUAL | {"dataset": "mnist"} | chosen, device)
    return Experiment.parse(usual.model_dump() | {"eval_every": 1})


def measured(job: Job) -> list[dict[str, object]]:
    """A row for each round of a run."""
    accuracies = [(row["round"], row["test_accuracy"]) for row in run(setting(job)).history if row["round"]]
    return [dict(zip(FIELDS, (*job[:3], *each), strict=True)) for each in accuracies]


def measure(jobs: list[Job], args: argparse.Namespace) -> None:
    """The runs, their rows in the file as soon as one and those before it are done."""
    new = not args.out.exists()
    with args.out.open("a", newline="") as out, ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        writer = csv.DictWriter(out, FIELDS)
        if new:
            writer.writeheader()
        for done, rows in enumerate(pool.map(measured, jobs), 1):
            writer.writerows(rows)
            out.flush()
            print(f"{done}/{len(jobs)}", flush=True)


def read(path: Path) -> Curves:
    """Test accuracies in percent, round by round."""
    curves: Curves = defaultdict(list)
    for row in study.read(path, FIELDS) if path.exists() else ():
        curves[row["attack"], row["defense"], int(row["seed"])].append(100 * float(row["test_accuracy"]))
    return curves


def behind(curves: Curves, attack: str, seed: int, last: int) -> float:
    """Gpd − Upper in points, on average over the ``last`` rounds."""
    ours, theirs = curves[attack, "gpd", seed], curves[*UPPER, seed]
    return fmean(ours[-last:]) - fmean(theirs[-last:])


def table(curves: Curves, seeds: list[int]) -> str:
    """A line for each attack and measure, with the mean over those of seeds 0 to 4, which the other settings have."""
    lines = [["", *(f"seed {seed}" for seed in seeds), "mean of seeds 0 to 4"], ["---"] * (len(seeds) + 2)]
    for attack, _ in RUNS[1:]:
        for words, last in (("last round", 1), (f"last {LAST}", LAST)):
            found = {seed: behind(curves, attack, seed, last) for seed in seeds}
            values = [f"{value:+.1f}" for value in found.values()]
            values.append(_mean([value for seed, value in found.items() if seed < 5]))
            lines.append([f"{attack}, {words}", *(value.replace("-", "−") for value in values)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _mean(values: list[float]) -> str:
    """With an interval, where there is more than one."""
    found = estimate(values) if values else None
    return "–" if found is None else f"{found.mean:+.1f}" + (f" ± {found.half:.1f}" if found.half else "")


def figure(curves: Curves, seeds: list[int]) -> Figure:
    """A panel for each seed, Upper in black."""
    page = Figure(figsize=(10, 2.4 * ((len(seeds) + 2) // 3)), layout="constrained")
    for axes, seed in zip(page.subplots(-(-len(seeds) // 3), 3, squeeze=False).flat, seeds, strict=False):
        for (attack, defense), style in zip(RUNS, ("k-", "C0-", "C1-"), strict=True):
            curve, label = curves[attack, defense, seed], defense if defense == "upper" else f"{defense}, {attack}"
            axes.plot(range(1, len(curve) + 1), curve, style, linewidth=1, label=label)
        axes.set_title(f"seed {seed}", loc="left", fontsize="small")
        axes.set_ylim(40, 100)
    page.axes[0].legend(fontsize="x-small", loc="lower right")
    page.supxlabel("round", fontsize="small")
    page.supylabel("test accuracy, %", fontsize="small")
    return page


def numbers(text: str) -> list[int]:
    """An argument: whole numbers."""
    if not all(each.isdigit() for each in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text} is no list of whole numbers, as 0,1,2")
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=numbers, default=list(range(5)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=picture, help="an .svg, .pdf or .png file to draw")
    args = parser.parse_args()
    try:
        known = read(args.out)
        jobs = [(*each, seed, args.device) for seed in args.seeds for each in RUNS if (*each, seed) not in known]
        if jobs:
            needed = setting(jobs[0])
            available(args.device)
            needed.dataset.load()
            measure(jobs, args)
        curves = read(args.out)
        print(table(curves, args.seeds))
        if args.figure:
            args.figure.write_bytes(drawn(figure(curves, args.seeds), args.figure.suffix[1:]))
    except (PuriflError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
