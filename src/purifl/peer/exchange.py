"""A round's exchange: send one's message to each neighbour until it has it, and wait for theirs until a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from purifl.peer.config import PeerConfig
from purifl.peer.deadline import Pace
from purifl.peer.journal import Journal
from purifl.peer.links import Link, LinkError
from purifl.peer.mailbox import Mailbox
from purifl.peer.messages import Answer, Message, Payload
from purifl.peer.transport import Identity

RETRY = 0.05
ATTEMPTS = 3
"""How often a message that a neighbour rejects is sent again."""


@dataclass(frozen=True)
class Outgoing:
    """What a peer says in a round: to each neighbour a header and the tensors."""

    round: int
    to: dict[int, tuple[bytes, Payload]]


class Exchange:
    """The traffic of one peer with its neighbours.

    An edge counts when the neighbour's message is here and its receipt for one's own, too.

    Attributes:
        links: The way to each neighbour.
        pace: How late each one usually is.
        outgoing: What is being said.
        receipts: Who has it, and since when.
        cut: Neighbours that are not listened to. They are heard on, but what they keep this peer waiting has an end.
        hurry: Seconds that one's own part of a round takes, which a neighbour gets at least; None after the last
            round, when whoever can be reached is waited for as long as can be, and nobody else for long.
    """

    def __init__(self, config: PeerConfig, identity: Identity, mail: Mailbox, journal: Journal) -> None:
        self._config, self._identity, self._mail, self._journal = config, identity, mail, journal
        self.neighbours = sorted(each.id for each in config.neighbours)
        timeout = config.patience.transfer
        self.links = {each.id: Link(identity, each.id, each.address, timeout) for each in config.neighbours}
        self.pace = {peer: Pace(config.patience) for peer in self.neighbours}
        self.outgoing: Outgoing | None = None
        self.receipts: dict[int, float] = {}
        self.cut: frozenset[int] = frozenset()
        self.hurry: float | None = 0.0
        self._previous: Outgoing | None = None
        self._gone: set[int] = set()
        self._answering: set[int] = set()
        self._unreached: set[int] = set()
        self._waited = dict.fromkeys(self.neighbours, 0.0)
        self._delivering: set[asyncio.Task[None]] = set()
        self._resending: dict[int, asyncio.Task[None]] = {}
        self._ready = time.monotonic()
        mail.late, mail.restarted = self._send_previous, self._send_again

    def open(self, round_: int, cut: frozenset[int]) -> None:
        """A round begins: its messages are wanted, and nobody has one's own yet."""
        self._mail.move(round_)
        self.receipts, self._gone, self._answering, self.cut = {}, set(), set(), cut
        self._ready = time.monotonic()

    def answered(self, peer: int) -> None:
        """A neighbour is there."""
        self._answering.add(peer)

    async def send(self, outgoing: Outgoing) -> None:
        """Begin to tell everybody; what was being said before is not any more, nor does it matter whom it reached."""
        await self.hush()
        self._unreached.clear()
        self._previous, self.outgoing = self.outgoing, outgoing
        for peer in self.neighbours:
            self._spawn(self._deliver(peer, outgoing))

    async def hush(self) -> None:
        """Say nothing more."""
        await _cancel(list(self._delivering))

    def forget(self) -> None:
        """Nothing that was said before can be asked for again."""
        self.outgoing = self._previous = None

    def settled(self, peer: int, round_: int) -> bool:
        """Whether nothing more is to be expected of a neighbour in this round."""
        if peer in self._gone or peer in self._mail.left or not self._identity.pins.of(peer):
            return True
        return peer in self.receipts and self._mail.held(peer, round_) is not None

    def counting(self, round_: int) -> dict[int, Message]:
        """The messages of the edges that count."""
        return {peer: message for peer, message in self._mail.all_held(round_).items() if peer in self.receipts}

    async def wait(self, settled: Callable[[int], bool], lost: Callable[[], bool]) -> bool:
        """Wait until all neighbours are settled, or each one's deadline has passed; False once all is ``lost``."""
        while not lost():
            now = time.monotonic()
            missing = [peer for peer in self.neighbours if not settled(peer)]
            left = max((self._deadline(peer) - (now - self._ready) for peer in missing), default=0.0)
            if left <= 0:
                return True
            await self.something(left)
            if self.cut.issuperset(missing):
                for peer in missing:
                    self._waited[peer] += time.monotonic() - now
        return False

    async def something(self, seconds: float) -> None:
        """Wait until something came, but not for longer."""
        self._mail.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._mail.changed.wait(), seconds)

    def _deadline(self, peer: int) -> float:
        answers, patience, own = peer in self._answering, self._config.patience, self.hurry or 0.0
        if peer in self.cut:  # nothing but its probation depends on it
            return min(self.pace[peer].deadline(own), max(patience.least, own), patience.most - self._waited[peer])
        if self.hurry is None:  # the last chance to agree: whoever is there may still be computing
            if peer in self._unreached:  # and who is not has finished
                return patience.least
            return 0.0 if self.pace[peer].down and not answers else patience.most
        return self.pace[peer].deadline(own, answers)

    def judge(self, round_: int, counted: dict[int, Message]) -> None:
        """Learn from a round how long to wait in the next: an edge lacks a receipt as it may lack a message."""
        for peer in self.neighbours:
            came, when = self._mail.arrived.get(peer, (-1, 0.0))
            if came >= round_ and (peer in self.receipts or peer in self._gone):
                complete = max(when, self.receipts.get(peer, when))
                self.pace[peer].heard(complete - self._ready if came == round_ else 0.0)
            elif peer not in counted:
                self.pace[peer].missed(peer in self._answering)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._delivering.add(task)
        task.add_done_callback(self._delivering.discard)

    async def _deliver(self, peer: int, outgoing: Outgoing) -> None:
        """Send a message until the neighbour has it or has no more use for it."""
        pause, rejected, problem = RETRY, 0, ""
        while rejected < ATTEMPTS:
            try:
                answer = await self._push(peer, outgoing)
            except LinkError as error:
                self._unreached.add(peer)
                self._mail.changed.set()
                self._journal.count_unreached(peer, error.reason.value)
                if str(error) != problem:
                    why = {"reason": error.reason.value, "detail": str(error)}
                    self._journal.note("not reached", logging.WARNING, neighbour=peer, **why)
                problem = str(error)
            else:
                if answer.status in {"held", "ahead"}:
                    if answer.status == "held":
                        self.receipts[peer] = time.monotonic()
                    else:
                        self._gone.add(peer)
                    self._mail.changed.set()
                    return
                if answer.status == "rejected":
                    rejected += 1
                    self._journal.note("was rejected", logging.WARNING, neighbour=peer, reason=answer.reason)
            pause = min(2 * pause, 1.0)
            await asyncio.sleep(pause)

    async def _push(self, peer: int, outgoing: Outgoing) -> Answer:
        header, payload = outgoing.to[peer]
        answer = await self.links[peer].push(header, payload)
        self._mail.saw(peer, answer.round)
        self._answering.add(peer)
        self._unreached.discard(peer)
        if answer.status == "held":
            self._journal.count_sent(peer, len(header) + sum(map(len, payload)))
        return answer

    def _send_again(self, peer: int) -> None:
        """A neighbour that was started anew has lost what it said it holds."""
        if peer in self.receipts and self.outgoing is not None and self._mail.open == self.outgoing.round:
            del self.receipts[peer]
            self._spawn(self._deliver(peer, self.outgoing))

    def _send_previous(self, peer: int) -> None:
        """A neighbour that is one round behind, after a restart perhaps, is given the message of that round again."""
        now = self._mail.open
        outgoing = self._previous if self.outgoing and self.outgoing.round == now else self.outgoing
        resending = self._resending.get(peer)
        if outgoing is None or outgoing.round != now - 1 or (resending and not resending.done()):
            return
        self._resending[peer] = asyncio.ensure_future(self._resend(peer, outgoing))

    async def _resend(self, peer: int, outgoing: Outgoing) -> None:
        pause, until = RETRY, time.monotonic() + self._config.patience.transfer
        while time.monotonic() < until and self._mail.open <= outgoing.round + 1:
            try:
                await self._push(peer, outgoing)
                return
            except LinkError:
                pause = min(2 * pause, 1.0)
                await asyncio.sleep(pause)

    async def redial(self) -> None:
        """Connect anew with the next message: certificates have changed."""
        for link in self.links.values():
            await link.close()

    async def stop(self) -> None:
        """Hang up."""
        await _cancel([*self._delivering, *self._resending.values()])
        await self.redial()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
