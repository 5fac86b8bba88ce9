"""The min-max and min-sum attacks: as far as the honest messages are from each other, and no further."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from purifl.attacks.base import MessageAttack, View, attacks

_START, _STEP, _TOLERANCE = 10.0, 5.0, 1e-5


@attacks.register("ndss")
class Ndss(MessageAttack):
    """Min-max and min-sum: the largest deviation no further out than honest messages are from each other.

        γ_m = μ + η p,     p = −σ (std), −sign(μ) (sign) or −μ/‖μ‖ (unit)

    with the largest η that a search finds below 20 such that

        min-max:    max_i ‖γ_m − γ_i‖ ≤ max_{i,k} ‖γ_i − γ_k‖
        min-sum:    Σ_i ‖γ_m − γ_i‖² ≤ max_i Σ_k ‖γ_i − γ_k‖²

    over the benign messages. The search starts at η = 10 and goes up on success and down on failure, by 5 and then
    half as far each time, until it is within 1e-5 of the last success.
    """

    reference: ClassVar[str] = "Shejwalkar, Houmansadr: Manipulating the Byzantine, NDSS 2021"

    objective: Literal["min-max", "min-sum"] = Field("min-max", description="which distance bounds the deviation")
    direction: Literal["std", "sign", "unit"] = Field(
        "std", description="of the deviation: against the standard deviation, the signs or the mean itself"
    )

    def craft(self, view: View) -> Tensor:
        """μ + η p from everybody."""
        if view.blind:
            return view.honest
        direction = self._direction(view)
        return (view.mean + self._largest(view, direction) * direction).expand_as(view.honest)

    def _direction(self, view: View) -> Tensor:
        if self.direction == "std":
            return -view.std
        return -(view.mean.sign() if self.direction == "sign" else normalize(view.mean, dim=0))

    def _largest(self, view: View, direction: Tensor) -> float:
        """η. ‖μ + ηp − γ_i‖² is a quadratic in η, so that the search needs the vectors only once."""
        gaps = view.mean - view.seen
        constant, linear = gaps.square().sum(1).double(), 2 * (gaps @ direction).double()
        square = direction.square().sum().double()
        between = torch.cdist(view.seen, view.seen, compute_mode="donot_use_mm_for_euclid_dist").double().square()
        minmax = self.objective == "min-max"
        bound = between.max() if minmax else between.sum(1).max()

        def allowed(eta: float) -> bool:
            distances = constant + eta * linear + eta**2 * square
            return bool((distances.max() if minmax else distances.sum()) <= bound)

        eta, step, found = _START, _STEP, 0.0
        while abs(eta - found) >= _TOLERANCE:
            if allowed(eta):
                found = eta
                eta += step
            else:
                eta -= step
            step /= 2
        return found
