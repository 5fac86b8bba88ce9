"""From a configuration to a peer ready to run."""

from __future__ import annotations

import os
from concurrent.futures import Executor

from purifl.attacks import MessageAttack
from purifl.data import DataSet
from purifl.errors import ConfigError
from purifl.experiment import Experiment
from purifl.metrics import Targets
from purifl.models import Build
from purifl.models.base import imported
from purifl.peer.config import PeerConfig
from purifl.peer.malicious import Malicious
from purifl.peer.measure import Measure, label_counts
from purifl.peer.node import Node
from purifl.peer.participant import Benign, Seat
from purifl.randomness import stream
from purifl.simulation import available, corrupted, loaded, place, share_out
from purifl.training import Client


def check_experiment(experiment: Experiment) -> None:
    """Refuse what cannot be on a network."""
    if experiment.defense.knows_malicious:
        raise ConfigError("defense", experiment.defense.name, "on a network nobody is told who is malicious")
    attack = experiment.attack
    if isinstance(attack, MessageAttack) and attack.omniscient:
        raise ConfigError("attack", attack.name, "it needs to know what no peer on a network can; simulate it instead")


def node_for(config: PeerConfig, executor: Executor | None = None) -> Node:
    """The peer that a configuration describes."""
    experiment = config.load_experiment()
    check_experiment(experiment)
    device = available(experiment.device)
    data = _own(config.data).to(device) if config.data else loaded(
        experiment.dataset, os.environ.get("PURIFL_DATA"), device
    )  # fmt: skip
    malicious = frozenset(place(experiment)[1])
    poison = experiment.attack.aim(data, stream(experiment.seed, "attack"))
    if config.data:
        client = Client(config.id, data.train)
        client = corrupted(experiment, client, poison) if config.id in malicious else client
    else:
        client = share_out(experiment, data, poison, sorted(malicious))[config.id]
    neighbours = {each.id: each.neighbours for each in config.neighbours}
    told = malicious if client.malicious else frozenset()
    seat = Seat(experiment, client, neighbours, Build(experiment.model, data.shape, data.classes), told)
    measure = Measure(experiment, Targets.of(data.test, poison, device), label_counts(client.data.y, data.classes))
    return Node(config, Malicious(seat) if client.malicious else Benign(seat), measure, executor)


def _own(path: str) -> DataSet:
    """The data that a peer brings."""
    data = imported(path, "data")()
    if not isinstance(data, DataSet):
        raise ConfigError("data", path, f"it has to return a purifl.data.DataSet, not a {type(data).__name__}")
    if len(data.train.y) == 0:
        raise ConfigError("data", path, "it has no training samples")
    return data
