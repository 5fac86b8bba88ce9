"""A peer's records in agreement with its neighbours': a round that only one end counted is put right."""

from __future__ import annotations

from collections.abc import Mapping

from purifl.peer.edges import Edge, edges_from, edges_state
from purifl.peer.journal import Journal
from purifl.peer.mailbox import Mailbox
from purifl.peer.messages import Message
from purifl.peer.participant import Participant
from purifl.peer.witness import Witness
from purifl.state import State


class Ledger:
    """The edges of one peer.

    Args:
        me: Whose records they are about.
        mail: Knows who has left.
        journal: Where repairs are noted.
        witness: Compares what common neighbours said, if that is wanted.
    """

    def __init__(self, me: Participant, mail: Mailbox, journal: Journal, witness: Witness | None) -> None:
        self._me, self._mail, self._journal, self._witness = me, mail, journal, witness
        self.edges = {peer: Edge() for peer in sorted(me.seat.neighbours)}

    def take(self, held: Mapping[int, Message], messages: Mapping[int, Message]) -> None:
        """Come to terms about past rounds, from all messages held, then take this one with those that count."""
        self._reconcile(held)
        round_, before = self._me.round, self._me.cut.clone()
        for peer, term in self._me.step(messages).items():
            self.edges[peer].count(round_, term)
        if self._me.forgets:  # a neighbour that did not hear of being cut learns it from ``since``: the record is empty
            for k in (self._me.cut & ~before).nonzero()[:, 0].tolist():
                self.edges[self._me.ids[k]].restart(round_)

    def conclude(self, held: Mapping[int, Message]) -> None:
        """Come to terms about all rounds, after the last."""
        self._reconcile(held)
        self._me.settle()

    def begin_anew(self) -> None:
        """The records are empty, and count from now on."""
        self.edges = {peer: Edge(self._me.round) for peer in self.edges}

    def state(self) -> State:
        """What has to be on disk of it."""
        return edges_state(self.edges)

    def restore(self, saved: State) -> None:
        """Continue from what was on disk."""
        self.edges = edges_from(list(self.edges), saved, self._me.device)

    def _reconcile(self, held: Mapping[int, Message]) -> None:
        for peer in self._mail.left:
            if self.edges[peer].counted:
                self.edges[peer].restart(self._me.round)
                self._me.forget(peer)
                self._journal.note("neighbour left", neighbour=peer)
        for peer, message in held.items():
            self._reconcile_with(peer, message)
        if self._witness is not None:
            for liar in self._witness.compare(held):
                self._me.expose(liar)

    def _reconcile_with(self, peer: int, message: Message) -> None:
        edge, header = self.edges[peer], message.header
        forget, retracted = edge.reconcile(header.since, header.counted, self._me.round)
        if forget:
            self._me.forget(peer)
            self._journal.note("record begun anew", neighbour=peer, since=edge.since)
        if retracted:
            self._me.take_off(peer, retracted)
            self._journal.count_repaired(peer, len(retracted))
            self._journal.note("round taken back", neighbour=peer, rounds=len(retracted))
