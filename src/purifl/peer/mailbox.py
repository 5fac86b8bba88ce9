"""What neighbours sent: at most two messages of each are kept, of the round that is open and the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from purifl.peer.identity import Pins, signed_by
from purifl.peer.journal import Journal
from purifl.peer.messages import (
    Answer,
    Assembly,
    Expected,
    Header,
    Message,
    Reject,
    RejectedError,
    statement,
)


class Mailbox:
    """Receives messages, and says what became of them.

    Args:
        expected: What a message must be.
        neighbours: From whom.
        journal: Where refusals are counted.
        pins: Whose signatures messages must carry; none are asked for if not given.
        timeout: Seconds that one message may take to come in.

    Attributes:
        open: The round whose messages are wanted; that of the next is accepted, too.
        positions: The latest round that each neighbour was seen in.
        arrived: When the first message of the open round came, by neighbour; late ones included.
        changed: Set whenever something came.
        late: Called with a neighbour that is one round behind.
        restarted: Called with a neighbour that has forgotten what it was sent.
        left: Neighbours that said goodbye.
    """

    def __init__(
        self, expected: Expected, neighbours: list[int], journal: Journal, pins: Pins | None, timeout: float
    ) -> None:
        self._expected, self._journal, self._pins, self._timeout = expected, journal, pins, timeout
        self._held: dict[int, dict[int, Message]] = {peer: {} for peer in neighbours}
        self._taken: dict[int, tuple[int, str]] = {}
        self._streams: dict[tuple[int, int], asyncio.Task[Any]] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self.open = 0
        self.positions: dict[int, int] = {}
        self.arrived: dict[int, tuple[int, float]] = {}
        self.changed = asyncio.Event()
        self.late: Callable[[int], None] = lambda peer: None
        self.restarted: Callable[[int], None] = lambda peer: None
        self._boots: dict[int, str] = {}
        self.left: set[int] = set()

    def held(self, peer: int, round_: int) -> Message | None:
        """A neighbour's message of a round, if it came."""
        return self._held[peer].get(round_)

    def all_held(self, round_: int) -> dict[int, Message]:
        """All messages of a round that came."""
        return {peer: held[round_] for peer, held in self._held.items() if round_ in held}

    def move(self, open_: int) -> None:
        """From now on messages of ``open_`` are wanted; earlier ones are gone, those still coming in as well."""
        self.open = open_
        for stream in [task for (_, round_), task in self._streams.items() if round_ < open_]:
            self._given_up.add(stream)
            stream.cancel()
        for held in self._held.values():
            for round_ in [each for each in held if not open_ <= each <= open_ + 1]:
                del held[round_]

    def close(self, round_: int, counted: dict[int, Message]) -> None:
        """The round is taken with these messages, and whoever sent one may be told so even later."""
        self._taken = {peer: (round_, message.header.digest) for peer, message in counted.items()}
        self.move(round_ + 1)

    def saw(self, peer: int, round_: int) -> None:
        """A neighbour is known to be in a round."""
        self.positions[peer] = max(round_, self.positions.get(peer, 0))

    async def receive(self, peer: int, frames: AsyncIterator[bytes]) -> Answer:
        """Take in one message; of two about the same round the earlier is given up, so that none can block the next."""
        reading = asyncio.ensure_future(self._receive(peer, frames))
        try:
            return await asyncio.wait_for(reading, self._timeout)
        except TimeoutError:
            return self._reject(peer, RejectedError(Reject.SLOW, f"not complete after {self._timeout:g} s"))
        except RejectedError as refusal:
            return self._reject(peer, refusal)
        except asyncio.CancelledError:
            if reading not in self._given_up:
                raise
            return Answer(status="behind", round=self.open)
        finally:
            self._given_up.discard(reading)
            self.changed.set()

    def _reject(self, peer: int, refusal: RejectedError) -> Answer:
        self._journal.reject(refusal.reason, refusal.detail, peer)
        return Answer(status="rejected", round=self.open, reason=refusal.reason.value)

    async def _receive(self, peer: int, frames: AsyncIterator[bytes]) -> Answer:
        first = await anext(aiter(frames), b"")
        header = Header.read(first)
        self._expected.check(header, peer)
        if header.kind == "leave":
            self.left.add(peer)
            return Answer(status="held", round=self.open)
        self.left.discard(peer)
        self.saw(peer, header.round)
        if self._boots.setdefault(peer, header.boot) != header.boot:
            self._boots[peer], self.positions[peer] = header.boot, header.round
            self.restarted(peer)
        if (answer := self._unwanted(peer, header)) is not None:
            return answer
        message = await self._assemble(peer, header, frames)
        self._check_signature(peer, header)
        if (answer := self._unwanted(peer, header)) is not None:  # time has passed
            return answer
        self._held[peer][header.round] = message
        self.arrived[peer] = header.round, time.monotonic()
        self._journal.count_received(peer, len(first) + header.size)
        return Answer(status="held", round=self.open)

    async def _assemble(self, peer: int, header: Header, frames: AsyncIterator[bytes]) -> Message:
        key, task = (peer, header.round), asyncio.current_task()
        earlier = self._streams.get(key)
        if earlier is not None:
            self._given_up.add(earlier)
            earlier.cancel()
        assert task is not None
        self._streams[key] = task
        try:
            assembly = Assembly(self._expected, header)
            async for chunk in frames:
                assembly.add(chunk)
            return assembly.finish()
        finally:
            if self._streams.get(key) is task:
                del self._streams[key]

    def _unwanted(self, peer: int, header: Header) -> Answer | None:
        """The answer to a message that is not taken in: it is here already, too late or too early."""
        held = self._held[peer].get(header.round)
        if held is not None:
            if held.header.digest != header.digest:
                raise RejectedError(Reject.CONFLICT, f"another message of round {header.round} came before")
            return Answer(status="held", round=self.open)
        if header.round < self.open:
            if header.round == self.open - 1:
                self.arrived[peer] = header.round, time.monotonic()
                if self.positions[peer] == header.round:  # or it is past that, and only helping this one
                    self.late(peer)
            if self._taken.get(peer) == (header.round, header.digest):
                return Answer(status="held", round=self.open)
            self._journal.reject(Reject.ROUND, f"{header.round}, now {self.open}", peer)
            return Answer(status="ahead", round=self.open)
        if header.round > self.open + 1:
            self._journal.reject(Reject.ROUND, f"{header.round}, now {self.open}", peer)
            return Answer(status="behind", round=self.open)
        return None

    def _check_signature(self, peer: int, header: Header) -> None:
        if self._pins is None:
            return
        said = statement(header.federation, header.experiment, header.round, header.sender, header.digest)
        signature = bytes.fromhex(header.signature)
        if not any(signed_by(certificate, said, signature) for certificate in self._pins.of(peer)):
            raise RejectedError(Reject.SIGNATURE, "its tensors are not signed by its certificate")
