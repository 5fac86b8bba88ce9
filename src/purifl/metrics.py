"""What is measured: accuracy, attack accuracy, tracking error, and who still listens to whom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from purifl.attacks import Poison
from purifl.data import Samples
from purifl.engines import Engine
from purifl.federation import Federation
from purifl.phases import phase

_FOLLOWED = 10_000  # edges up to which a row tells the trust on each of them

Row = dict[str, Any]
Numbers = dict[str, Tensor | None]
"""Measured and still on the device; None where there is nothing to measure."""


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

    @cached_property
    def everything(self) -> Samples:
        """Both, the test split first, so that one pass tests a model on all of it."""
        if self.probe is None:
            return self.test
        return Samples(*(torch.cat(both) for both in zip(self.test, self.probe, strict=True)))

    @cached_property
    def by_label(self) -> Tensor:
        """(labels, inputs) 1 where an input of the test split has the label, else 0."""
        labels = torch.arange(int(self.test.y.max()) + 1, device=self.test.y.device)
        return (self.test.y == labels[:, None]).to(torch.float32)

    @cached_property
    def others(self) -> Tensor:
        """Positions of the probe's inputs that are not genuine."""
        assert self.genuine is not None
        return (~self.genuine).nonzero()[:, 0]


def accuracies(engine: Engine, theta: Tensor, targets: Targets) -> Numbers:
    """Test and attack accuracy over clients' own models (n, d).

    ``attack_accuracy`` leaves out inputs that truly have the attacker's label, so that an honest model
    scores about 0; ``attack_accuracy_all`` counts them, as some papers do.
    """
    hits = engine.hits(theta, targets.everything).float()
    right = hits[:, : len(targets.test.y)].sum(0)  # whole numbers, so that no order of adding them matters
    each, fooled = hits[:, : len(targets.test.y)].mean(1), hits[:, len(targets.test.y) :]
    return {
        "test_accuracy": each.mean(),
        "test_accuracy_min": each.min(),
        "test_accuracy_std": each.std(correction=0),
        "accuracy_by_client": each,
        "accuracy_by_label": targets.by_label @ right / (len(hits) * targets.by_label.sum(1)),
        "attack_accuracy": fooled[:, targets.others].mean() if targets.probe is not None else None,
        "attack_accuracy_all": fooled.mean() if targets.probe is not None else None,
    }


class Meter:
    """Measures the rounds of a federation with few transfers from its device.

    All numbers of a round come over together. Who has cut whom is looked at edge by edge, and the graph that
    is left taken to pieces, only when a cut was made or taken back.
    """

    def __init__(self, federation: Federation, targets: Targets) -> None:
        self._federation, self._targets = federation, targets
        hood, malicious = federation.hood, federation.to_malicious
        self._benign = torch.tensor(federation.benign, device=federation.device)
        self._to_malicious = malicious.nonzero()[:, 0]
        self._to_benign = (~malicious & hood.to_others).nonzero()[:, 0]
        self._listeners, self._senders = (x.cpu().numpy() for x in (hood.listeners, hood.senders))
        followed = hood.neighbours if len(hood.neighbours) <= _FOLLOWED else None
        self._followed = None if followed is None else federation.defended.nonzero()[followed, 0]
        self._components: int | None = None

    @phase("measure")
    def read(self, before: Tensor, evaluate: bool) -> tuple[Row, list[Row]]:
        """The row of the round just done, and an event for each edge that was cut or taken up again.

        Args:
            before: (E,) the cuts before the round.
            evaluate: Whether the models are tested, too.
        """
        federation = self._federation
        tested = accuracies(federation.engine, federation.theta[federation.benign], self._targets) if evaluate else {}
        changed = (federation.cut != before).sum()
        row = fetched({**tested, **self.tracking(), **self.masks(), **self.trust(), "changed": changed})
        events = []
        if row.pop("changed") or self._components is None:
            old, new = torch.stack([before, federation.cut]).cpu().numpy()
            self._components, events = self._count_components(new), self._events(old, new)
        if evaluate:
            ids = (str(federation.clients[k].id) for k in federation.benign)
            row["accuracy_by_client"] = dict(zip(ids, row["accuracy_by_client"], strict=True))
            row["accuracy_by_label"] = [_or_none(value) for value in row["accuracy_by_label"]]
        if "trust" in row:
            row["trust"] = _brief(row["trust"])
        return {"round": federation.round, **row, "benign_components": self._components}, events

    def tracking(self) -> Numbers:
        """How well γ follows g: e = ‖Σ_B γ − Σ_B g‖ / b beside the mean ‖γ‖, and how far apart clients are."""
        federation = self._federation
        theta, gamma, gradient = (x[self._benign] for x in (federation.theta, federation.gamma, federation.gradient))
        distance = federation.hood.distances(federation.gamma)
        return {
            "tracking_error": (gamma - gradient).mean(0).norm(),
            "gamma_norm": gamma.norm(dim=1).mean(),
            "benign_distance": _median(distance[self._to_benign]),
            "malicious_distance": _median(distance[self._to_malicious]),
            "consensus_distance": (theta - theta.mean(0)).norm(dim=1).mean(),
        }

    def masks(self) -> Numbers:
        """Edges from benign clients: malicious ones not cut, and benign ones cut."""
        cut, malicious = self._federation.cut, self._federation.to_malicious
        return {"missed_edges": (malicious & ~cut).sum(), "false_alarm_edges": (cut & ~malicious).sum()}

    def trust(self) -> Numbers:
        """w_ij on the edges of benign clients to others, in the order of their rows; none where there are too many."""
        return {} if self._followed is None else {"trust": self._federation.trust[self._followed]}

    def _events(self, before: NDArray[np.bool_], cut: NDArray[np.bool_]) -> list[Row]:
        """What changed on the edges, in their order; a client's edge to itself is none."""
        clients = self._federation.clients
        return [
            {
                "round": self._federation.round,
                "event": "cut" if cut[e] else "readmitted",
                "client": clients[self._listeners[e]].id,
                "neighbour": clients[self._senders[e]].id,
                "malicious": clients[self._senders[e]].malicious,
            }
            for e in np.flatnonzero((cut != before) & (self._listeners != self._senders))
        ]

    def _count_components(self, cut: NDArray[np.bool_]) -> int:
        """Parts of the graph of benign clients that listen to one another."""
        n, benign = len(self._federation.clients), self._federation.benign
        ends = self._listeners[~cut], self._senders[~cut]
        listens = coo_array((np.ones(len(ends[0])), ends), shape=(n, n)).tocsr()[benign][:, benign]
        count: int = connected_components(listens.multiply(listens.T), directed=False, return_labels=False)
        return count


def fetched(numbers: Numbers) -> Row:
    """The numbers on the host, all in one transfer; what is a vector becomes a list."""
    measured = [x.reshape(-1).double() for x in numbers.values() if x is not None]
    values, row = iter(torch.cat(measured).tolist()), {}
    for key, x in numbers.items():
        kind = float if x is None or x.is_floating_point() else int
        taken = [kind(value) for value in islice(values, 0 if x is None else x.numel())]
        row[key] = None if x is None else taken if x.ndim else taken[0]
    return row


def _brief(values: list[float]) -> list[float | None]:
    """Six decimals, which keep a row short; None for what is not finite."""
    return [value if math.isfinite(value) else None for value in np.round(values, 6).tolist()]


def _or_none(value: float) -> float | None:
    """None for a label that no input has."""
    return None if math.isnan(value) else value


def _median(values: Tensor) -> Tensor | None:
    return values.median() if len(values) else None
