"""Gradient purification: remember what came from each neighbour, and take it all back once it is cut.

``gpd-paper`` is Algorithm 1 as printed, ``gpd-text`` what the prose around it says, and ``gpd`` the rule
we stand behind. They differ in what is recorded and in what being cut means; docs/method.md says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.defenses.base import Defense, Heard, Turn, defenses
from purifl.neighbourhood import Neighbourhood
from purifl.records import add_differences, add_gradients
from purifl.registry import PAPER
from purifl.state import State


def _edge_vectors(hood: Neighbourhood, gamma: Tensor) -> Tensor:
    """A zero vector for each edge, (E, d)."""
    return gamma.new_zeros(len(hood.rows), gamma.shape[1])


@defenses.register("gpd-paper")
class GPDPaper(Defense):
    """The paper's Algorithm 1 to the letter: gradient records, masks that come and go.

        β_ij^t = β_ij^{t−1} + w_ij^t γ_j^t
        γ_i^{t+1} = g_i^{t+1} + Σ_j sgn(w_ij^t) β_ij^t − Σ_{τ≤t} γ_i^τ

    As printed, a masked neighbour keeps its small weight in the model step, its record keeps growing, and
    it all returns should its weight ever rise above the threshold again.
    """

    reference = PAPER + ", Algorithm 1"
    detector = "consistency"
    mixing = "uniform"
    needs_tracking = True

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """β_ij^{−1} = 0, and the sum of one's own γ."""
        gamma = first.gamma
        return {"beta": _edge_vectors(hood, gamma), "sent": gamma.new_zeros(len(hood.own), gamma.shape[1])}

    def kept(self, cut: Tensor) -> Tensor:
        """Every edge: the printed model step uses w_ij, masked or not."""
        return torch.ones_like(cut)

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i ← g_i + Σ_j sgn(w_ij) β_ij − Σ_τ γ_i^τ."""
        hood, gamma = turn.hood, turn.heard.gamma
        add_gradients(state["beta"], hood, turn.weights, gamma)
        state["sent"] += gamma[hood.own_cols]
        return gradient + hood.fold((~turn.cut).to(gamma.dtype), state["beta"]) - state["sent"]


@defenses.register("gpd-text")
class GPDText(GPDPaper):
    """The paper as its prose has it: once under the threshold, weight 0 and record cleared for good."""

    reference = PAPER + ", section text"
    final = True

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """Also remembers who was cut."""
        return super().begin(hood, first) | {"cut": torch.zeros_like(hood.to_self)}

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Everyone ever under the threshold; what they contributed is forgotten at that moment."""
        state["cut"] |= self.suspects(hood, trust)
        state["beta"][state["cut"]] = 0
        return state["cut"]

    def kept(self, cut: Tensor) -> Tensor:
        """The edges not cut, over which the weights are normalised again."""
        return ~cut


@defenses.register("gpd")
class GPD(Defense):
    """Exact purification: difference records, symmetric weights, final and mutual cuts.

        d_ij^t = Σ_{τ≤t} w_ij^τ (γ_j^τ − γ_i^τ)
        γ_i^{t+1} = g_i^{t+1} + Σ_{j not cut} d_ij^t

    With nobody cut this is gradient tracking. With symmetric weights d_ij = −d_ji on every edge between
    benign clients, so that once all malicious neighbours are cut Σ_B γ = Σ_B g to rounding, in whatever
    order the cuts were made. A cut is final and mutual: a neighbour that says it has cut me is cut too.
    """

    reference = PAPER + "; difference records, symmetric weights and history detection are purifl's"
    detector = "history"
    needs_tracking = True
    final = True

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """d_ij^{−1} = 0, nobody cut."""
        return {"records": _edge_vectors(hood, first.gamma), "cut": torch.zeros_like(hood.to_self)}

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Everyone ever under the threshold here, or who cut us; their records are dropped at that moment."""
        state["cut"] |= self.suspects(hood, trust) | (heard.present & (heard.trust <= 0))
        state["records"][state["cut"]] = 0
        return state["cut"]

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i ← g_i + Σ_{j not cut} d_ij."""
        add_differences(state["records"], turn.hood, turn.weights, turn.heard.gamma)
        return gradient + turn.hood.fold(torch.ones_like(turn.weights), state["records"])
