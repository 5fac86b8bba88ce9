"""Noise instead of gradients."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from purifl.attacks.base import MessageAttack, View, attacks


@attacks.register("gaussian")
class Gaussian(MessageAttack):
    """Each malicious client sends a random direction, as long as a multiple of the benign mean.

    γ_m = scale · ‖μ‖ · ξ / ‖ξ‖,     ξ ~ N(0, I), drawn anew by each attacker in each round

    Alone the noise is averaged out, until it is so long that undefended tracking amplifies it from round to round:
    from scale² > (n² − b²) / f for b benign of n clients on a complete graph, about 4² for 2 of 10. The default is
    well beyond.
    """

    reference: ClassVar[str] = (
        "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries, NeurIPS 2017"
    )

    scale: float = Field(10.0, gt=0, allow_inf_nan=False, description="length of the message in benign means")

    def craft(self, view: View) -> Tensor:
        """A draw for each attacker."""
        if view.blind:
            return view.honest
        draw = torch.randn(view.honest.shape, generator=view.rng, dtype=view.seen.dtype)
        message: Tensor = self.scale * view.mean.norm() * normalize(draw, dim=1).to(view.seen.device)
        return message
