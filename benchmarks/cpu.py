"""How close a round of purifl comes to the hardware's floor, beside a plain loop, byzfl and Flower.

    pip install -e '.[benchmark]'       # in an environment of its own: Flower wants older packages than we pin
    python benchmarks/cpu.py --repeats 5

10 clients, one mini-batch of 256 each, 50 rounds, 28x28 images, a small CNN. Every figure is the time of the rounds
alone, after set-up and a few rounds that do not count, without evaluation. Each contestant runs in a fresh process;
repeats are interleaved, so that a machine that slows down slows all of them, and ratios are taken within a repeat.

The floor is the same local steps and nothing else: clients split over the cores in single-threaded processes that keep
the memory they free, each drawing a mini-batch and stepping along its gradient, nothing exchanged. The bare floor does
not even draw: its mini-batches are laid out beforehand. The plain loop averages models after each round. purifl does
full gpd: gradient tracking, records, detection, on a complete graph.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any, NamedTuple

import networkx as nx
import torch
from peers import STEP, byzfl, flower, timed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from work import random_images, small_cnn

from purifl import Federation, Training
from purifl.defenses.gpd import GPD
from purifl.determinism import deterministic

CLIENTS, BATCH, SAMPLES, ROUNDS, WARM_UP = 10, 256, 1024, 50, 5
CORES = len(os.sched_getaffinity(0))
KEEP_MEMORY = (("MALLOC_TRIM_THRESHOLD_", str(1 << 30)), ("MALLOC_MMAP_THRESHOLD_", str(1 << 30)))


class Contestant(NamedTuple):
    """How to run one: what, with how many threads, and which package and environment it needs."""

    run: Callable[..., float]
    threads: tuple[int, ...] = (1,)
    needs: str | None = None
    environment: tuple[tuple[str, str], ...] = ()


def floor(clients: int, batch: int, samples: int, rounds: int, warm_up: int) -> float:
    """The slowest of the processes, each with its share of the clients."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(CORES), context.SimpleQueue()
    shares = [range(k, clients, CORES) for k in range(CORES)]
    sizes = batch, samples, rounds, warm_up
    processes = [context.Process(target=_steps, args=(share, *sizes, barrier, seconds)) for share in shares]
    for process in processes:
        process.start()
    slowest = max(seconds.get() for _ in processes)
    for process in processes:
        process.join()
    return slowest


def bare_floor(clients: int, batch: int, samples: int, rounds: int, warm_up: int) -> float:
    """Clients that have one mini-batch and draw none."""
    return floor(clients, batch, batch, rounds, warm_up)


def _steps(share: range, batch: int, samples: int, rounds: int, warm_up: int, barrier: Barrier, seconds: Any) -> None:
    torch.set_num_threads(1)
    models = [small_cnn() for _ in share]
    parameters = [list(model.parameters()) for model in models]
    data = [random_images(samples, k) for k in share]

    def step() -> None:
        for model, params, own in zip(models, parameters, data, strict=True):
            x, y = own.take(torch.randperm(samples)[:batch]) if samples > batch else own
            gradient = torch.autograd.grad(cross_entropy(model(x), y), params)
            with torch.no_grad():
                torch._foreach_add_(params, gradient, alpha=-STEP)

    timed(step, warm_up, 0)
    barrier.wait()
    seconds.put(timed(step, rounds, 0))


def loop(clients: int, batch: int, samples: int, rounds: int, warm_up: int) -> float:
    """What one writes in an afternoon: every client takes its step, then models are averaged."""
    models = [small_cnn() for _ in range(clients)]
    optimisers = [torch.optim.SGD(model.parameters(), lr=STEP) for model in models]
    data = [random_images(samples, k) for k in range(clients)]

    def step() -> None:
        for model, optimiser, own in zip(models, optimisers, data, strict=True):
            x, y = own.take(torch.randperm(samples)[:batch])
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            optimiser.step()
        with torch.no_grad():
            average = torch.stack([parameters_to_vector(model.parameters()) for model in models]).mean(0)
            for model in models:
                for p, value in zip(model.parameters(), _pieces(average, model), strict=True):
                    p.copy_(value)

    return timed(step, rounds, warm_up)


def _pieces(vector: Tensor, model: nn.Module) -> list[Tensor]:
    shapes = [p.shape for p in model.parameters()]
    return [part.view(shape) for part, shape in zip(vector.split([s.numel() for s in shapes]), shapes, strict=True)]


def purifl(clients: int, batch: int, samples: int, rounds: int, warm_up: int) -> float:
    """Full gpd on a complete graph."""
    with deterministic():
        federation = Federation(
            small_cnn,
            [random_images(samples, k) for k in range(clients)],
            nx.complete_graph(clients),
            training=Training(gradient="batch", batch_size=batch, step_size=STEP),
            defense=GPD(),
        )
        return timed(federation.step, rounds, warm_up)


CONTESTANTS = {
    "bare floor": Contestant(bare_floor, environment=KEEP_MEMORY),
    "floor": Contestant(floor, environment=KEEP_MEMORY),
    "purifl, full gpd": Contestant(purifl),
    "plain loop": Contestant(loop, threads=(1, CORES)),
    "byzfl": Contestant(byzfl, threads=(1, CORES), needs="byzfl"),
    "Flower's simulation": Contestant(flower, needs="flwr"),
}


def once(name: str, threads: int) -> float:
    """Seconds for all rounds, measured in a process of its own."""
    contestant = CONTESTANTS[name]
    command = [sys.executable, __file__, "--one", name, "--threads", str(threads)]
    environment = os.environ | dict(contestant.environment) | {"OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    seconds: float = json.loads(output.splitlines()[-1])
    return seconds


def measure(repeats: int) -> dict[str, dict[int, list[float]]]:
    """Seconds of every contestant that is installed, by its number of threads."""
    found: dict[str, dict[int, list[float]]] = {}
    for name, contestant in CONTESTANTS.items():
        if contestant.needs and find_spec(contestant.needs) is None:
            print(f"{name} is left out: it is not installed; pip install -e '.[benchmark]' gets it", file=sys.stderr)
        else:
            found[name] = {threads: [] for threads in dict.fromkeys(contestant.threads)}
    for repeat in range(repeats):
        for name, by_threads in found.items():
            for threads, seconds in by_threads.items():
                seconds.append(once(name, threads))
                print(f"{repeat + 1}/{repeats} {name}, {threads}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[int, list[float]]]) -> str:
    """A row for each contestant at its best number of threads: median (least to most) of seconds and of ratios."""
    least, own = (found[name][1] for name in ("floor", "purifl, full gpd"))
    lines = ["| | threads | seconds | / floor | / purifl |", "|---|---|---|---|---|"]
    for name, by_threads in found.items():
        threads, seconds = min(by_threads.items(), key=lambda item: median(item[1]))
        ratios = ([a / b for a, b in zip(seconds, other, strict=True)] for other in (least, own))
        lines.append(f"| {name} | {threads} | {' | '.join(_spread(values) for values in (seconds, *ratios))} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", choices=CONTESTANTS, help="measure one contestant in this process")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.one:
        torch.set_num_threads(args.threads)
        print(json.dumps(CONTESTANTS[args.one].run(CLIENTS, BATCH, SAMPLES, ROUNDS, WARM_UP)))
        return
    found = measure(args.repeats)
    print(f"{CLIENTS} clients × one mini-batch of {BATCH} × {ROUNDS} rounds, {args.repeats} repeats")
    print(f"{CORES} cores, {platform.processor() or platform.machine()}, torch {torch.__version__}\n")
    print(table(found))


if __name__ == "__main__":
    main()
