"""Bulyan: Krum for the choice, then a trimmed average coordinate by coordinate."""

from __future__ import annotations

from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import Turn, defenses
from purifl.defenses.krum import Krum
from purifl.state import State


@defenses.register("bulyan")
class Bulyan(Krum):
    """Choose m − 2f messages by repeated Krum, then average near the median of each coordinate.

        S_i = m − 2f messages, Krum repeated without replacement on γ
        x_i ← per coordinate the mean of the |S_i| − 2f values of S_i nearest their median

    for γ and for the half-step models of the same S_i. Each neighbour that is no longer heard lowers f by one; at
    f = 0 it is the average.
    """

    reference = "El Mhamdi, Guerraoui, Rouault: The hidden vulnerability of distributed learning, ICML 2018"
    needs = "every client hears m ≥ 4f + 3 messages, its own included"
    smallest = (4, 3)

    def choose(self, squared: Tensor, f: int) -> Tensor:
        """S_i."""
        return rules.bulyan_choice(squared, f)

    def aggregate(self, state: State, turn: Turn, x: Tensor) -> Tensor:
        """The mean around the median of S_i, which are the edges with a weight."""
        edges = rules.weighted_edges(turn)
        counts = [len(e) - 2 * f for e, f in zip(edges, self.remaining(turn), strict=True)]
        return rules.reduce_rows(turn, edges, counts, x, rules.mean_around_median)
