"""What a peer records of its rounds: the rows of a run folder, as far as one client can know them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purifl.experiment import Experiment
from purifl.metrics import Row, Targets, accuracies, fetched
from purifl.peer.participant import Participant
from purifl.simulation import finite

_KEYS = (
    "test_accuracy", "test_accuracy_min", "test_accuracy_std", "attack_accuracy", "attack_accuracy_all",
    "tracking_error", "gamma_norm", "benign_distance", "malicious_distance", "consensus_distance",
    "missed_edges", "false_alarm_edges", "benign_components",
)  # fmt: skip
"""The columns of a run's metrics. What a client cannot know, such as who is malicious, is null."""


class Measure:
    """Tests a peer's model, and writes its rows.

    Args:
        experiment: How often models are tested.
        targets: What on.
        histogram: Label counts of the peer's data.
    """

    def __init__(self, experiment: Experiment, targets: Targets, histogram: list[int]) -> None:
        self._experiment, self._targets, self.histogram = experiment, targets, histogram

    def read(self, me: Participant, before: Tensor, seconds: dict[str, float]) -> tuple[Row, list[Row]]:
        """The row of the round just done, and an event for each neighbour that was cut or taken up again."""
        every = self._experiment.eval_every
        assert every is not None  # filled in by the experiment
        evaluates = me.round % every == 0 or me.round >= self._experiment.rounds
        row: Row = self.skipped(me.round) | {"absent": False, "seconds": seconds}
        if evaluates:
            tested = fetched(accuracies(me.engine, me.theta, self._targets))
            row |= tested | {"accuracy_by_client": {str(me.seat.client.id): tested["accuracy_by_client"][0]}}
        else:
            for key in _KEYS[:5]:
                del row[key]
        row["gamma_norm"] = float(me.gamma.norm())
        row["distance"] = finite({str(j): apart for j, apart in me.apart.items()})  # it may be too large for a float32
        row["counted"] = sorted(me.apart)
        row["trust"] = [me.trust_in(j) for j in sorted(me.seat.neighbours)]
        row["cut"] = [j for j in me.seat.neighbours if me.has_cut(j)]
        return finite(row), self._events(me, before)

    def skipped(self, round_: int) -> Row:
        """The row of a round in which the peer was away."""
        return {"round": round_, **dict.fromkeys(_KEYS), "absent": True}

    def _events(self, me: Participant, before: Tensor) -> list[Row]:
        changed: list[Any] = (me.cut != before).nonzero()[:, 0].tolist()
        return [
            {"round": me.round, "event": "cut" if me.cut[k] else "readmitted", "client": me.seat.client.id,
             "neighbour": me.ids[k], "malicious": None}
            for k in changed if k != me.own
        ]  # fmt: skip

    def trust(self, me: Participant) -> list[Row]:
        """The peer's trust in each neighbour in the end, and whether it has cut it."""
        return [
            {"client": me.seat.client.id, "neighbour": j, "trust": me.trust_in(j), "cut": me.has_cut(j)}
            for j in sorted(me.seat.neighbours)
        ]


def label_counts(labels: Tensor, classes: int) -> list[int]:
    """How many samples there are of each label."""
    counts: list[int] = torch.bincount(labels.cpu(), minlength=classes).tolist()
    return counts
