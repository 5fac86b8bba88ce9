"""What is measured: accuracy, attack accuracy, tracking error, and who still listens to whom."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

from purifl.attacks import Poison
from purifl.data import Samples
from purifl.federation import Federation
from purifl.topology import Graph


@dataclass(frozen=True)
class Targets:
    """What the benign models are tested on: the test split and, for targeted attacks, the attacker's probe.

    ``genuine`` marks the probe's inputs that truly have the label the attacker wants.
    """

    test: Samples
    probe: Samples | None = None
    genuine: Tensor | None = None

    @classmethod
    def of(cls, test: Samples, poison: Poison | None, device: torch.device) -> Targets:
        """The targets on ``device``."""
        if poison is None or poison.probe is None or poison.genuine is None:
            return cls(test.to(device))
        return cls(test.to(device), poison.probe.to(device), poison.genuine.to(device))


def accuracies(federation: Federation, targets: Targets) -> dict[str, object]:
    """Test and attack accuracy over the benign clients' own models.

    ``attack_accuracy`` leaves out inputs that truly have the attacker's label, so that an honest model
    scores about 0; ``attack_accuracy_all`` counts them, as some papers do.
    """
    theta = federation.theta[federation.benign]
    each = federation.engine.hits(theta, targets.test).float().mean(1)
    row: dict[str, object] = {
        "test_accuracy": each.mean().item(),
        "test_accuracy_min": each.min().item(),
        "test_accuracy_std": each.std(correction=0).item(),
        "accuracy_by_client": {
            str(federation.clients[k].id): value for k, value in zip(federation.benign, each.tolist(), strict=True)
        },
        "attack_accuracy": None,
        "attack_accuracy_all": None,
    }
    if targets.probe is not None and targets.genuine is not None:
        fooled = federation.engine.hits(theta, targets.probe).float()
        row["attack_accuracy"] = fooled[:, ~targets.genuine].mean().item()
        row["attack_accuracy_all"] = fooled.mean().item()
    return row


def tracking(federation: Federation) -> dict[str, object]:
    """How well γ follows g: e = ‖Σ_B γ − Σ_B g‖ / b beside the mean ‖γ‖, and how far apart clients are."""
    gamma, gradient = (x[federation.benign] for x in (federation.gamma, federation.gradient))
    theta = federation.theta[federation.benign]
    distance = federation.hood.distances(federation.gamma)
    malicious = federation.to_malicious
    return {
        "tracking_error": (gamma - gradient).mean(0).norm().item(),
        "gamma_norm": gamma.norm(dim=1).mean().item(),
        "benign_distance": _median(distance[~malicious & ~federation.hood.to_self]),
        "malicious_distance": _median(distance[malicious]),
        "consensus_distance": (theta - theta.mean(0)).norm(dim=1).mean().item(),
    }


def masks(federation: Federation) -> dict[str, object]:
    """Edges from benign clients: malicious ones not cut, benign ones cut, and what is left of the graph."""
    malicious = federation.to_malicious
    kept: Graph = nx.Graph()
    kept.add_nodes_from(federation.benign)
    listening = {edge for edge, cut in edges(federation).items() if not cut}
    kept.add_edges_from((i, j) for i, j in listening if (j, i) in listening)
    return {
        "missed_edges": int((malicious & ~federation.cut).sum()),
        "false_alarm_edges": int((federation.cut & ~malicious).sum()),
        "benign_components": nx.number_connected_components(kept),
    }


def edges(federation: Federation) -> dict[tuple[int, int], bool]:
    """Whether benign client i has cut its neighbour j, for every edge (i, j), as positions, self left out."""
    hood = federation.hood
    ends = zip(hood.own_cols[hood.rows].tolist(), hood.senders.tolist(), federation.cut.tolist(), strict=True)
    return {(i, j): cut for i, j, cut in ends if i != j}


def _median(values: Tensor) -> float | None:
    return values.median().item() if len(values) else None
