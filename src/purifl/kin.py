"""Kin: neighbours that began alike, and what their gradients tell of each other's.

Clients with the same kind of data have gradients that become longer and shorter together. First messages show who has:
those *akin* have a cosine of 0.85 or more, and neither is over four times as long as the other. Over slow edges nobody
is. docs/method.md, "Kin are compared with kin", has the reasons and the figures.

What a neighbour's gradient is now its messages tell: E_ij = Σ_τ (γ_j^τ − γ_i^τ) is close to g_j − g_i, so that E_ij +
g_i is the gradient that j *claims*. An attacker's becomes longer by all that it has pushed. So ``apart`` is at least

    c_ij / median_k c_ik,    c_ij = ‖E_ij + g_i‖ / ‖γ_j⁰‖,

over the kin k of j, a connected component of at least five who are akin.
"""

from __future__ import annotations

import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from purifl.beginnings import ENOUGH, LONG, cosines_of
from purifl.neighbourhood import Neighbourhood
from purifl.state import State

AKIN = 0.85  # the least cosine between first messages of clients that have the same kind of data
_YOUNG = 8  # rounds in which nobody has earned more than its kin have
_LEFT = 3  # kin that a client still listens to, at least, to compare them


def remember(hood: Neighbourhood) -> State:
    """State for what :func:`note` finds; where it compares anybody is kept on the host, so that no GPU need be asked.

    ``kin`` is the number of a group, the same for all of a row's neighbours that are kin, and −1 for who has too few.
    """
    marks = {name: torch.zeros_like(hood.to_self) for name in ("akin_to_self", "far_smaller")}
    return {"kin": torch.full_like(hood.rows, -1), "compared": torch.zeros_like(hood.to_self).cpu()} | marks


def note(state: State, hood: Neighbourhood, gamma: Tensor, lengths: Tensor, distance: Tensor) -> None:
    """Find out by the first γ (N, d), of ``lengths`` (N,) and at a ``distance`` (E,) from each other."""
    fast = (distance > 0) & ~state["slow"].to(distance.device) & hood.to_others
    theirs, ours = lengths[hood.cols], lengths[hood.listeners]
    akin = (ours**2 + theirs**2 - distance**2 >= 2 * AKIN * ours * theirs) & _of_like_size(ours, theirs)
    state["akin_to_self"].copy_(fast & akin)
    state["far_smaller"].copy_(fast & (ours > LONG * theirs))
    for edges, cosines in cosines_of(hood, gamma, fast):
        heard = lengths[hood.cols[edges]]
        akin = (cosines >= AKIN) & _of_like_size(heard, heard[:, None])
        _, group = connected_components(csr_array(akin.cpu().numpy()), directed=False)
        for members in (edges[torch.from_numpy(group == k).to(edges.device)] for k in range(group.max() + 1)):
            if len(members) > ENOUGH:
                state["kin"][members] = members[0]
    state["compared"].copy_(state["kin"] >= 0)


def allowed(
    state: State, hood: Neighbourhood, theirs: Tensor, ours: Tensor, own: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """(E,) how long the gradients of j and of i may be, so far a_j and a_i (E,), where kin or size tell more.

    Of who is akin to i it is ‖γ_j⁰‖ / ‖γ_i⁰‖ · max(‖g_i^t‖, ‖γ_i^t‖) at most in the first eight rounds; later some may
    have cut whom others listen to, and differ for that. Of i itself it is no more than of j where j is akin to it in
    these rounds, or far smaller in any: what is left is the gradient itself, which i knows. ``own`` (R,) is ‖g_i^t‖,
    ``lengths`` (N,) are ‖γ^t‖.
    """
    first, akin = state["first"], state["akin_to_self"] & bool(state["rounds"] <= _YOUNG)
    now = torch.maximum(own.nan_to_num(torch.inf), lengths[hood.own_cols])[hood.rows]
    in_proportion = (first[hood.cols] / first[hood.listeners] * now).nan_to_num(torch.inf)
    theirs = torch.where(akin, torch.minimum(theirs, in_proportion), theirs)
    return theirs, torch.where(akin | state["far_smaller"], torch.minimum(ours, theirs), ours)


def beyond_kin(state: State, hood: Neighbourhood, distance: Tensor, own: Tensor, kept: Tensor) -> Tensor:
    """(E,) c_ij / median_k c_ik over the kin k of j that i listens to, c_ij = ‖E_ij + g_i‖ / ‖γ_j⁰‖; 0 without kin.

    The client itself is one of them where it is kin, with its own gradient. Of an even number the median is the higher
    of the two in the middle, so that only a majority of a group can make others look as if they claimed too much.
    ``distance`` (E,) is ‖E_ij‖, ``own`` (R, d) are the rows' gradients g_i.
    """
    if not state["compared"].any():
        return torch.zeros_like(distance)
    products = hood.products(own, state["sum"])
    along = products - products[hood.own][hood.rows]
    lengths: Tensor = torch.linalg.vector_norm(own, dim=1, dtype=torch.float64)[hood.rows]
    claimed: Tensor = (distance**2 + 2 * along + lengths**2).clamp(min=0).sqrt() / state["first"][hood.cols]
    return (claimed / _medians(claimed, kept & (state["kin"] >= 0), state["kin"])).nan_to_num(0, 0)


def _of_like_size(ours: Tensor, theirs: Tensor) -> Tensor:
    """Whether neither is over four times as long: what clients with few data send is noise that does not fade."""
    return torch.maximum(ours, theirs) <= LONG * torch.minimum(ours, theirs)


def _medians(values: Tensor, among: Tensor, groups: Tensor) -> Tensor:
    """(E,) the median of ``values`` over the edges ``among`` those of the same group; infinite where they are few."""
    shown, numbers = torch.where(among, values, torch.nan), groups + 1
    order = shown.argsort(stable=True)
    order = order[numbers[order].argsort(stable=True)]
    sizes = torch.bincount(numbers, minlength=len(values) + 1)
    counted = torch.zeros_like(sizes).index_add_(0, numbers, among.long())
    middle = (sizes.cumsum(0) - sizes + counted // 2).clamp(max=len(values) - 1)
    return torch.where(counted < _LEFT, torch.inf, shown[order[middle]])[numbers]
