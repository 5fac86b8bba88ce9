"""Hearsay: what neighbours say of each other, and when it is believed.

What is plain to most can be hidden from one. To a client that alone has the label which attackers give to everything,
these look like itself, and once the others have cut them, the others look like attackers. So with every message a
client says whom it has *found out*, in whom it has lost most of its trust by what it was sent itself and not by what it
was told, and i believes it of j as soon as more than half of its other neighbours say so:

    |{k ∈ N_i : k ≠ i, j, k has found j out}| > (m_i − 2) / 2

It is asked by clients with at least four neighbours. Attackers that are no more than half of those others can neither
frame anybody by what they say nor protect each other by what they do not. docs/method.md, "What most have found out",
has the reasons.
"""

from __future__ import annotations

from torch import Tensor

from purifl.beginnings import ENOUGH
from purifl.neighbourhood import Neighbourhood


def accusers(hood: Neighbourhood, said: Tensor) -> Tensor:
    """(E,) how many of row i's other neighbours say that they have found out the client at the other end of each edge.

    ``said`` (C, C) is 1 where one client says it of another, numbered as in ``hood.owner``, and 0 elsewhere.
    """
    counts = hood.combine(hood.to_others.to(said.dtype), said[hood.owner])
    return counts[hood.rows, hood.senders]


def believed(hood: Neighbourhood, accusers: Tensor) -> Tensor:
    """(E,) whether more than half of a row's other neighbours are ``accusers`` (E,) of the one at the other end."""
    others = hood.size - 2
    return (2 * accusers > others[hood.rows]) & (hood.size > ENOUGH)[hood.rows] & hood.to_others
