"""What a defence is: who is cut, how models are mixed, how gradients are tracked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from purifl.neighbourhood import Neighbourhood
from purifl.registry import Component, Registry
from purifl.state import State
from purifl.topology import Mixing


@dataclass(frozen=True)
class Heard:
    """One exchange, as the rows of a neighbourhood heard it.

    Attributes:
        theta: (N, d) the models θ_j.
        gamma: (N, d) the tracking variables γ_j.
        trust: (E,) the trust that column j says it puts in row i; 0 says "I have cut you".
        present: (E,) whether a usable (finite) message came; θ_j and γ_j are 0 where none did.
    """

    theta: Tensor
    gamma: Tensor
    trust: Tensor
    present: Tensor


@dataclass(frozen=True)
class Turn:
    """A round, as seen by the rows that take it.

    Attributes:
        hood: The edges.
        heard: What came over them.
        cut: (E,) neighbours that are not listened to.
        weights: (E,) w_ij.
    """

    hood: Neighbourhood
    heard: Heard
    cut: Tensor
    weights: Tensor


class Defense(Component):
    """Averaging by the mixing weights, the base of every defence.

    A neighbour is *cut* when its trust falls to ``threshold`` / m_i, m_i = |N_i|: sgn(w_ij) = 0 in the paper.
    """

    detector: ClassVar[str] = "none"
    mixing: ClassVar[Mixing] = "metropolis"
    knows_malicious: ClassVar[bool] = False
    needs_tracking: ClassVar[bool] = False
    final: ClassVar[bool] = False

    threshold: float = Field(
        0.1, gt=0, lt=1, description="a neighbour is cut when its trust falls to this share of 1/|N_i|"
    )

    def begin(self, hood: Neighbourhood, gamma: Tensor) -> State:
        """What the defence remembers between rounds, all tensors. ``gamma`` is (N, d), γ⁰."""
        return {}

    def suspects(self, hood: Neighbourhood, trust: Tensor) -> Tensor:
        """(E,) sgn(w_ij) = 0: neighbours whose trust has fallen to the threshold."""
        return (trust <= (self.threshold / hood.size)[hood.rows]) & ~hood.to_self

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """(E,) whom row i does not listen to in this round."""
        return self.suspects(hood, trust)

    def kept(self, cut: Tensor) -> Tensor:
        """(E,) the edges whose mixing weight is not taken away."""
        return ~cut

    def mix(self, turn: Turn, step: float) -> Tensor:
        """θ_i ← Σ_j w_ij (θ_j − λ γ_j), (R, d)."""
        return turn.hood.combine(turn.weights, turn.heard.theta - step * turn.heard.gamma)

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i ← Σ_j w_ij γ_j + g_i^{t+1} − g_i^t, (R, d): gradient tracking (DSGT)."""
        return turn.hood.combine(turn.weights, turn.heard.gamma) + gradient - previous


defenses: Registry[Defense] = Registry("defense", "purifl.defenses")
