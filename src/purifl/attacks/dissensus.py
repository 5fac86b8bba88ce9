"""Dissensus: keep the benign clients from agreeing."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from purifl.attacks.base import MessageAttack, View, attacks


@attacks.register("dissensus")
class Dissensus(MessageAttack):
    """Tells each neighbour what pushes it away from its benign neighbours, so that they never agree.

        γ_{m→i} = γ_i − ε Σ_{j benign} w_ij (γ_j − γ_i) / Σ_{j malicious} w_ij

    with w_ij the trust of victim i, over the neighbours it has not cut. With ε = 1 the malicious neighbours together
    take back just what the benign ones do to bring i closer; beyond it they drive i away. A victim that gives no
    malicious neighbour any weight is sent its own γ_i. With partial knowledge the sum is over the benign clients j
    that have a malicious neighbour themselves.
    """

    reference: ClassVar[str] = (
        "He, Karimireddy, Jaggi: Byzantine-Robust Decentralized Learning via ClippedGossip, arXiv 2202.01545"
    )
    private = True
    omniscient = True

    strength: float = Field(1.5, gt=0, allow_inf_nan=False, description="ε, how much of the benign pull is taken back")

    def craft(self, view: View) -> Tensor:
        """A message for each victim, the same from all its malicious neighbours."""
        hood, victims = view.hood, view.hood.rows[view.edges]
        weights = torch.where(view.cut, 0, view.trust)
        ours = torch.isin(hood.cols, view.columns)
        known = ~ours if self.knowledge == "full" else torch.isin(hood.cols, hood.own_cols[victims])
        gamma = torch.where(view.gamma.isfinite().all(1, keepdim=True), view.gamma, 0)
        own, benign = gamma[hood.own_cols], torch.where(known, weights, 0)
        pull = hood.combine(benign, gamma) - hood.sums(benign)[:, None] * own
        malicious = hood.sums(torch.where(ours, weights, 0))[:, None]
        push = torch.where(malicious > 0, pull / malicious, 0)
        return (own - self.strength * push)[victims]
