"""Equivocation: the truth to some, the opposite to others."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from purifl.attacks.base import MessageAttack, View, attacks


@attacks.register("equivocate")
class Equivocate(MessageAttack):
    """Each malicious client tells every other neighbour the opposite of the truth, and the rest the truth.

        γ_{m→i} = −scale · μ for the 1st, 3rd, 5th, ... benign neighbour of m,     μ for the 2nd, 4th, ...

    so that neighbours who compared notes would not agree about what m said. At the default scale, 3, what it says is
    −μ on average; at 1 truth and lie would cancel.
    """

    reference: ClassVar[str] = "Lamport et al.: The Byzantine Generals Problem, ACM TOPLAS 1982"
    private = True

    scale: float = Field(3.0, gt=0, allow_inf_nan=False, description="length of the lie in benign means")

    def craft(self, view: View) -> Tensor:
        """Truth and lie in turn."""
        if view.blind:
            return view.honest
        senders = view.hood.owner[view.columns]
        earlier = torch.tril(senders[:, None] == senders, diagonal=-1).sum(1)
        factors = torch.where(earlier % 2 == 0, -self.scale, 1.0).to(view.seen.dtype)
        return factors[:, None] * view.mean
