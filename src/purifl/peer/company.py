"""Where the others are: whether a peer was left behind, and what those say who went on."""

from __future__ import annotations

from purifl.peer.mailbox import Mailbox
from purifl.peer.messages import Message
from purifl.peer.participant import Participant

BEHIND = 2
"""So many rounds behind most of the others, a peer has lost them: messages of one round ahead still reach it."""


class Company:
    """The neighbours that a peer listens to, which decide by majority: a few cannot lead it astray."""

    def __init__(self, me: Participant, mail: Mailbox) -> None:
        self._me, self._mail = me, mail

    def _listened(self) -> list[int]:
        """The neighbours that are not cut and have not left."""
        near = sorted(self._me.seat.neighbours)
        return [peer for peer in near if not self._me.has_cut(peer) and peer not in self._mail.left]

    def lost(self) -> bool:
        """Whether most of them are rounds ahead."""
        listened = self._listened()
        ahead = [peer for peer in listened if self._mail.positions.get(peer, 0) >= self._me.round + BEHIND]
        return 2 * len(ahead) > len(listened)

    def middle(self) -> int:
        """The round that most of them have reached, short of the last; one's own where none is left."""
        known = sorted(self._mail.positions.get(peer, 0) for peer in self._listened()) or [self._me.round]
        return min(known[(len(known) - 1) // 2], self._me.seat.experiment.rounds - 1)

    def messages(self, round_: int) -> dict[int, Message]:
        """The messages of a round, once most of them have sent theirs."""
        listened = self._listened()
        held = {peer: message for peer, message in self._mail.all_held(round_).items() if peer in listened}
        return held if 2 * len(held) > len(listened) else {}
