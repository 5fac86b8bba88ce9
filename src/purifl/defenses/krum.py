"""Krum: follow the most central message."""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import Turn, defenses
from purifl.state import State


@defenses.register("krum")
class Krum(rules.AssumesMalicious):
    """Take over the single message whose nearest others are nearest.

        score_j = Σ ‖γ_j − γ_k‖² over the m − f − 2 nearest k ≠ j,    x_i ← x_{argmin_j score_j}

    Chosen by γ, among oneself and the neighbours, and used for the half-step models too. Each neighbour that is no
    longer heard lowers f by one; a client left with fewer than three messages averages them.
    """

    reference = "Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries, NeurIPS 2017"
    needs = "every client hears m ≥ 2f + 3 messages, its own included"
    smallest = (2, 3)

    def weigh(self, state: State, turn: Turn) -> Tensor:
        """Equal weights on the chosen edges."""
        rows = zip(rules.kept_edges(turn), rules.pairwise(turn, turn.heard.gamma), self.remaining(turn), strict=True)
        return rules.even_weights(turn, [edges[self.choose(squared, f)] for edges, squared, f in rows])

    def choose(self, squared: Tensor, f: int) -> Tensor:
        """Positions chosen by the squared distances (m, m)."""
        near = len(squared) - f - 2
        if near < 1:
            return torch.arange(len(squared))
        return rules.krum_order(squared, near)[: self.count(near)]

    def count(self, near: int) -> int:
        """How many are chosen, given how many neighbours a score looks at."""
        return 1
