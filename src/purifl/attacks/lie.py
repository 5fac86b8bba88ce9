"""A little is enough: a shift within the spread of the honest messages."""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from purifl.attacks.base import MessageAttack, View, attacks
from purifl.errors import ConfigError


@attacks.register("lie")
class Lie(MessageAttack):
    """A little is enough: shifts the mean by a few standard deviations, within the honest spread.

        γ_m = μ − z σ

    with μ and σ the coordinate-wise mean and standard deviation (by 1/k, as in the authors' code) of the benign
    messages. ``z: max`` takes the paper's

        z_max = Φ⁻¹((n − f − s) / (n − f)),     s = ⌊n/2 + 1⌋ − f,

    the largest shift at which s honest clients still lie further out than the attackers, so that a majority
    seems to stand behind them. It is 0 for n = 10, f = 2, hence 1.3 is the default here.
    """

    reference: ClassVar[str] = "Baruch, Baruch, Goldberg: A Little Is Enough, NeurIPS 2019"

    z: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["max"] = Field(
        1.3, description="the shift in standard deviations, or max for the paper's z_max"
    )

    def place(self, clients: int, rng: np.random.Generator) -> list[int]:
        """The malicious clients, after checking that ``z: max`` gives them an attack."""
        placed = super().place(clients, rng)
        if placed:
            self._shift(clients, len(placed))
        return placed

    def craft(self, view: View) -> Tensor:
        """μ − z σ from everybody."""
        if view.blind:
            return view.honest
        return (view.mean - self._shift(view.clients, view.malicious) * view.std).expand_as(view.honest)

    def _shift(self, n: int, f: int) -> float:
        """z; a ConfigError where z_max is none."""
        if self.z != "max":
            return self.z
        supporters = n // 2 + 1 - f
        if supporters <= 0:
            raise ConfigError("attack.z", "max", f"it needs a benign majority, not n={n}, f={f}; give a number")
        share = (n - f - supporters) / (n - f)
        z = NormalDist().inv_cdf(share) if share > 0 else -float("inf")
        if z <= 0:
            raise ConfigError("attack.z", "max", f"it gives {z:.2g} for n={n}, f={f}, so no attack; give a number")
        return z
