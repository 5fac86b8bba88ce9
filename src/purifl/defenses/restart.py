"""Detect, exclude, start again: the simplest way to be rid of what a poisoner did."""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.defenses.base import Defense, Heard, Turn, defenses
from purifl.neighbourhood import Neighbourhood
from purifl.state import State


@defenses.register("restart")
class Restart(Defense):
    """Start again without whoever was cut: θ_i ← θ_i⁰, γ_i ← g_i at every newly made cut.

    As soon as one benign client cuts a neighbour, all of them return to their initial models and track anew,
    so that nothing of the past is left and Σγ = Σg holds (with symmetric weights). Each keeps its own cuts,
    which are final, and the trust it has learnt. All progress is lost each time, also at a false alarm.
    That the call to restart reaches every benign client at once, and no malicious one can make it, is taken
    for granted.
    """

    reference = "the baseline that Cao et al., FedRecover, S&P 2023, call training from scratch"
    needs = "that every benign client learns at once when one of them cuts somebody"
    detector = "history"
    final = True

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """θ_i⁰; nobody cut, no restart due."""
        return {
            "initial": first.theta[hood.own_cols],
            "cut": torch.zeros_like(hood.to_self),
            "again": hood.to_self.new_zeros(()),
        }

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """θ_i⁰."""
        return len(hood.own) * vector

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Everyone ever under the threshold; a new one calls for a restart."""
        found = self.suspects(hood, trust) & ~state["cut"]
        state["again"].copy_(found.any())
        state["cut"] |= found
        return state["cut"]

    def mix(self, state: State, turn: Turn) -> Tensor:
        """θ_i⁰ at a restart, else averaging."""
        return state["initial"] if state["again"] else super().mix(state, turn)

    def track(self, state: State, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """g_i at a restart, else gradient tracking."""
        return gradient.clone() if state["again"] else super().track(state, turn, gradient, previous)
