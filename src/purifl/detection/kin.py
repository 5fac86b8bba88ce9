"""Kin: neighbours that began alike, and what their gradients tell of each other's.

Clients with the same kind of data have gradients that become longer and shorter together. First messages show who has:
those *akin* have a cosine of 0.85 or more, and neither is over four times as long as the other. It is asked over
*level* edges, both ends of which have the same number of neighbours, four or more. docs/method.md, "Kin are compared
with kin", has the reasons and the figures.

What a neighbour's gradient is now its messages tell: E_ij = Σ_τ (γ_j^τ − γ_i^τ) is close to g_j − g_i, so that E_ij +
g_i is the gradient that j *claims*. An attacker's becomes longer by all that it has pushed. So the ratio in ``apart``
is at least

    claim_ij / median_k claim_ik,    claim_ij = ‖E_ij + g_i‖ / ‖γ_j⁰‖,

over the kin k of j, a connected component of at least five who are akin. Groups that the client is not in itself have
to be more than half of its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from purifl.detection.beginnings import ENOUGH, LONG, cosines_of
from purifl.neighbourhood import Neighbourhood
from purifl.state import State

AKIN = 0.85  # the least cosine between first messages of clients that have the same kind of data
_YOUNG = 8  # rounds in which push allows for no more than kin have: later, who has cut whom makes honest clients differ
_LEFT = 3  # kin that a client still listens to, at least, to compare them


def remember(hood: Neighbourhood) -> State:
    """State for what :func:`note` finds.

    ``kin`` is the number of a group, the same for all of a row's neighbours that are kin, and −1 for who has too few.
    Whether there is any is kept on the host, so that it need not ask a GPU.
    """
    ours, theirs = hood.at_ends
    level = (ours == theirs) & (ours > ENOUGH) & hood.to_others
    marks = {name: torch.zeros_like(level) for name in ("akin_to_self", "far_smaller")}
    return {"level": level, "kin": torch.full_like(hood.rows, -1), "any_kin": torch.tensor(False)} | marks


def note(state: State, hood: Neighbourhood, gamma: Tensor, lengths: Tensor, distance: Tensor) -> None:
    """Find out by the first γ (N, d), of ``lengths`` (N,) and at a ``distance`` (E,) from each other."""
    level = state["level"] & (distance > 0)
    theirs, ours = lengths[hood.cols], lengths[hood.listeners]
    akin = (ours**2 + theirs**2 - distance**2 >= 2 * AKIN * ours * theirs) & _about_as_long(ours, theirs)
    state["akin_to_self"].copy_(level & akin)
    state["far_smaller"].copy_(level & (ours > LONG * theirs))
    for edges, cosines in cosines_of(hood, gamma, level):
        heard = lengths[hood.cols[edges]]
        akin = (cosines >= AKIN) & _about_as_long(heard, heard[:, None])
        _, group = connected_components(csr_array(akin.cpu().numpy()), directed=False)
        for number in np.flatnonzero(np.bincount(group) > ENOUGH):
            members = edges[torch.from_numpy(group == number).to(edges.device)]
            own, others = bool(hood.to_self[members].any()), int(hood.size[hood.rows[members[0]]]) - 1
            if own or 2 * len(members) > others:
                state["kin"][members] = members[0]
    state["any_kin"].fill_(bool((state["kin"] >= 0).any()))


def _about_as_long(one: Tensor, other: Tensor) -> Tensor:
    """Whether neither is over four times as long: what clients with few data send is noise that does not fade."""
    return torch.maximum(one, other) <= LONG * torch.minimum(one, other)


def leave(state: State, missed: Tensor) -> None:
    """Who is ``missed`` (E,) is no kin any more: what it did not send is missing in E_ij for good."""
    state["kin"].masked_fill_(missed, -1)
    state["akin_to_self"].masked_fill_(missed, False)


def allowed(
    state: State, hood: Neighbourhood, theirs: Tensor, ours: Tensor, own: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """(E,) how long the gradients of j, ``theirs``, and of i, ``ours``, may be, so far a_j and a_i (E,).

    Of who is akin to i it is ‖γ_j⁰‖ / ‖γ_i⁰‖ · max(‖g_i^t‖, ‖γ_i^t‖) at most in the first eight rounds; later some may
    have cut whom others listen to, and differ for that. Of i itself it is no more than of j where j is akin to it in
    these rounds, or far smaller in any: what is left is the gradient itself, which i knows. ``own`` (R,) is ‖g_i^t‖,
    ``lengths`` (N,) are ‖γ^t‖.
    """
    first, akin = state["first"], state["akin_to_self"] & bool(state["rounds"] <= _YOUNG)
    now = torch.maximum(own, lengths[hood.own_cols])[hood.rows]
    in_proportion = (first[hood.cols] / first[hood.listeners] * now).nan_to_num(torch.inf)
    theirs = torch.where(akin, torch.minimum(theirs, in_proportion), theirs)
    return theirs, torch.where(akin | state["far_smaller"], torch.minimum(ours, theirs), ours)


def beyond_kin(
    state: State, hood: Neighbourhood, distance: Tensor, own: Tensor, kept: Tensor, counts: Tensor
) -> Tensor:
    """(E,) claim_ij / median_k claim_ik over the kin k of j that i listens to, claim_ij = ‖E_ij + g_i‖ / ‖γ_j⁰‖.

    It is 0 without kin. Of an even number the median is the higher of the two in the middle. To a client that is kin
    itself it is no less than claim_ii = ‖g_i‖ / ‖γ_i⁰‖, so that nobody can make its kin look to it as if they claimed
    too much. ``distance`` (E,) is ‖E_ij‖, ``own`` (R, d) are the rows' gradients g_i. Where it could not be over 1,
    counted ``counts`` (E,) times, whatever the angle between E_ij and g_i, it may be 0 as well.
    """
    if not state["any_kin"]:
        return torch.zeros_like(distance)
    lengths: Tensor = torch.linalg.vector_norm(own, dim=1, dtype=torch.float64)[hood.rows]
    most = _over_medians(state, hood, kept, distance + lengths, (distance - lengths).abs())
    if most.device.type == "cpu" and not (counts * most > 1).any():  # to ask a GPU, the host would wait for it
        return torch.zeros_like(distance)
    products = hood.products(own, state["sum"])
    along = products - products[hood.own][hood.rows]
    claimed = (distance**2 + 2 * along + lengths**2).clamp(min=0).sqrt()
    return _over_medians(state, hood, kept, claimed, claimed).nan_to_num(0, 0)


def _over_medians(state: State, hood: Neighbourhood, kept: Tensor, claimed: Tensor, least: Tensor) -> Tensor:
    """(E,) claim_ij / median_k claim_ik, above by the lengths ``claimed`` (E,), below by those at ``least`` (E,)."""
    first, kin = state["first"][hood.cols], state["kin"]
    least = least / first
    ours = least[hood.own][hood.rows].masked_fill(kin != kin[hood.own][hood.rows], 0)
    return claimed.div(first) / torch.maximum(_medians(least, kept & (kin >= 0), kin), ours)


def _medians(values: Tensor, among: Tensor, groups: Tensor) -> Tensor:
    """(E,) the median of ``values`` over the edges ``among`` those of the same group; infinite where they are few.

    One that is no number is sorted behind all others, as the highest.
    """
    shown, numbers = torch.where(among, values, torch.nan), groups + 1
    order = shown.argsort(stable=True)
    order = order[numbers[order].argsort(stable=True)]
    none = torch.zeros(len(values) + 1, dtype=torch.int64, device=values.device)
    sizes, counted = (none.index_add(0, numbers, each.long()) for each in (torch.ones_like(among), among))
    middle = (sizes.cumsum(0) - sizes + counted // 2).clamp(max=len(values) - 1)
    return torch.where(counted < _LEFT, torch.inf, shown[order[middle]])[numbers]
