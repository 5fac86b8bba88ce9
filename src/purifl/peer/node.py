"""A running peer: round after round it speaks, listens until a deadline, computes, and keeps what it has on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from torch import Tensor

from purifl.determinism import deterministic
from purifl.errors import PeerError
from purifl.metrics import Row
from purifl.peer.config import PeerConfig
from purifl.peer.deadline import Pace
from purifl.peer.edges import Edge, edges_from, edges_state
from purifl.peer.identity import SOON, signed_by
from purifl.peer.journal import Journal
from purifl.peer.mailbox import Mailbox
from purifl.peer.measure import Measure
from purifl.peer.messages import Answer, Expected, Header, Layout, Message, Reject, Statement, digest_of, statement
from purifl.peer.participant import Participant, Seat, participant
from purifl.peer.store import Store, WriteError
from purifl.peer.transport import Identity, Link, LinkError, Server

T = TypeVar("T")
RETRY = 0.05
ATTEMPTS = 3
"""How often a message that a neighbour rejects is sent again."""


@dataclass(frozen=True)
class Outgoing:
    """What a peer says in a round: to each neighbour a header and the tensors."""

    round: int
    to: dict[int, tuple[bytes, bytes]]


class Node:
    """One peer of a federation.

    Args:
        config: What it is told.
        seat: Its place in the experiment.
        measure: Tests its model.
        executor: Where it computes; a thread of its own if not given.
    """

    def __init__(self, config: PeerConfig, seat: Seat, measure: Measure, executor: Executor | None = None) -> None:
        self.config, self.experiment = config, seat.experiment
        self.identity = Identity(config)
        self.neighbours = sorted(each.id for each in config.neighbours)
        self.journal = Journal(config.id, self.neighbours)
        self.me: Participant = participant(seat)
        self.measure = measure
        layout = Layout.of(self.me.theta.shape[1])
        self.expected = Expected(config.federation, self.experiment.digest(), layout, self.me.step_size)
        signed = self.identity.pins if config.compare_digests else None
        self.mail = Mailbox(self.expected, self.neighbours, self.journal, signed, config.patience.transfer)
        self.mail.late, self.mail.restarted = self._send_previous, self._send_again
        self._boot = secrets.token_hex(8)
        self.server = Server(self.identity, self)
        timeout = config.patience.transfer
        self.links = {each.id: self.link(each.id, each.address, timeout) for each in config.neighbours}
        self.store = Store(config, self.experiment)
        self.edges = {peer: Edge() for peer in self.neighbours}
        self.pace = {peer: Pace(config.patience) for peer in self.neighbours}
        self.port = 0
        self._executor = executor or ThreadPoolExecutor(1)
        self._outgoing: Outgoing | None = None
        self._previous: Outgoing | None = None
        self._receipts: set[int] = set()
        self._gone: set[int] = set()
        self._answering: set[int] = set()
        self._digests: dict[int, Statement] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resending: dict[int, asyncio.Task[None]] = {}
        self._ready = self._started = time.monotonic()
        self._training = 0.0
        self._row: Row = {}

    def link(self, peer: int, address: str, timeout: float) -> Link:
        """The way to a neighbour."""
        return Link(self.identity, peer, address, timeout)

    # -- what the network asks ----------------------------------------------------------------------------------------

    async def push(self, peer: int, frames: AsyncIterator[bytes]) -> Answer:
        """A neighbour's message."""
        if peer not in self.edges:
            return Answer(status="rejected", round=self.me.round, reason=Reject.SENDER.value)
        self._answering.add(peer)
        return await self.mail.receive(peer, frames)

    def refused(self, reason: Reject, detail: str) -> None:
        """Somebody was not let in."""
        self.journal.reject(reason, detail)

    def status(self, peer: int) -> bytes:
        """To this peer's own certificate everything, to a neighbour the round alone."""
        brief: Row = {"id": self.config.id, "round": self.me.round, "rounds": self.experiment.rounds}
        if peer != self.config.id:
            return json.dumps(brief).encode()
        journal = self.journal
        neighbours = {
            str(each): {
                "trust": self.me.trust_in(each),
                "cut": bool(self.me.cut[self.me.place[each]]),
                "round": self.mail.positions.get(each, 0),
                "lag": self.pace[each].mean,
                "down": self.pace[each].down,
                "sent": journal.sent[each],
                "received": journal.received[each],
                "missed": journal.missed[each],
                "repaired": journal.repaired[each],
            }
            for each in self.neighbours
        }
        last = {"accuracy": self._row.get("test_accuracy"), "rejected": dict(journal.rejected)}
        return json.dumps(brief | last | {"neighbours": neighbours}).encode()

    # -- the life of a peer -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """All rounds that are left, from where the disk has them."""
        await self._compute(self._begin)
        self.port = await self.server.start()
        if self.config.metrics is not None:
            self.journal.serve(self.config.metrics)
        self.journal.note("started", round=self.me.round, address=self.config.listen, port=self.port)
        try:
            while self.me.round < self.experiment.rounds:
                await self._round()
            await self._close()
        finally:
            await self._stop()

    def _begin(self) -> None:
        saved = self.store.load()
        if saved is None:
            self.me.begin()
        elif saved["ids"].tolist() == self.me.ids:
            kept = {key: x for key, x in saved.items() if not key.startswith(("ledger", "pending."))}
            self.me.load_state_dict(kept)
            self.edges = edges_from(self.neighbours, saved)
        else:  # another neighbourhood: go on alone to the next round, so that no round is spoken of twice
            self.me.adopt(saved)
            self.me.step({})
            self._restart_edges()
            self.journal.note("neighbourhood changed", neighbours=self.neighbours, round=self.me.round)
            self._keep_alone()
        self.mail.move(self.me.round)

    def _keep_alone(self) -> None:
        row, _ = self.measure.read(self.me, self.me.cut, {}, {})
        self.store.commit([row | {"absent": True}], [], self._state(), time.monotonic() - self._started)

    async def _round(self) -> None:
        began = time.monotonic()
        await self._check_certificates()
        messages = await self._exchange()
        if messages is None:
            await self._rejoin()
            return
        held = self.mail.all_held(self.me.round)
        self.mail.close(self.me.round, messages)
        listened = time.monotonic()
        before, spoken = self.me.cut.clone(), self.me.round
        await self._compute(lambda: self._take(held, messages))
        self._training = time.monotonic() - listened
        seconds = {"exchange": listened - began, "compute": self._training}
        row, events = await self._compute(lambda: self.measure.read(self.me, before, messages, seconds))
        await self._keep([row], events)
        self._row |= {key: x for key, x in row.items() if x is not None}
        self._publish(spoken, messages, time.monotonic() - began)

    def _take(self, held: dict[int, Message], messages: dict[int, Message]) -> None:
        """Come to terms about past rounds, then take this one."""
        self._reconcile(held)
        round_ = self.me.round
        for peer, term in self.me.step(messages).items():
            self.edges[peer].count(round_, term)

    def _reconcile(self, held: dict[int, Message]) -> None:
        for peer in self.mail.left:
            if self.edges[peer].counted:
                self.edges[peer].restart(self.me.round)
                self.me.forget(peer)
                self.journal.note("neighbour left", neighbour=peer)
        for peer, message in held.items():
            edge, header = self.edges[peer], message.header
            forget, retracted = edge.reconcile(header.since, header.counted, self.me.round)
            if forget:
                self.me.forget(peer)
                self.journal.note("record begun anew", neighbour=peer, since=edge.since)
            if retracted:
                self.me.take_off(peer, retracted)
                self.journal.count_repaired(peer, len(retracted))
                self.journal.note("round taken back", neighbour=peer, rounds=len(retracted))
        if self.config.compare_digests:
            self._compare(held)

    def _compare(self, held: dict[int, Message]) -> None:
        """Neighbours say what others sent them in the round before; a signed contradiction exposes its signer."""
        before, self._digests = self._digests, {}
        for peer, message in held.items():
            header = message.header
            self._digests[peer] = Statement(
                sender=peer, round=header.round, digest=header.digest, signature=header.signature
            )
        for witness, message in held.items():
            for said in message.header.witnessed:
                ours = before.get(said.sender)
                if ours is None or said.round != ours.round or said.digest == ours.digest or said.sender == witness:
                    continue
                text = statement(*self._names, said.round, said.sender, said.digest)
                pins = self.identity.pins.of(said.sender)
                if any(signed_by(each, text, bytes.fromhex(_even(said.signature))) for each in pins):
                    self.journal.note("equivocation", logging.WARNING, neighbour=said.sender, witness=witness)
                    self.me.expose(said.sender)

    @property
    def _names(self) -> tuple[str, str]:
        return self.expected.federation, self.expected.experiment

    async def _close(self) -> None:
        """Say once more what was counted, so that the ends of every edge agree, and let the others hear it."""
        messages = await self._exchange()
        if messages is not None:
            held = self.mail.all_held(self.me.round)
            await self._compute(lambda: self._conclude(held))
            await self._keep([], [])
        unserved = [peer for peer in self.neighbours if peer not in self._receipts and not self.pace[peer].down]
        until = time.monotonic() + self.config.patience.least
        while unserved and time.monotonic() < until and any(peer not in self._receipts for peer in unserved):
            await asyncio.sleep(RETRY)
        await asyncio.sleep(2 * RETRY)
        trust = self.measure.trust(self.me)
        self.store.finish(trust, self.measure.histogram, time.monotonic() - self._started)
        self.journal.note("finished", accuracy=self._row.get("test_accuracy"))

    def _conclude(self, held: dict[int, Message]) -> None:
        self._reconcile(held)
        self.me.settle()

    async def _stop(self) -> None:
        tasks = [*self._tasks, *self._resending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self.links.values():
            await link.close()
        await self.server.stop()

    async def leave(self) -> None:
        """Say goodbye: neighbours forget what this peer contributed and do not wait for it."""
        saved = self.store.load()
        round_ = int(saved["round"]) if saved is not None else 0
        header = Header(
            federation=self._names[0], experiment=self._names[1], round=round_, sender=self.config.id,
            kind="leave", boot=self._boot, size=0, digest=digest_of(b""), scalars={},
        )  # fmt: skip
        try:
            for peer, link in self.links.items():
                try:
                    await link.push(header.frame(), b"")
                except LinkError as error:
                    self.journal.note("neighbour not told", logging.WARNING, neighbour=peer, reason=str(error))
        finally:
            for link in self.links.values():
                await link.close()

    # -- a round's exchange -------------------------------------------------------------------------------------------

    async def _exchange(self) -> dict[int, Message] | None:
        """Speak and listen; the messages that count, or None where the others are rounds ahead."""
        round_ = self.me.round
        self.mail.move(round_)
        self._receipts, self._gone, self._answering = set(), set(), set()
        self._ready = time.monotonic()
        wanted = self.me.waits_for
        if wanted:
            await self._until(lambda peer: peer not in wanted or self.mail.held(peer, round_) is not None)
        self._previous, self._outgoing = self._outgoing, self._speak()
        await self._cancel_deliveries()
        for peer in self.neighbours:
            self._spawn(self._deliver(peer, self._outgoing))
        if not await self._until(lambda peer: self._settled(peer, round_)):
            return None
        return {peer: message for peer, message in self.mail.all_held(round_).items() if peer in self._receipts}

    def _speak(self) -> Outgoing:
        """This round's messages, written once for all neighbours that hear the same."""
        round_, layout = self.me.round, self.expected.layout
        written: dict[int, tuple[bytes, str, str]] = {}
        to = {}
        for peer, gamma in self.me.speak(self.mail.all_held(round_)).items():
            if id(gamma) not in written:
                payload = layout.write({"theta": self.me.theta.cpu(), "gamma": gamma.cpu()})
                digest = digest_of(payload)
                written[id(gamma)] = payload, digest, self._sign(round_, digest)
            payload, digest, signature = written[id(gamma)]
            edge = self.edges[peer]
            header = Header(
                federation=self._names[0], experiment=self._names[1], round=round_, sender=self.config.id,
                boot=self._boot, size=len(payload), digest=digest, scalars={"trust": self.me.trust_in(peer)},
                since=edge.since, counted=tuple(each for each in edge.counted if each < round_), signature=signature,
                witnessed=tuple(said for other, said in self._digests.items() if other != peer)[:64],
            )  # fmt: skip
            to[peer] = header.frame(), payload
        return Outgoing(round_, to)

    def _sign(self, round_: int, digest: str) -> str:
        if not self.config.compare_digests:
            return ""
        return self.identity.pair.sign(statement(*self._names, round_, self.config.id, digest)).hex()

    def _settled(self, peer: int, round_: int) -> bool:
        """Whether nothing more is to be expected of a neighbour in this round."""
        if peer in self._gone or peer in self.mail.left or not self.identity.pins.of(peer):
            return True
        return peer in self._receipts and self.mail.held(peer, round_) is not None

    async def _until(self, settled: Callable[[int], bool]) -> bool:
        """Wait until all neighbours are settled, or each one's deadline has passed; False where the others are lost."""
        while True:
            waiting = [peer for peer in self.neighbours if not settled(peer)]
            if self._lost():
                return False
            spent = time.monotonic() - self._ready
            left = max((self._deadline(peer) - spent for peer in waiting), default=0.0)
            if left <= 0:
                return True
            self.mail.changed.clear()
            try:
                await asyncio.wait_for(self.mail.changed.wait(), left)
            except TimeoutError:
                continue

    def _deadline(self, peer: int) -> float:
        """Seconds to wait for a neighbour; after the last round there is no hurry, as long as it answers."""
        answers = peer in self._answering
        if answers and self.me.round >= self.experiment.rounds:
            return self.config.patience.most
        return self.pace[peer].deadline(self._training, answers)

    def _listened(self) -> list[int]:
        """The neighbours that are not cut and have not left."""
        return [p for p in self.neighbours if not self.me.cut[self.me.place[p]] and p not in self.mail.left]

    def _lost(self) -> bool:
        """Whether most of the neighbours listened to are two rounds ahead or more."""
        listened = self._listened()
        ahead = [peer for peer in listened if self.mail.positions.get(peer, 0) >= self.me.round + 2]
        return 2 * len(ahead) > len(listened)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel_deliveries(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, peer: int, outgoing: Outgoing) -> None:
        """Send a message until the neighbour has it or has no more use for it."""
        pause, rejected, problem = RETRY, 0, ""
        while rejected < ATTEMPTS:
            try:
                answer = await self._send(peer, outgoing)
            except LinkError as error:
                if str(error) != problem:
                    self.journal.note("not reached", logging.WARNING, neighbour=peer, reason=str(error))
                problem, pause = str(error), min(2 * pause, 1.0)
                await asyncio.sleep(pause)
                continue
            if answer.status == "held":
                self._receipts.add(peer)
                self.mail.changed.set()
                return
            if answer.status == "ahead":
                self._gone.add(peer)
                self.mail.changed.set()
                return
            if answer.status == "rejected":
                rejected += 1
                self.journal.note("was rejected", logging.WARNING, neighbour=peer, reason=answer.reason)
            pause = min(2 * pause, 1.0)
            await asyncio.sleep(pause)

    async def _send(self, peer: int, outgoing: Outgoing) -> Answer:
        header, payload = outgoing.to[peer]
        answer = await self.links[peer].push(header, payload)
        self.mail.saw(peer, answer.round)
        self._answering.add(peer)
        if answer.status == "held":
            self.journal.count_sent(peer, len(header) + len(payload))
        return answer

    def _send_previous(self, peer: int) -> None:
        """A neighbour that is one round behind, after a restart perhaps, is given the message of that round again."""
        outgoing = self._previous if self._outgoing and self._outgoing.round == self.mail.open else self._outgoing
        resending = self._resending.get(peer)
        if outgoing is None or outgoing.round != self.mail.open - 1 or (resending and not resending.done()):
            return
        self._resending[peer] = asyncio.ensure_future(self._resend(peer, outgoing))

    def _send_again(self, peer: int) -> None:
        """A neighbour that was started anew has lost what it said it holds."""
        if peer in self._receipts and self._outgoing is not None and self.mail.open == self._outgoing.round:
            self._receipts.discard(peer)
            self._spawn(self._deliver(peer, self._outgoing))

    async def _resend(self, peer: int, outgoing: Outgoing) -> None:
        pause, until = RETRY, time.monotonic() + self.config.patience.transfer
        while time.monotonic() < until and self.mail.open <= outgoing.round + 1:
            try:
                await self._send(peer, outgoing)
                return
            except LinkError:
                pause = min(2 * pause, 1.0)
                await asyncio.sleep(pause)

    # -- when the others are rounds ahead -----------------------------------------------------------------------------

    async def _rejoin(self) -> None:
        """Take up the round after the one that most neighbours are in, from the median of their models."""
        await self._cancel_deliveries()
        until = time.monotonic() + self.config.patience.first
        self.mail.move(self._middle() + 1)
        while not (models := self._models(self.mail.open)):
            if self._models(self.mail.open + 1) or self._middle() > self.mail.open + 1:
                self.mail.move(max(self.mail.open + 1, self._middle()))
                continue
            if time.monotonic() > until:
                raise PeerError("the neighbours went on without this peer, and cannot be heard; has the run ended?")
            self.mail.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.mail.changed.wait(), 1.0)
        left, there = self.me.round, self.mail.open
        await self._compute(lambda: self.me.rejoin(there, models))
        self._restart_edges()
        self._previous = self._outgoing = None
        self.journal.rejoins.inc()
        self.journal.note("rejoined", logging.WARNING, left=left, round=there, models=len(models))
        row, _ = await self._compute(lambda: self.measure.read(self.me, self.me.cut, {}, {}))
        self._row |= {key: x for key, x in row.items() if x is not None}
        away = [self.measure.skipped(each) for each in range(left + 1, there)]
        await self._keep([*away, row | {"absent": True}], [])

    def _middle(self) -> int:
        """The round that most neighbours have reached, short of the last."""
        known = sorted(self.mail.positions.get(peer, 0) for peer in self._listened())
        return min(known[(len(known) - 1) // 2], self.experiment.rounds - 1)

    def _models(self, round_: int) -> list[Tensor]:
        """The models of a round, once most neighbours have sent theirs."""
        listened, held = self._listened(), self.mail.all_held(round_)
        models = [message.tensors["theta"] for peer, message in held.items() if peer in listened]
        return models if 2 * len(models) > len(listened) else []

    def _restart_edges(self) -> None:
        self.edges = {peer: Edge(self.me.round) for peer in self.neighbours}

    # -- small things -------------------------------------------------------------------------------------------------

    async def _compute(self, work: Callable[[], T]) -> T:
        def computed() -> T:
            with deterministic(self.experiment.precision):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._executor, computed)

    def _state(self) -> dict[str, Tensor]:
        return self.me.state_dict() | edges_state(self.edges)

    async def _keep(self, rows: list[Row], events: list[Row]) -> None:
        """Store the round, and wait where the disk is full: nothing is said of a round that is not stored."""
        pause = RETRY
        while True:
            try:
                await self._compute(
                    lambda: self.store.commit(rows, events, self._state(), time.monotonic() - self._started)
                )
                return
            except WriteError as error:
                self.journal.note("cannot write", logging.ERROR, round=self.me.round, reason=str(error))
                pause = min(2 * pause, 5.0)
                await asyncio.sleep(pause)

    def _publish(self, round_: int, messages: dict[int, Message], seconds: float) -> None:
        """Note who was late or missing, and put the numbers where Prometheus finds them."""
        journal = self.journal
        for peer in self.neighbours:
            came, when = self.mail.arrived.get(peer, (-1, 0.0))
            if came >= round_:
                self.pace[peer].heard(when - self._ready if came == round_ else 0.0)
            if peer not in messages:
                journal.count_missed(peer)
                if came < round_:
                    self.pace[peer].missed(peer in self._answering)
            journal.trust.labels(peer).set(self.me.trust_in(peer))
            journal.cut.labels(peer).set(bool(self.me.cut[self.me.place[peer]]))
            journal.lag.labels(peer).set(self.pace[peer].mean or 0)
            journal.position.labels(peer).set(self.mail.positions.get(peer, 0))
        journal.round.set(self.me.round)
        journal.seconds.set(seconds)
        journal.accuracy.set(self._row.get("test_accuracy") or 0)
        missing = sorted(set(self.neighbours) - set(messages) - self.mail.left)
        journal.note("round", round=self.me.round, seconds=round(seconds, 4), missing=missing)

    async def _check_certificates(self) -> None:
        """Take up new certificates between rounds, and warn before one's own expires."""
        if self.identity.refresh():
            self.journal.note("certificates read again")
            for link in self.links.values():
                await link.close()
        left = self.identity.pair.certificate.not_valid_after_utc - datetime.now(UTC)
        self.journal.expiry.set(left.total_seconds())
        if left < SOON:
            self.journal.note("certificate expires", logging.WARNING, days=round(left.total_seconds() / 86400, 1))


def _even(digits: str) -> str:
    return digits if len(digits) % 2 == 0 else ""
