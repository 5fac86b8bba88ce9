"""BALANCE, which the paper calls Byz: trust those near oneself, and ever nearer."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field
from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import USUAL_ROUNDS, Defense, Turn, defenses
from purifl.state import State


@defenses.register("byz")
class Byz(Defense):
    """Accept the neighbours within a shrinking distance, relative to one's own length (BALANCE).

        S_i = {j ≠ i : ‖x_i − x_j‖ ≤ radius · exp(−kappa · t/T) · ‖x_i‖}
        x_i ← a x_i + (1 − a) mean_{j ∈ S_i} x_j,    x_i itself where S_i is empty

    Accepted by x = γ, or by the half-step models, and used for both. On γ the right side vanishes as γ → 0 while
    mini-batch noise does not, so that late in training everyone may be rejected.
    """

    reference = "Fang et al.: Byzantine-robust decentralized federated learning, CCS 2024 (BALANCE)"
    detector = "consistency"
    mixing = "uniform"

    radius: float = Field(0.3, gt=0, description="accepted distance at the start, relative to one's own length")
    kappa: float = Field(1.0, ge=0, description="how fast the radius shrinks")
    own_share: float = Field(0.5, ge=0, le=1, description="a, the share of one's own vector in the result")
    on: Literal["gamma", "model"] = Field("gamma", description="what distances are measured on")
    horizon: int | None = Field(
        None, ge=1, description="T, rounds over which the radius shrinks to exp(−kappa); those of the run, else 50"
    )

    def for_rounds(self, rounds: int) -> Self:
        """T is the length of the run unless it was given."""
        return self.model_copy(update={"horizon": self.horizon or rounds})

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """Own share a, and the rest in equal parts for the accepted."""
        hood, x = turn.hood, turn.heard.gamma if self.on == "gamma" else turn.models
        reach = (
            self.radius
            * math.exp(-self.kappa * turn.round / (self.horizon or USUAL_ROUNDS))
            * rules.norms(x[hood.own_cols])
        )
        near = rules.distances(hood, x) <= reach[hood.rows]
        return rules.own_and_mean(turn, [edges[near[edges]] for edges in rules.kept_neighbours(turn)], self.own_share)
