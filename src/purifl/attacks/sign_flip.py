"""Sign flipping: gradient ascent on one's own data."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from purifl.attacks.base import MessageAttack, View, attacks


@attacks.register("sign-flip")
class SignFlip(MessageAttack):
    """Each malicious client sends the opposite of its own honest gradient.

        γ_m = −scale · g_m

    Gradient tracking integrates what it hears, so the true length (scale 1) is enough: undefended, the tracked
    gradient tends to that of the attackers, which leads uphill.
    """

    reference: ClassVar[str] = (
        "Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods, AAAI 2019"
    )

    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="length of the message in honest gradients")

    def craft(self, view: View) -> Tensor:
        """−scale · g_m, from each its own."""
        return -self.scale * view.honest
