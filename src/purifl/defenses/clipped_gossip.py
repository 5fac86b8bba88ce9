"""Self-centred clipping: no neighbour may pull further than a radius."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import Defense, Turn, defenses
from purifl.state import State


@defenses.register("clipped-gossip")
class ClippedGossip(Defense):
    """Average by the mixing weights, but clip what each neighbour pulls to a radius (SCClip).

        x_i ← x_i + Σ_j w_ij clip(x_j − x_i, τ_i),    clip(z, τ) = z · min(1, τ/‖z‖)

    The factors are those of γ and are used for the half-step models too; the weight they take away stays with
    oneself. With one radius for all, flows between benign clients cancel and gradient tracking is conserved. The
    second-largest distance, used if no radius is given, clips one far neighbour and no more.
    """

    reference = "He, Karimireddy, Jaggi: Byzantine-robust decentralized learning via ClippedGossip, arXiv 2202.01545"

    radius: float | None = Field(
        None, gt=0, description="τ; if not given, each client's second-largest distance to a neighbour's γ"
    )

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """w_ij · min(1, τ_i/‖γ_j − γ_i‖), and the rest for oneself."""
        hood, distance = turn.hood, rules.distances(turn.hood, turn.heard.gamma)
        reach = self._reach(turn, distance)[hood.rows]
        factor = torch.where(distance <= reach, 1, reach / distance).to(turn.weights.dtype)
        weights = torch.where(turn.kept & hood.to_others, turn.weights * factor, 0)
        weights[hood.own] = 1 - hood.sums(weights)
        return weights

    def _reach(self, turn: Turn, distance: Tensor) -> Tensor:
        """(R,) τ_i; with a single neighbour its distance."""
        if self.radius is not None:
            return distance.new_full((len(turn.hood.own),), self.radius)
        largest = [distance[edges].sort(descending=True).values[:2] for edges in rules.kept_neighbours(turn)]
        return torch.stack([two[-1] if len(two) else distance.new_zeros(()) for two in largest])
