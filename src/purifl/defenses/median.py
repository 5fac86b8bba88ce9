"""Coordinate-wise median."""

from __future__ import annotations

from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import Defense, Turn, defenses
from purifl.state import State


@defenses.register("median")
class Median(Defense):
    """Per coordinate, take the median of everything heard.

        x_i ← med {x_j : j ∈ N_i},    of an even number the mean of the two middle values

    for γ and for the half-step models.
    """

    reference = "Yin, Chen, Kannan, Bartlett: Byzantine-robust distributed learning, ICML 2018"

    def aggregate(self, state: State, turn: Turn, x: Tensor) -> Tensor:
        """The median of what each row keeps."""
        edges = rules.kept_edges(turn)
        return rules.reduce_rows(turn, edges, [0] * len(edges), x, lambda vectors, _: rules.median(vectors))
