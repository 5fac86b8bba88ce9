"""All messages so far, measured by the median neighbour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from purifl.detection.base import Detector, detectors
from purifl.neighbourhood import Neighbourhood
from purifl.state import State

if TYPE_CHECKING:
    from purifl.defenses import Heard


@detectors.register("history")
class History(Detector):
    """Trust falls with the distance of all γ so far, measured by one's own median neighbour.

    A step on the way to ``persistence``: honest mini-batch noise averages out over the rounds while an attack adds
    up. It needs a majority of honest neighbours of about one's own size. γ⁰ is left out.
    """

    sharpness: float = Field(4.0, gt=0, description="c, how fast the score falls beyond the median")

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """The sum of all γ heard, a column each, and the number of rounds."""
        return {"sum": torch.zeros_like(first.gamma), "rounds": torch.zeros((), dtype=torch.int64)}

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """The sum's."""
        return hood.columns * vector

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor:
        """s_ij = exp(−c · max(0, D_ij / med_i − 1)), D_ij = ‖Σ_{τ=1..t} (γ_j^τ − γ_i^τ)‖₂."""
        if state["rounds"] > 0:
            state["sum"] += gamma
        state["rounds"] += 1
        distance = hood.distances(state["sum"])
        median = hood.medians(distance, hood.to_others)[hood.rows]
        excess = torch.where(median > 0, distance / median - 1, 0).clamp(min=0)
        return torch.where(hood.to_self, 1, torch.exp(-self.sharpness * excess))
