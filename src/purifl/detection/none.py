"""No detection."""

from __future__ import annotations

from torch import Tensor

from purifl.detection.base import Detector, detectors
from purifl.neighbourhood import Neighbourhood
from purifl.state import State


@detectors.register("none")
class NoDetection(Detector):
    """Nobody is ever suspected."""

    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor | None:
        """No score."""
        return None
