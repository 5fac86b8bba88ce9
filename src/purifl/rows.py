"""The part of a round that belongs to the clients computed here: what they make of what they hear.

A simulation has all benign clients as rows and a peer on a network has one, itself; both take their rounds here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from purifl.defenses import Defense, Heard, Turn
from purifl.detection import Detector, lower_trust
from purifl.neighbourhood import Neighbourhood, surely_none
from purifl.phases import phase
from purifl.state import State, prefixed
from purifl.topology import Mixing, mixing_weights


class Rows:
    """A defence and a detector at work for the rows of a neighbourhood, with what they remember.

    Args:
        hood: The edges.
        defense: What the rows do with what they hear.
        detector: How they find out inconsistent neighbours.
        mixing: How trust becomes weights.
        step: λ.
    """

    def __init__(
        self,
        hood: Neighbourhood,
        defense: Defense,
        detector: Detector,
        mixing: Mixing,
        step: float,
    ) -> None:
        self.hood, self.defense, self.detector = hood, defense, detector
        self.mixing, self.step = mixing, step
        self.defense_state: State = {}
        self.detector_state: State = {}

    def begin(self, first: Heard) -> None:
        """Remember nothing yet; ``first`` holds θ⁰ and γ⁰."""
        self.defense_state = self.defense.begin(self.hood, first)
        self.detector_state = self.detector.begin(self.hood, first)

    @phase("mix")
    def listen(self, round_: int, heard: Heard, trust: Tensor, losses: Callable[[Tensor], Tensor]) -> Turn:
        """Who is cut, and with what weights the others are mixed; ``losses`` as in :class:`~purifl.defenses.Turn`."""
        cut = self.defense.cut(self.defense_state, self.hood, trust, heard)
        kept = self.defense.kept(cut) & heard.present
        weights = mixing_weights(self.mixing, self.hood, trust, heard.trust, kept)
        turn = Turn(round_, self.hood, heard, cut, kept, weights, self.step, losses)
        return replace(turn, weights=self.defense.weigh(self.defense_state, turn))

    def mix(self, turn: Turn) -> Tensor:
        """θ_i^{t+1}, (R, d). A client whose own model is no longer finite stays lost; neighbours go on without it."""
        theta = self.defense.mix(self.defense_state, turn)
        return torch.where(turn.heard.present[self.hood.own, None], theta, torch.nan)

    def track(self, turn: Turn, gradient: Tensor, previous: Tensor) -> Tensor:
        """γ_i^{t+1}, (R, d)."""
        return self.defense.track(self.defense_state, turn, gradient, previous)

    @phase("detect")
    def detect(self, heard: Heard, trust: Tensor, cut: Tensor, own: Tensor, missed: Tensor | None = None) -> Tensor:
        """w_ij^{t+1}; a final cut is said at once, as trust 0. ``own`` (R, d) is g_i^t, of the round that was heard.

        A neighbour that was ``missed`` (E,) sent nothing that could be held against it. It keeps its trust, and for a
        single row it counts as having sent the row's own γ, which is evidence of nothing.
        """
        gamma = heard.gamma
        if missed is not None and missed.any():
            gamma = gamma.index_copy(0, self.hood.cols[missed], gamma[self.hood.listeners[missed]])
        scores = self.detector.scores(self.detector_state, self.hood, gamma, ~cut, own)
        if scores is None:
            return trust
        scores = usable(scores, heard.present)
        lowered = self.lowered(trust, scores, cut, self.detector.marked(self.detector_state), missed)
        opposed = self.detector.opposed(self.detector_state)
        return self.defense.judge(self.defense_state, self.hood, scores, opposed, trust, lowered, missed=missed)

    def lowered(
        self, trust: Tensor, scores: Tensor, cut: Tensor, marked: Tensor | None, missed: Tensor | None = None
    ) -> Tensor:
        """Trust after the scores; where cuts last, those cut are out of it and new suspects fall to 0.

        So do those ``marked`` (E,) whose score alone is at the threshold. Who was missed keeps its trust, and so does
        who has cut this row without having been cut by it.
        """
        if not self.defense.final:
            held = torch.zeros_like(cut) if missed is None else missed & ~cut
            return self._shared(trust, scores, held, ~held)
        gone = self.defense.suspects(self.hood, trust)
        held = (cut if missed is None else cut | missed) & ~gone
        out, patience = held | gone, self.defense.patience(self.defense_state, self.hood, cut)
        counted = self.defense.scored(self.defense_state, self.hood, scores, ~out)
        if surely_none(out):
            new = lower_trust(self.hood, trust, counted, patience=patience)
        else:
            new = self._shared(trust, counted, held, ~out, patience)
        fallen = self.defense.suspects(self.hood, new)
        if marked is not None:
            fallen |= marked & (scores <= self.defense.threshold) & ~held
        return new.masked_fill(fallen, 0)

    def _shared(
        self, trust: Tensor, scores: Tensor, held: Tensor, judged: Tensor, patience: Tensor | None = None
    ) -> Tensor:
        """Algorithm 2 over the edges ``judged``, among which goes what those ``held`` do not keep."""
        rest = (1 - self.hood.sums(held * trust))[self.hood.rows]
        return torch.where(held, trust, rest * lower_trust(self.hood, trust, scores, judged, patience))

    def state(self) -> State:
        """What is remembered, under ``defense.`` and ``detector.``."""
        return prefixed("defense", self.defense_state) | prefixed("detector", self.detector_state)


def usable(scores: Tensor, present: Tensor) -> Tensor:
    """(E,) the scores, 0 for who sent nothing that could be scored."""
    return scores.nan_to_num(0, 0, 0) * present


def average(hood: Neighbourhood, weights: Tensor, models: Tensor) -> Tensor:
    """Σ_j w_ij x_j over the models (N, d) that are finite, the weights (E,) of the others shared out: (R, d)."""
    finite = are_finite(models)
    weights = hood.normalise(torch.where(finite[hood.cols], weights, 0))
    return hood.combine(weights, torch.where(finite[:, None], models, 0))


def are_finite(x: Tensor) -> Tensor:
    """(n,) whether all numbers of a row of (n, d) are finite, without a table of them."""
    return x.amin(1).isfinite() & x.amax(1).isfinite()
