"""Discord: what a neighbour sends has little to do with what a client sends itself, and is long.

Who takes part in gradient tracking comes to agree: what i sends in a round holds a share of what j sent in the round
before, so that after a few rounds even clients without a class in common send messages along with each other's. Noise
is along with nothing, and what is made against the others stays against them. Where a client has too few neighbours to
compare them with each other :class:`~purifl.detection.persistence.Persistence` compares them with the client itself;
docs/method.md, "Few neighbours: compared with oneself", has the figures.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.detection.beginnings import ALONG, ENOUGH, LONG
from purifl.detection.kin import AKIN
from purifl.neighbourhood import Neighbourhood
from purifl.state import State

_OWN = 2.0  # times as long as one's own may be messages that have nothing to do with them
_LEAST = 1.0  # times as long may be any, even against them
_ALONG = 10.0  # times the cosine between them is how much longer they may be
_FROM = 3  # messages from which on it is asked: before, nothing of one client is in the other
_UNTIL = 8  # the last one of most: after it, honest clients may differ for good
_FADING = 0.75  # is what a message counts of the one after it, or the first, which are long, would hide the others
_SUMS = ("both", "ours", "theirs")  # of ⟨γ_j, γ_i⟩, ‖γ_i‖² and ‖γ_j‖²


def remember(hood: Neighbourhood) -> State:
    """State for rows of few clients; which these are is kept on the host, so that no GPU need be asked."""
    few = (hood.size <= ENOUGH)[hood.rows] & hood.to_others
    marks = {name: torch.zeros_like(few) for name in ("akin", "grown", "once")}
    sums = {name: torch.zeros_like(hood.rows, dtype=torch.float64) for name in _SUMS}
    return {"few": few.cpu(), "messages": torch.zeros_like(hood.rows)} | marks | sums


def discord(state: State, hood: Neighbourhood, distance: Tensor, lengths: Tensor, kept: Tensor) -> Tensor:
    """(E,) how far a neighbour's messages are from what their cosine with one's own allows; over 1 is too long.

    ‖γ_j‖² (1 − max(0, cos_ij)²) / (ℓ_ij ‖γ_i‖)², cos_ij the cosine and ℓ_ij = max(1, 2 + 10 cos_ij), squares and
    products being summed over the messages heard, or of this one alone where that is less. It is 0 in rows of many, and
    but for the third to the eighth message of those who did not begin as large clients. Two kinds are asked for good,
    by their recent messages, each of which makes those before it count 3/4 times from then on: those *akin*, whose
    first message had a cosine of 0.85 or more with the client's own, and those who were ever cut, by either end, with
    ℓ_ij = max(0, 10 cos_ij) while the edge is not ``kept`` (E,). This round's γ have these ``lengths`` (N,) and are at
    a ``distance`` (E,) from each other; at none, there was no message.
    """
    if not state["few"].any():
        return torch.zeros_like(distance)
    ours, theirs = (lengths[ends] ** 2 for ends in (hood.listeners, hood.cols))
    now, spoken = ((ours + theirs - distance**2) / 2, ours, theirs), distance > 0
    state["messages"] += spoken
    begins, cosine = spoken & (state["messages"] == 1), _cosine(*now)
    state["akin"] |= begins & (cosine >= AKIN)
    state["grown"] |= begins & (theirs > LONG**2 * ours) & (cosine >= ALONG)
    state["once"] |= ~kept
    for_good = state["akin"] | state["once"]
    for name, each in zip(_SUMS, now, strict=True):
        state[name].mul_(torch.where(for_good & spoken, _FADING, 1)).add_(torch.where(spoken, each, 0))
    least = torch.minimum(_beyond(kept, *now), _beyond(kept, *(state[name] for name in _SUMS)))
    asked = for_good | (state["messages"] <= _UNTIL) & ~state["grown"]
    asked &= (state["messages"] >= _FROM) & spoken & state["few"].to(least.device)
    return torch.where(asked, least, 0)


def _cosine(both: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    """(E,) cos_ij, NaN where either has sent nothing."""
    return (both / (ours * theirs).sqrt()).clamp(-1, 1)


def _beyond(kept: Tensor, both: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    """(E,) ‖γ_j‖² (1 − max(0, cos)²) / (ℓ ‖γ_i‖)², infinite where ℓ is 0, and 0 where either has sent nothing."""
    cosine = _cosine(both, ours, theirs)
    multiple = (_ALONG * cosine + torch.where(kept, _OWN, 0)).clamp(min=torch.where(kept, _LEAST, 0))
    return (theirs / ours * (1 - cosine.clamp(min=0) ** 2) / multiple**2).nan_to_num(0, torch.inf)
