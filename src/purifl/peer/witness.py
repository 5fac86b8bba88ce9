"""Comparing what a common neighbour said: a peer that signed two different messages of a round is exposed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from purifl.peer.identity import signed_by
from purifl.peer.journal import Journal
from purifl.peer.messages import WITNESSED, Expected, Message, Statement, statement
from purifl.peer.transport import Identity


class Witness:
    """Signs what this peer says, remembers what its neighbours signed, and compares with what others heard."""

    def __init__(self, identity: Identity, expected: Expected, journal: Journal) -> None:
        self._identity, self._expected, self._journal = identity, expected, journal
        self._heard: dict[int, Statement] = {}

    def sign(self, round_: int, digest: str) -> str:
        """This peer's signature of what it says in a round."""
        return self._identity.pair.sign(self._text(round_, self._identity.config.id, digest)).hex()

    def statements(self, to: int) -> tuple[Statement, ...]:
        """What the others signed in the round before, to be told to a neighbour."""
        return tuple(said for peer, said in self._heard.items() if peer != to)[:WITNESSED]

    def compare(self, held: Mapping[int, Message]) -> set[int]:
        """The neighbours that signed something else for somebody else in the round before."""
        before, self._heard = self._heard, {peer: _statement(message) for peer, message in held.items()}
        exposed = set()
        for witness, message in held.items():
            for said in message.header.witnessed:
                if self._contradicts(said, before.get(said.sender)):
                    self._journal.note("equivocation", logging.WARNING, neighbour=said.sender, witness=witness)
                    exposed.add(said.sender)
        return exposed

    def _contradicts(self, said: Statement, heard: Statement | None) -> bool:
        if heard is None or said.round != heard.round or said.digest == heard.digest:
            return False
        text = self._text(said.round, said.sender, said.digest)
        pins = self._identity.pins.of(said.sender)
        return any(signed_by(each, text, bytes.fromhex(said.signature)) for each in pins)

    def _text(self, round_: int, sender: int, digest: str) -> bytes:
        return statement(self._expected.federation, self._expected.experiment, round_, sender, digest)


def _statement(message: Message) -> Statement:
    header = message.header
    return Statement(sender=header.sender, round=header.round, digest=header.digest, signature=header.signature)
