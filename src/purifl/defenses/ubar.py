"""UBAR: near models first, then those that do as well on one's own data."""

from __future__ import annotations

import math
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import Defense, Setting, Turn, defenses
from purifl.state import State


@defenses.register("ubar")
class UBAR(Defense):
    """Of the nearest neighbours, average those whose model does no worse than one's own on own data.

        C_i = the max(1, ⌊ρ · deg_i⌋) neighbours nearest by half-step model y_j = θ_j − λ γ_j
        S_i = {j ∈ C_i : ℓ_i(y_j) ≤ ℓ_i(y_i)},    the one of lowest loss where there is none
        x_i ← a x_i + (1 − a) mean_{j ∈ S_i} x_j

    with ℓ_i the loss on one own mini-batch. Losses speak of models alone; S_i is used for γ too. A loss that is
    not a number counts as infinite. Neighbours that were cut are not replaced: deg_i is that of the graph.
    """

    reference = "Guo et al.: Byzantine-resilient decentralized stochastic gradient descent, IEEE TCSVT 2022"

    share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="ρ, share of the neighbours looked at; if not given, the smallest benign share of any client's",
    )
    own_share: float = Field(0.5, ge=0, le=1, description="a, the share of one's own vector in the result")

    def settle(self, setting: Setting) -> Self:
        """With ρ known."""
        hood = setting.hood
        degree = hood.size - 1
        malicious = torch.bincount(hood.rows[setting.malicious], minlength=len(degree))
        benign = torch.where(degree > 0, 1 - malicious / degree, 1)
        share = float(benign.min()) if self.share is None else self.share
        return super().settle(setting).model_copy(update={"share": share})

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """Own share a, and the rest in equal parts for S_i."""
        distance = rules.distances(turn.hood, turn.models)
        losses = turn.losses(turn.models).nan_to_num(nan=torch.inf, posinf=torch.inf)
        rows = zip(
            rules.kept_neighbours(turn), (turn.hood.size - 1).tolist(), losses[turn.hood.own].tolist(), strict=True
        )
        accepted = []
        for edges, degree, own in rows:
            near = edges[rules.lowest(distance[edges], self._looked_at(degree))]
            better = near[losses[near] <= own]
            accepted.append(better if len(better) else near[rules.lowest(losses[near], 1)])
        return rules.own_and_mean(turn, accepted, self.own_share)

    def _looked_at(self, degree: int) -> int:
        """max(1, ⌊ρ · deg⌋), with ρ = 7/9 of 9 neighbours 7 whatever the rounding."""
        share = 1.0 if self.share is None else self.share
        return max(1, math.floor(share * degree + 1e-6))
