"""Multi-Krum: average the most central messages."""

from __future__ import annotations

from purifl.defenses.base import defenses
from purifl.defenses.krum import Krum


@defenses.register("multi-krum")
class MultiKrum(Krum):
    """Average the M = m − f − 2 messages with the lowest Krum scores.

        score_j = Σ ‖γ_j − γ_k‖² over the m − f − 2 nearest k ≠ j,    x_i ← (1/M) Σ of the M lowest

    Chosen by γ and used for the half-step models too; with fewer neighbours it goes on as Krum does.
    """

    def count(self, near: int) -> int:
        """M."""
        return near
