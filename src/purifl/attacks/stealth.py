"""An attacker that knows the detector and stays just above its threshold."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from purifl.attacks.base import MessageAttack, View, attacks

_PROBES = 20
_MARGIN = 1.05
"""Trust is kept this factor above the threshold, more than rounding could cost."""


@attacks.register("stealth")
class Stealth(MessageAttack):
    """Knows the detector: deviates as far as it can without being cut in the next round.

        γ_m = μ − η μ/‖μ‖,     0 ≤ η ≤ limit · ‖μ‖

    so that the message first shrinks and beyond ‖μ‖ is reversed. η is the largest, by 20 probes, at which every
    benign client that now listens to an attacker would still trust it 5 % above the threshold, had it and the other
    attackers sent γ_m (mixed with what is honest, where the malicious level is under 1). If even μ would be cut,
    μ is sent.

    Where nothing restrains it, a deviation of n/f lengths brings the benign mean to a halt: 5 at the default
    malicious ratio, and from twice that on it overshoots.
    """

    reference: ClassVar[str] = "purifl's own: an adaptive attack on trust by consistency"

    omniscient = True

    limit: float = Field(5.0, gt=0, allow_inf_nan=False, description="the largest η, in lengths of the benign mean")

    def craft(self, view: View) -> Tensor:
        """The largest deviation that passes, by bisection."""
        if view.blind:
            return view.honest
        low, high = 0.0, self.limit
        if not self._passes(view, low):
            return self._message(view, low)
        if self._passes(view, high):
            return self._message(view, high)
        for _ in range(_PROBES - 2):
            middle = (low + high) / 2
            low, high = (middle, high) if self._passes(view, middle) else (low, middle)
        return self._message(view, low)

    def _message(self, view: View, lengths: float) -> Tensor:
        """μ − η μ/‖μ‖ with η in lengths of μ, from everybody."""
        return ((1 - lengths) * view.mean).expand_as(view.honest)

    def _passes(self, view: View, lengths: float) -> bool:
        """Whether nobody who listens now would cut an attacker for it."""
        level = self.malicious_level
        sent = (1 - level) * view.honest + level * self._message(view, lengths)
        listening = torch.isin(view.hood.cols, view.columns) & ~view.cut & (view.trust > view.threshold)
        return bool((view.foresee(sent) > _MARGIN * view.threshold)[listening].all())
