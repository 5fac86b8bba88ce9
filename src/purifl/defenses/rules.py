"""What the robust rules share: the edges that count, distances, and choices by them.

Distances are taken in float64: float32 messages of any finite length then have finite distances, and float64
messages longer than 1e154 are infinitely far, which every comparison below understands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from purifl.defenses.base import Defense, Setting, Turn
from purifl.errors import ConfigError
from purifl.neighbourhood import Neighbourhood

_CHUNK = 1 << 22  # numbers handled at once


def kept_edges(turn: Turn) -> list[Tensor]:
    """For each row the edges that count in this round, its edge to itself always among them."""
    return _by_row(turn.hood, turn.kept | turn.hood.to_self)


def kept_neighbours(turn: Turn) -> list[Tensor]:
    """For each row the edges to other clients that count in this round."""
    return _by_row(turn.hood, turn.kept & turn.hood.to_others)


def weighted_edges(turn: Turn) -> list[Tensor]:
    """For each row the edges whose weight is positive."""
    return _by_row(turn.hood, turn.weights > 0)


def _by_row(hood: Neighbourhood, among: Tensor) -> list[Tensor]:
    counts = torch.bincount(hood.rows[among], minlength=len(hood.own)).tolist()
    return list(torch.split(among.nonzero().flatten(), counts))


def even_weights(turn: Turn, chosen: list[Tensor]) -> Tensor:
    """(E,) 1/M on each row's M ``chosen`` edges and 0 elsewhere."""
    weights = torch.zeros_like(turn.weights)
    for edges in chosen:
        weights[edges] = 1 / max(1, len(edges))
    return weights


def own_and_mean(turn: Turn, accepted: list[Tensor], own_share: float) -> Tensor:
    """(E,) weights of a x_i + (1 − a) · mean of the ``accepted`` neighbours; x_i alone where there are none."""
    weights = even_weights(turn, accepted) * (1 - own_share)
    weights[turn.hood.own] = weights.new_tensor([own_share if len(edges) else 1.0 for edges in accepted])
    return weights


def distances(hood: Neighbourhood, x: Tensor) -> Tensor:
    """‖x_j − x_i‖₂ in float64: (N, d) gives (E,)."""
    return _squared(x, hood.cols, hood.listeners).sqrt()


def norms(x: Tensor) -> Tensor:
    """‖x_j‖₂ in float64: (N, d) gives (N,)."""
    return torch.stack([row.double().norm() for row in x])


def pairwise(turn: Turn, x: Tensor) -> list[Tensor]:
    """For each row the squared distances (m, m) between the vectors it keeps, on the CPU.

    A pair of columns is computed once, however many rows hear both.
    """
    groups = [turn.hood.cols[edges] for edges in kept_edges(turn)]
    wanted = torch.zeros(len(x), len(x), dtype=torch.bool, device=x.device)
    for columns in groups:
        wanted[columns[:, None], columns] = True
    a, b = wanted.triu(1).nonzero(as_tuple=True)
    table = torch.zeros_like(wanted, dtype=torch.float64)
    table[a, b] = _squared(x, a, b)
    table = (table + table.T).cpu()
    return [table[columns][:, columns] for columns in (g.cpu() for g in groups)]


def _squared(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """‖x_a − x_b‖² for pairs of columns, in float64."""
    step = max(1, _CHUNK // max(1, x.shape[1]))
    parts = zip(torch.split(a, step), torch.split(b, step), strict=True)
    return torch.cat([(x[p].double() - x[q].double()).square().sum(1) for p, q in parts])


def krum_order(squared: Tensor, near: int) -> Tensor:
    """Positions from the best to the worst Krum score, Σ of squared distances to the ``near`` nearest others.

    Two vectors that are nearest to each other have the same score when ``near`` is 1. Of equal scores the one with
    the smaller distances to all others is better, so that the order of the clients is of no matter; then the first.
    """
    others = squared.clone().fill_diagonal_(torch.inf).sort(dim=1).values[:, :-1]
    order = others.sum(1).argsort(stable=True)
    return order[others[order, :near].sum(1).argsort(stable=True)]


def lowest(values: Tensor, count: int) -> Tensor:
    """The positions of the ``count`` lowest values; of equal ones the first."""
    return values.argsort(stable=True)[:count]


def bulyan_choice(squared: Tensor, f: int) -> Tensor:
    """Positions of m − 2f vectors, each the best by Krum among those not yet taken: (m, m) gives (m − 2f,).

    Krum counts r − f − 2 neighbours among the r that are left, and at least one.
    """
    left, chosen = list(range(len(squared))), []
    for _ in range(len(squared) - 2 * f):
        best = krum_order(squared[left][:, left], max(1, len(left) - f - 2))[0]
        chosen.append(left.pop(int(best)))
    return torch.tensor(sorted(chosen))


def trimmed_mean(x: Tensor, k: int) -> Tensor:
    """Per coordinate the mean without the k largest and the k smallest: (m, d) gives (d,)."""
    return x.sort(dim=0).values[k : len(x) - k].mean(0)


def median(x: Tensor) -> Tensor:
    """Per coordinate the median, of an even number the mean of the two middle values: (m, d) gives (d,)."""
    return _middle(x.sort(dim=0).values)


def mean_around_median(x: Tensor, count: int) -> Tensor:
    """Per coordinate the mean of the ``count`` values nearest the median, of two as near the lower: (m, d) to (d,)."""
    ordered = x.sort(dim=0).values
    nearest = (ordered - _middle(ordered)).abs().argsort(dim=0, stable=True)[:count]
    return ordered.gather(0, nearest).mean(0)


def _middle(ordered: Tensor) -> Tensor:
    """The median of sorted values, halved before they are added so that nothing overflows."""
    return ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2


def reduce_rows(
    turn: Turn, edges: list[Tensor], counts: list[int], x: Tensor, rule: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """``rule(vectors, count)`` for each row's edges and count: (N, d) gives (R, d).

    Rows that hear the same columns, as all do on a complete graph, share the work.
    """
    keys = [(tuple(turn.hood.cols[e].tolist()), count) for e, count in zip(edges, counts, strict=True)]
    found = {key: rule(x[list(key[0])], key[1]) for key in dict.fromkeys(keys)}
    return torch.stack([found[key] for key in keys])


class AssumesMalicious(Defense):
    """A rule that is told how many neighbours may be malicious, and needs enough others to outvote them."""

    smallest: ClassVar[tuple[int, int]]
    """(a, b): with f malicious neighbours assumed, every client must hear m ≥ a f + b messages."""

    assumed: int | None = Field(
        None,
        ge=0,
        description="f, malicious neighbours assumed; if not given, the most that any benign client has",
    )

    def settle(self, setting: Setting) -> Self:
        """With f known, and after checking that every client hears enough messages for it."""
        f = setting.most_malicious if self.assumed is None else self.assumed
        self._check(setting.hood, f)
        return super().settle(setting).model_copy(update={"assumed": f})

    def _check(self, hood: Neighbourhood, f: int) -> None:
        a, b = self.smallest
        needed, row = a * f + b, int(hood.size.argmin())
        m = int(hood.size[row])
        if m >= needed:
            return
        client = int(hood.owner[hood.own_cols[row]])
        fewer = f"assume at most f = {(m - b) // a}" if m >= b else f"with m = {m} it is defined for no f"
        raise ConfigError(
            "defense.assumed",
            f,
            f"client {client} hears m = {m} messages, its own included, and {self.name!r} needs "
            f"m ≥ {a}f + {b} = {needed}: take a graph in which everyone has {needed - 1} neighbours or more "
            f"({needed} clients if all talk to all), or {fewer}",
        )

    def remaining(self, turn: Turn) -> list[int]:
        """Each row's f: a neighbour that is no longer heard is taken to be one of those assumed."""
        f, heard = self.assumed or 0, [len(edges) for edges in kept_edges(turn)]
        return [max(0, f - (size - m)) for size, m in zip(turn.hood.size.tolist(), heard, strict=True)]
