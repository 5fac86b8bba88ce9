"""Detectors: who among my neighbours is inconsistent, expressed as trust that falls round by round.

Every detector gives each neighbour a score s_ij ≥ 0, and Algorithm 2 of the paper turns scores to trust,

    s'_ij = s_ij / Σ_k s_ik,     w_ij ← (w_ij + s'_ij) / Σ_k (w_ik + s'_ik),

an average with a half-life of one round. They differ only in what evidence the score is based on.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from purifl.neighbourhood import Neighbourhood
from purifl.registry import PAPER, Component, Registry
from purifl.state import State


def lower_trust(hood: Neighbourhood, trust: Tensor, scores: Tensor, kept: Tensor) -> Tensor:
    """Algorithm 2: w_ij ← (w_ij + s'_ij) / Σ_k (w_ik + s'_ik), over the edges ``kept``; 0 elsewhere."""
    shares = hood.normalise(torch.where(kept, scores, 0))
    return hood.normalise(torch.where(kept, trust + shares, 0))


class Detector(Component):
    """Scores neighbours by what they send."""

    def begin(self, hood: Neighbourhood, gamma: Tensor) -> State:
        """What the detector remembers between rounds, all tensors."""
        return {}

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """Bytes of memory that takes, where a vector of length d takes ``vector``: known before anything is trained."""
        return 0

    @abstractmethod
    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor) -> Tensor | None:
        """(E,) s_ij from this round's γ (N, d), 1 for oneself; None leaves all trust as it is."""


detectors: Registry[Detector] = Registry("detector", "purifl.detection")


@detectors.register("none")
class NoDetection(Detector):
    """Nobody is ever suspected."""

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor) -> Tensor | None:
        """No score."""
        return None


@detectors.register("consistency")
class Consistency(Detector):
    """The paper's: trust falls with the distance of this round's γ to one's own."""

    reference = PAPER + ", Algorithm 2"

    temperature: float = Field(1.0, gt=0, description="unit of the distance; 1 is the paper's rule")

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor) -> Tensor:
        """s_ij = exp(−‖γ_j − γ_i‖₂ / temperature)."""
        return torch.exp(-hood.distances(gamma) / self.temperature)


@detectors.register("similarity")
class Similarity(Detector):
    """Trust falls as the direction of this round's γ turns away from one's own."""

    reference = PAPER + ", ablation; the rule is not printed there, the cosine is our reading"

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor) -> Tensor:
        """s_ij = max(0, cos(γ_i, γ_j)); a zero vector resembles only oneself."""
        unit = torch.nn.functional.normalize(gamma, dim=1)
        return torch.where(hood.to_self, 1, hood.dots(unit).to(gamma.dtype).clamp(min=0))


@detectors.register("history")
class History(Detector):
    """Trust falls with the distance of all γ so far, measured by one's own median neighbour.

    Honest mini-batch noise averages out over the rounds while a persistent attack adds up. Dividing by the
    median removes the length scale of the gradients, and an ordinary neighbour keeps the score 1, so that
    nobody isolates itself. γ⁰ is left out: it has not been mixed yet and differs by the data alone.
    """

    sharpness: float = Field(4.0, gt=0, description="c, how fast the score falls beyond the median")

    def begin(self, hood: Neighbourhood, gamma: Tensor) -> State:
        """The sum of all γ heard, a column each, and the number of rounds."""
        return {"sum": torch.zeros_like(gamma), "rounds": torch.zeros((), dtype=torch.int64)}

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """The sum's."""
        return hood.columns * vector

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor) -> Tensor:
        """s_ij = exp(−c · max(0, D_ij / med_i − 1)), D_ij = ‖Σ_{τ=1..t} (γ_j^τ − γ_i^τ)‖₂."""
        if state["rounds"] > 0:
            state["sum"] += gamma
        state["rounds"] += 1
        distance = hood.distances(state["sum"])
        median = hood.medians(distance, ~hood.to_self)[hood.rows]
        excess = torch.where(median > 0, distance / median - 1, 0).clamp(min=0)
        return torch.where(hood.to_self, 1, torch.exp(-self.sharpness * excess))
