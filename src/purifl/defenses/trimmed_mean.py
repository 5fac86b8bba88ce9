"""Coordinate-wise trimmed mean."""

from __future__ import annotations

from torch import Tensor

from purifl.defenses import rules
from purifl.defenses.base import Turn, defenses
from purifl.state import State


@defenses.register("trimmed-mean")
class TrimmedMean(rules.AssumesMalicious):
    """Per coordinate, leave out the k largest and the k smallest values and average the rest.

        x_i ← (1 / (m − 2k)) Σ_{l = k+1 .. m−k} x_(l),    x_(1) ≤ … ≤ x_(m) in each coordinate,   k = f

    for γ and for the half-step models. Where so many neighbours were cut that m ≤ 2k, k = ⌊(m − 1)/2⌋: the median.
    """

    reference = "Yin, Chen, Kannan, Bartlett: Byzantine-robust distributed learning, ICML 2018"
    needs = "every client hears m > 2f messages, its own included"
    smallest = (2, 1)

    def aggregate(self, state: State, turn: Turn, x: Tensor) -> Tensor:
        """The trimmed mean of what each row keeps."""
        edges = rules.kept_edges(turn)
        trim = [min(self.assumed or 0, (len(e) - 1) // 2) for e in edges]
        return rules.reduce_rows(turn, edges, trim, x, rules.trimmed_mean)
