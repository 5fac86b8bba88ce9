"""Slow edges: what honest messages look like while they pass through a sparse graph.

Where not everybody hears everybody differences take rounds to level out. So all edges are *slow* but those both ends of
which hear all clients there are, and at least four others. What a client with much data sends arrives over them as a
*wave*: a push from who has it to who does not have it yet, though nobody is pushing. It has two sides;
docs/method.md, "A wave is no push", derives them. Those already cut are judged without either.

Who has it hears *less of the same* from who does not. With S = Σ_τ γ^τ, T messages so far, a push is made of

    E_ij = S_j − min(1, ⟨S_j, S_i⟩ / ‖S_i‖²) S_i

where ⟨S_j, S_i⟩ > ½ ‖S_j‖ ‖S_i‖ and j is behind by T (1 − ⟨S_j, S_i⟩ / ‖S_i‖²) ≤ 2 max(m_i, m_j) messages.

For who does not have it yet a wave makes messages longer than they were at first and is along with the client's own
gradient. A push counts for no more than 1 in a round in which its P_ij ≤ 3/2 G_ij^{3/2} and

    along_ij > 0.1,    cos(γ_j^t, g_i^t) > 0.1 or along_ij > 0.3,    and ‖g_i^t‖ ≤ 3 ‖γ_i⁰‖.

along_ij = Σ_τ ⟨γ_j^τ, g_i^τ⟩ / Σ_τ ‖γ_j^τ‖ ‖g_i^τ‖ over all rounds in which j was listened to with a push over 1, and
the growth G_ij = (max_τ ‖γ_i^τ‖ + max_τ ‖γ_j^τ‖) / (‖γ_i⁰‖ + ‖γ_j⁰‖), taken as 3 if it is more. Waves make messages
longer, but hardly one's own gradient; an attack that ruins the model does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purifl.detection.beginnings import ENOUGH
from purifl.neighbourhood import Neighbourhood, pair_products
from purifl.state import State

_SAME = 0.5  # the least cosine between sums of messages of which one may be less of the other
_BEHIND = 2.0  # times max(m_i, m_j) is by how many messages a neighbour may be behind
_ALONG = 0.1  # the least cosine between a wave and the client's own gradient, on average over its rounds and now
_CLEARLY = 0.3  # the average from which on a single round does not matter
_LASTING = 1.5  # the persistence that a wave may have besides what its growth allows
_GROWN = 3.0  # times the length of the first messages, up to which longer ones count as a wave
_SOUND = 3.0  # times as long as its first message is at most the gradient of a client that excuses a wave


def remember(hood: Neighbourhood) -> State:
    """State for slow edges; which these are is kept on the host, so that no GPU need be asked whether there are any."""
    ours, theirs = hood.at_ends
    return {
        "slow": ((torch.minimum(ours, theirs) < max(ENOUGH + 1, hood.clients)) & hood.to_others).cpu(),
        "behind": _BEHIND * torch.maximum(ours, theirs),
        "longest": ours.new_zeros(hood.columns),
        "dots": torch.zeros_like(ours),
        "bound": torch.zeros_like(ours),
    }


def beyond_less(state: State, hood: Neighbourhood, distance: Tensor, sums: Tensor) -> Tensor:
    """(E,) ‖S_j − S_i‖, over slow edges as far as it is more than *less of the same*.

    From the ``distance`` (E,) between all S and the lengths of these, ``sums`` (N,).
    """
    if not state["slow"].any():
        return distance
    slow = state["slow"].nonzero()[:, 0].to(distance.device)
    ours, theirs, between = sums[hood.listeners[slow]], sums[hood.cols[slow]], distance[slow]
    product = (ours**2 + theirs**2 - between**2) / 2
    missing = (ours - product / ours).clamp(min=0)
    less = (product > _SAME * ours * theirs) & (state["rounds"] * missing <= state["behind"][slow] * ours)
    return distance.index_copy(0, slow, torch.where(less, (between**2 - missing**2).clamp(min=0).sqrt(), between))


def let_pass(
    push: Tensor, state: State, hood: Neighbourhood, distance: Tensor, gamma: Tensor, lengths: Tensor, own: Tensor
) -> Tensor:
    """(E,) the ``push``, at most 1 over slow edges that a wave passes; γ (N, d) has these ``lengths`` (N,).

    ``distance`` (E,) is what the push was made of, and ``own`` (R, d) the rows' gradients.
    """
    asked = state["slow"]
    if push.device.type == "cpu":  # to ask a GPU, the host would wait for it
        asked = asked & (push > 1)
    if not asked.any():
        return push
    slow = asked.nonzero()[:, 0].to(push.device)
    growth = _growth(state, hood.listeners[slow], hood.cols[slow])
    passing = distance[slow] ** 2 / state["squares"][slow] <= _LASTING * growth**1.5
    passing &= _go_along(push, state, hood, gamma, lengths, own, slow)
    return push.index_copy(0, slow, push[slow].clamp(max=torch.where(passing, 1.0, torch.inf)))


def _growth(state: State, us: Tensor, them: Tensor) -> Tensor:
    """(K,) G_ij = (max_τ ‖γ_i^τ‖ + max_τ ‖γ_j^τ‖) / (‖γ_i⁰‖ + ‖γ_j⁰‖), between 1 and 3."""
    longest, first = (state[name][us] + state[name][them] for name in ("longest", "first"))
    return (longest / first).nan_to_num(1).clamp(1, _GROWN)


def _go_along(
    push: Tensor, state: State, hood: Neighbourhood, gamma: Tensor, lengths: Tensor, own: Tensor, slow: Tensor
) -> Tensor:
    """(K,) whether the messages over the edges ``slow`` (K,) are along with the rows' own gradients, and have been.

    A gradient that has become too long is that of a model that is being ruined, and along with what ruins it by chance.
    The average of the cosines is Σ_τ ⟨γ_j^τ, g_i^τ⟩ / Σ_τ ‖γ_j^τ‖ ‖g_i^τ‖ over all rounds with a push over 1, of which
    this one is counted in now.
    """
    rows, them = hood.rows[slow], hood.cols[slow]
    long = pair_products(own, rows, own, rows).sqrt()
    dot, bound = pair_products(own, rows, gamma, them), long * lengths[them]
    counted = (push[slow] > 1) & dot.isfinite() & bound.isfinite()
    for name, now in (("dots", dot), ("bound", bound)):
        state[name][slow] += torch.where(counted, now, 0)
    dots, bounds = state["dots"][slow], state["bound"][slow]
    sound = long <= _SOUND * state["first"][hood.listeners[slow]]
    return sound & (dots > _ALONG * bounds) & ((dot > _ALONG * bound) | (dots > _CLEARLY * bounds))
