"""The paper's detector."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from purifl.detection.base import Detector, detectors
from purifl.neighbourhood import Neighbourhood
from purifl.registry import PAPER
from purifl.state import State


@detectors.register("consistency")
class Consistency(Detector):
    """The paper's: trust falls with the distance of this round's γ to one's own."""

    reference = PAPER + ", Algorithm 2"

    temperature: float = Field(1.0, gt=0, description="unit of the distance; 1 is the paper's rule")

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor:
        """s_ij = exp(−‖γ_j − γ_i‖₂ / temperature)."""
        return torch.exp(-hood.distances(gamma) / self.temperature)
