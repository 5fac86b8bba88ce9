"""Beginnings: what first messages tell of neighbours, before anything of one client is in another's.

γ_j⁰ is a gradient at a model that all have in common. How long it is tells of how much data, and where it points of
whose side a neighbour is on; docs/method.md, "Longer, farther, against the others", has the reasons.

Of two clients the one with more data has the longer gradients and is farther from everyone, so that distances count

    alike_ij = min(1, (median_k ‖γ_k⁰‖ + ‖γ_i⁰‖) / (‖γ_j⁰‖ + ‖γ_i⁰‖)),    0 if ‖γ_j⁰‖ > 4 median_k ‖γ_k⁰‖

times. More of the same data does not turn a gradient, though. With the *agreement* median_{k≠j} cos(γ_j⁰, γ_k⁰)
alike_ij is 1 for an *odd* neighbour: one that began *against* most of the others, with an agreement under −0.1, or that
is over four medians long with less than 0.1; over four medians long with more, it is *large*. One that began with the
very message of the client itself, as those do who were not heard at first, has no agreement and alike_ij = 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from purifl.neighbourhood import Neighbourhood, gram
from purifl.state import State

ENOUGH = 4  # neighbours, to call one of them an outlier
LONG = 4.0  # times as long as another message, or as the median, is no longer about as long
ALONG, AGAINST = 0.1, -0.1  # an agreement of at least the one is along with the others, under the other against them


def remember(hood: Neighbourhood) -> State:
    """State for what :func:`note` finds: ‖γ_j⁰‖ of each column, and of each edge alike_ij and what j is."""
    none = torch.zeros_like(hood.rows, dtype=torch.float64)
    marks = {name: torch.zeros_like(hood.to_self) for name in ("against", "odd", "opposed", "large")}
    return {"first": none.new_zeros(hood.columns), "alike": none} | marks


def note(state: State, hood: Neighbourhood, gamma: Tensor, lengths: Tensor, distance: Tensor) -> None:
    """Find out by the first γ (N, d), of ``lengths`` (N,) and at a ``distance`` (E,) from each other."""
    agreement = agreement_of(hood, gamma, distance)
    state["first"].copy_(lengths)
    long = are_long(hood, lengths)
    state["against"].copy_(agreement < AGAINST)
    state["odd"].copy_(state["against"] | (long & (agreement < ALONG)))
    state["opposed"].copy_(state["against"] & _opposed(hood, lengths, distance))
    state["large"].copy_(long & (agreement >= ALONG) & agreement.isfinite())
    state["alike"].copy_(_alike(hood, lengths, distance, state["odd"]))


def _alike(hood: Neighbourhood, lengths: Tensor, distance: Tensor, odd: Tensor) -> Tensor:
    """(E,) how a neighbour's distance compares with the others', by the first messages; 0 in rows of too few."""
    theirs, own, usual = lengths[hood.cols], lengths[hood.listeners], _usual(hood, lengths)
    alike = ((usual + own) / (theirs + own)).nan_to_num(1).clamp(max=1).masked_fill(are_long(hood, lengths), 0)
    return torch.where((hood.size > ENOUGH)[hood.rows] & (distance > 0), alike.masked_fill(odd, 1), 0)


def _opposed(hood: Neighbourhood, lengths: Tensor, distance: Tensor) -> Tensor:
    """(E,) whether γ_j · γ_i < 0, which is to say ‖γ_j − γ_i‖² > ‖γ_j‖² + ‖γ_i‖²."""
    return distance**2 > lengths[hood.cols] ** 2 + lengths[hood.listeners] ** 2


def are_long(hood: Neighbourhood, lengths: Tensor) -> Tensor:
    """(E,) whether a neighbour's first message, of ``lengths`` (N,), is over four medians of its row long."""
    return ~(lengths[hood.cols] <= LONG * _usual(hood, lengths))


def _usual(hood: Neighbourhood, lengths: Tensor) -> Tensor:
    return hood.medians(lengths[hood.cols], torch.ones_like(hood.to_self))[hood.rows]


def agreement_of(hood: Neighbourhood, gamma: Tensor, distance: Tensor) -> Tensor:
    """(E,) median_{k≠j} cos(γ_j, γ_k) over those whom row i hears, itself included; ∞ in rows of too few.

    Of an even number it is the higher of the two middle ones, so that only a majority is against anybody. Neighbours at
    no ``distance`` (E,) from row i say nothing of their own, and are left out, with ∞ for them.
    """
    agreement = torch.full_like(hood.rows, torch.inf, dtype=torch.float64)
    for edges, cosines in cosines_of(hood, gamma, distance > 0):
        agreement[edges] = cosines.sort(1).values[:, (len(edges) - 1) // 2]
    return agreement.masked_fill(hood.to_self, torch.inf)


def cosines_of(hood: Neighbourhood, gamma: Tensor, among: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each row with enough neighbours ``among`` (E,) those that count, the edges (K,) and the cosines (K, K) of γ.

    The client itself is one of them. γ is (N, d), and the cosine of a message with itself ∞.
    """
    everyone = gram(gamma) if hood.dense else None
    speak, bounds = hood.to_self | among, hood.offsets.tolist()
    for row in (hood.sums(speak.double()) > ENOUGH).nonzero()[:, 0].tolist():
        edges = torch.arange(bounds[row], bounds[row + 1], device=gamma.device)[speak[bounds[row] : bounds[row + 1]]]
        heard = hood.cols[edges]
        table = gram(gamma[heard]) if everyone is None else everyone[heard][:, heard]
        lengths = table.diagonal().sqrt()
        yield edges, (table / lengths / lengths[:, None]).nan_to_num(0).fill_diagonal_(torch.inf)
