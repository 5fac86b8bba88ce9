"""Detectors: who among my neighbours is inconsistent, expressed as trust that falls round by round.

Every detector gives each neighbour a score s_ij ≥ 0, and Algorithm 2 of the paper turns scores to trust,

    s'_ij = s_ij / Σ_k s_ik,     w_ij ← (w_ij + s'_ij) / Σ_k (w_ik + s'_ik),

an average with a half-life of one round. They differ only in what evidence the score is based on. docs/method.md
derives the one that ``gpd`` uses, :mod:`~purifl.detection.persistence`. A defence with less *patience*, n_ij < 1, makes
it shorter:

    w_ij ← (n_ij w_ij + s'_ij) / (n_ij + 1),     normalised likewise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from purifl.neighbourhood import Neighbourhood
from purifl.registry import Component, Registry
from purifl.state import State

if TYPE_CHECKING:
    from purifl.defenses import Heard


def lower_trust(
    hood: Neighbourhood, trust: Tensor, scores: Tensor, kept: Tensor | None = None, patience: Tensor | None = None
) -> Tensor:
    """Algorithm 2: w_ij ← (w_ij + s'_ij) / Σ_k (w_ik + s'_ik), over the edges ``kept``, if not all; 0 elsewhere.

    With ``patience`` (E,), n_ij, it is (n_ij w_ij + s'_ij) / (n_ij + 1) in place of each w_ij + s'_ij. A row without
    any score or trust, as in the end that of a client whose model is no longer finite, is left without any.
    """
    shares = hood.normalise(scores if kept is None else torch.where(kept, scores, 0)).nan_to_num(0)
    new = trust + shares if patience is None else (patience * trust + shares) / (patience + 1)
    return hood.normalise(new if kept is None else torch.where(kept, new, 0)).nan_to_num(0)


class Detector(Component):
    """Scores neighbours by what they send."""

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """What the detector remembers between rounds, all tensors. ``first`` holds γ⁰."""
        return {}

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """Bytes of memory that takes, where a vector of length d takes ``vector``: known before anything is trained."""
        return 0

    def check_clients(self, ids: Collection[int]) -> None:
        """Refuse to be told of clients that have none of these ids."""

    def among(self, ids: Sequence[int]) -> Self:
        """This detector for a neighbourhood in which client ``ids[k]`` is number k."""
        return self

    @abstractmethod
    def scores(self, state: State, hood: Neighbourhood, gamma: Tensor, kept: Tensor, own: Tensor) -> Tensor | None:
        """(E,) s_ij from this round's γ (N, d), 1 for oneself; None leaves all trust as it is.

        Everybody is scored, but those who are cut are no measure for the others: ``kept`` (E,) are the rest. ``own``
        (R, d) are the rows' gradients g_i in this round, which nobody else is told.
        """

    def marked(self, state: State) -> Tensor | None:
        """(E,) neighbours with no claim to Algorithm 2's patience, or None for nobody.

        Where cuts last, a single score at the defence's threshold is enough to cut them.
        """
        return None

    def opposed(self, state: State) -> Tensor | None:
        """(E,) those :meth:`marked` who began against the client itself as well, or None for nobody."""
        return None


detectors: Registry[Detector] = Registry("detector", "purifl.detection")
