"""Which rounds an edge counts in: both ends must have counted the same, or their records no longer cancel.

An edge counts in a round when both ends hold both messages. The end that lacks the other's receipt cannot know that, so
the two may differ: after a lost receipt, or a crash between two writes. Every message therefore tells which rounds the
sender has counted, as it stands on its disk. Who finds that it counted a round which the other did not takes what that
round added off its record again; it was kept for that until the other confirmed it. Where that can no longer be told,
both ends begin the record anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from purifl.peer.messages import WINDOW
from purifl.state import State


class Repair(NamedTuple):
    """What reconciling found.

    Attributes:
        forget: Whether the record begins anew.
        retracted: What is to be taken off the record, w_ij (γ_j − γ_i) of each round that only this end counted.
    """

    forget: bool
    retracted: list[Tensor]


@dataclass
class Edge:
    """One end's view of an edge.

    Attributes:
        since: The first round that the record may hold.
        counted: The last rounds counted, in order, at most :data:`WINDOW`.
        pending: What each round added that the other end has not confirmed yet.
    """

    since: int = 0
    counted: list[int] = field(default_factory=list)
    pending: dict[int, Tensor] = field(default_factory=dict)

    def count(self, round_: int, term: Tensor | None) -> None:
        """The edge counted in a round, which added ``term`` to the record, if there is one."""
        self.counted = [*self.counted, round_][-WINDOW:]
        if term is not None:
            self.pending[round_] = term

    def restart(self, since: int) -> None:
        """The record is empty, and counts from ``since`` on."""
        self.since = since
        self.counted = [each for each in self.counted if each >= since]
        self.pending = {round_: term for round_, term in self.pending.items() if round_ >= since}

    def reconcile(self, since: int, counted: tuple[int, ...], now: int) -> Repair:
        """Come to agree with what the other end says it counted, in its message of round ``now``."""
        if since > self.since:
            self.restart(since)
            return Repair(True, [])
        wrong = [round_ for round_ in self.pending if round_ < now and round_ not in counted]
        if any(len(counted) == WINDOW and round_ < min(counted) for round_ in wrong):
            self.restart(now)
            return Repair(True, [])
        retracted = [self.pending[round_] for round_ in wrong]
        self.counted = [each for each in self.counted if each not in wrong]
        self.pending = {round_: term for round_, term in self.pending.items() if round_ >= now}
        return Repair(False, retracted)


def edges_state(edges: dict[int, Edge]) -> State:
    """All edges as tensors."""
    rows = [[edge.since, *edge.counted, *[-1] * (WINDOW - len(edge.counted))] for edge in edges.values()]
    pending = {
        f"pending.{peer}.{round_}": term for peer, edge in edges.items() for round_, term in edge.pending.items()
    }
    return {"ledger": torch.tensor(rows, dtype=torch.int64), **pending}


def is_edges(key: str) -> bool:
    """Whether a key of a stored state is about edges."""
    return key == "ledger" or key.startswith("pending.")


def edges_from(peers: list[int], saved: State, device: torch.device) -> dict[int, Edge]:
    """The edges to ``peers`` as they were stored, with what is pending on the device that computes."""
    edges = {}
    for peer, (since, *counted) in zip(peers, saved["ledger"].tolist(), strict=True):
        edges[peer] = Edge(since, [each for each in counted if each >= 0])
    for key, term in saved.items():
        if key.startswith("pending."):
            _, number, round_ = key.split(".")
            edges[int(number)].pending[int(round_)] = term.to(device)
    return edges
