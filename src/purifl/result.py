"""What a run gave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from purifl.experiment import Experiment
from purifl.metrics import Row


@dataclass
class Result:
    """What a run gave.

    Attributes:
        experiment: What was run.
        malicious: Ids of the malicious clients, also where the defence excluded them from the start.
        history: A row of metrics per round.
        events: Every cut and re-admission.
        trust: For every edge of a benign client, the final trust and whether it is cut.
        histograms: Label counts of each client.
        seconds: Time spent, interruptions left out.
        round_seconds: The median time of a round with its measurements, without storing it.
        hardware: What it was computed on.
        folder: Where it is stored, if anywhere.
    """

    experiment: Experiment
    malicious: list[int] = field(default_factory=list)
    history: list[Row] = field(default_factory=list, repr=False)
    events: list[Row] = field(default_factory=list, repr=False)
    trust: list[Row] = field(default_factory=list, repr=False)
    histograms: list[list[int]] = field(default_factory=list, repr=False)
    seconds: float = 0.0
    round_seconds: float | None = None
    hardware: str | None = None
    folder: Path | None = None

    @property
    def final(self) -> Row:
        """The last round's metrics."""
        return self.history[-1]

    @property
    def detected_round(self) -> int | None:
        """First round in which every benign client has cut every malicious neighbour; None if never.

        Also None where no benign client has a malicious neighbour (no attack, or ``upper``).
        """
        if not any(edge["neighbour"] in self.malicious for edge in self.trust):
            return None
        return next((row["round"] for row in self.history if row.get("missed_edges") == 0), None)

    @property
    def client_seconds(self) -> float | None:
        """The median time of a round for each client that trained."""
        excluded = len(self.malicious) if self.experiment.defense.knows_malicious else 0
        return None if self.round_seconds is None else self.round_seconds / (self.experiment.clients - excluded)

    @property
    def epsilon(self) -> float | None:
        """ε of the differential privacy that the defence gave benign clients' data; None where it gave none."""
        sizes = [sum(counts) for k, counts in enumerate(self.histograms) if k not in self.malicious]
        spent = self.experiment.defense.privacy_spent(self.experiment.training, sizes, len(self.history))
        return None if spent is None or math.isinf(spent) else spent

    def summary(self) -> Row:
        """One flat JSON object: the final metrics and what identifies the run."""
        keys = (
            "test_accuracy", "test_accuracy_min", "test_accuracy_std", "attack_accuracy", "attack_accuracy_all",
            "missed_edges", "false_alarm_edges", "benign_components", "tracking_error", "gamma_norm",
        )  # fmt: skip
        experiment = self.experiment
        names = ("dataset", "partition", "topology", "model", "attack", "defense", "detector")
        return {
            **{name: getattr(experiment, name).name for name in names},
            "mixing": experiment.mixing,
            **{key: self.final[key] for key in keys},
            "accuracy_by_label": self.final.get("accuracy_by_label"),
            "detected_round": self.detected_round,
            "epsilon": self.epsilon,
            "malicious": self.malicious,
            "rounds": len(self.history),
            "seconds": round(self.seconds, 3),
            "round_seconds": self.round_seconds,
            "client_seconds": self.client_seconds,
            "hardware": self.hardware,
            "seed": experiment.seed,
            "folder": str(self.folder) if self.folder else None,
        }
