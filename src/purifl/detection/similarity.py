"""The paper's ablation."""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.detection.base import Detector, detectors
from purifl.neighbourhood import Neighbourhood
from purifl.registry import PAPER
from purifl.state import State


@detectors.register("similarity")
class Similarity(Detector):
    """Trust falls as the direction of this round's γ turns away from one's own."""

    reference = PAPER + ", ablation; the rule is not printed there, the cosine is our reading"

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor:
        """s_ij = max(0, cos(γ_i, γ_j)); a zero vector resembles only oneself."""
        unit = torch.nn.functional.normalize(gamma, dim=1)
        return torch.where(hood.to_self, 1, hood.dots(unit).to(gamma.dtype).clamp(min=0))
