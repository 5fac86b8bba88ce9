"""A whole federation on one machine, set up from an experiment and measured round by round."""

from __future__ import annotations

import math
import os
import platform
from functools import lru_cache

import torch

from purifl.attacks import MessageAttack, Poison
from purifl.data import DataSet, DataSource
from purifl.determinism import deterministic
from purifl.errors import ConfigError
from purifl.experiment import Experiment
from purifl.federation import Federation
from purifl.metrics import Meter, Row, Targets
from purifl.models import Build
from purifl.randomness import stream
from purifl.topology import Graph
from purifl.training import Client


def place(experiment: Experiment) -> tuple[Graph, list[int]]:
    """The graph, and which of its clients are malicious."""
    return graph_of(experiment), attackers_of(experiment)


def graph_of(experiment: Experiment) -> Graph:
    """The graph."""
    return experiment.topology.build(experiment.clients, stream(experiment.seed, "topology"))


def attackers_of(experiment: Experiment) -> list[int]:
    """Which clients are malicious."""
    return experiment.attack.place(experiment.clients, stream(experiment.seed, "malicious clients"))


def share_out(experiment: Experiment, data: DataSet, poison: Poison | None, malicious: list[int]) -> list[Client]:
    """The clients, each with its part of the data; the malicious ones with what they would rather have learned."""
    labels, n = data.train.y.cpu().numpy(), experiment.clients
    parts = experiment.partition.split(labels, n, stream(experiment.seed, "partition"))
    clients = [Client(k, data.train.at(torch.from_numpy(part))) for k, part in enumerate(parts)]
    return [corrupted(experiment, c, poison) if c.id in malicious else c for c in clients]


def corrupted(experiment: Experiment, client: Client, poison: Poison | None) -> Client:
    """The client turned malicious."""
    poisoned = poison.corrupt(client.data) if poison else None
    return Client(client.id, client.data, poisoned, experiment.attack.malicious_level, malicious=True)


class Simulation:
    """An experiment brought to life: data shared out, attackers placed, federation begun."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        seed, device = experiment.seed, available(experiment.device)
        data = loaded(experiment.dataset, os.environ.get("PURIFL_DATA"), device)
        poison = experiment.attack.aim(data, stream(seed, "attack"))
        self.malicious = attackers_of(experiment)
        clients = share_out(experiment, data, poison, self.malicious)
        graph = graph_of(experiment)  # only now: of more clients than there is data for, it may take minutes
        self.histograms = [c.data.y.cpu().bincount(minlength=data.classes).tolist() for c in clients]
        self.targets = Targets.of(data.test, poison, device)

        if experiment.defense.knows_malicious:
            clients = [c for c in clients if not c.malicious]
            graph = graph.subgraph([c.id for c in clients]).copy()
        with deterministic(experiment.precision):
            self.federation = Federation(
                Build(experiment.model, data.shape, data.classes),
                clients,
                graph,
                training=experiment.training,
                defense=experiment.defense.for_rounds(experiment.rounds),
                detector=experiment.detector,
                mixing=experiment.mixing,
                seed=seed,
                device=device,
                attack=experiment.attack if isinstance(experiment.attack, MessageAttack) else None,
                engine=experiment.engine,
                precision=experiment.precision,
            )
        self._meter = Meter(self.federation, self.targets)

    def step(self) -> tuple[Row, list[Row]]:
        """One round: its row of metrics, and what changed on the edges."""
        before = self.federation.cut
        with deterministic(self.experiment.precision):
            self.federation.step()
            row, events = self._meter.read(before, self._evaluates)
        return finite(row), events

    @property
    def _evaluates(self) -> bool:
        """Whether the models are tested in the round just done."""
        every = self.experiment.eval_every
        assert every is not None  # filled in by the experiment
        return self.federation.round % every == 0 or self.finished

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.federation.round >= self.experiment.rounds

    @property
    def hardware(self) -> str:
        """What the federation is computed on."""
        device = self.federation.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"

    def trust(self) -> list[Row]:
        """For every edge of a benign client: its trust in the neighbour, and whether it has cut it."""
        federation, hood = self.federation, self.federation.hood
        values = federation.trust[federation.defended].tolist()
        ends = zip(hood.listeners.tolist(), hood.senders.tolist(), values, federation.cut.tolist(), strict=True)
        return [
            finite(
                {"client": federation.clients[i].id, "neighbour": federation.clients[j].id, "trust": trust, "cut": cut}
            )
            for i, j, trust, cut in ends
            if i != j
        ]


def finite(row: Row) -> Row:
    """The row with null for numbers that are not finite, which JSON does not have."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


@lru_cache(maxsize=1)
def loaded(source: DataSource, root: str | None, device: torch.device) -> DataSet:
    """The data set from the folder ``root``, on the device; the last one is kept for the next run."""
    return source.load().to(device)


def available(name: str) -> torch.device:
    """The device of that name, if this machine has it."""
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ConfigError("device", name, f"this machine has {found} CUDA devices; use 'cpu'")
    return device
