"""On and off: attack while somebody listens, behave until somebody listens again."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from purifl.attacks.base import MessageAttack, View, attacks


@attacks.register("on-off")
class OnOff(MessageAttack):
    """Each malicious client reverses the mean while a neighbour listens, and behaves once all have cut it.

        γ_m = −scale · μ  while a benign neighbour has not cut m,     μ  otherwise

    Where cuts are not final, good behaviour wins trust back, and the first neighbour to readmit m is attacked again.
    The phase follows from who has cut m now, nothing is remembered.
    """

    reference: ClassVar[str] = (
        "Sun, Han, Liu: Defense of Trust Management Vulnerabilities in Distributed Networks, "
        "IEEE Communications Magazine 2008"
    )

    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="length of the lie in benign means")

    def craft(self, view: View) -> Tensor:
        """−scale · μ or μ, by attacker."""
        if view.blind:
            return view.honest
        heard = torch.isin(view.columns, view.hood.cols[~view.cut])
        factors = torch.where(heard, -self.scale, 1.0).to(view.seen.dtype)
        return factors[:, None] * view.mean
