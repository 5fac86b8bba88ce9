"""A running peer: round after round it speaks, listens until a deadline, computes, and keeps what it has on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

from torch import Tensor

from purifl.determinism import deterministic
from purifl.errors import PeerError
from purifl.metrics import Row
from purifl.peer.company import Company
from purifl.peer.config import PeerConfig
from purifl.peer.edges import is_edges
from purifl.peer.exchange import RETRY, Exchange, Outgoing
from purifl.peer.identity import SOON
from purifl.peer.journal import Journal
from purifl.peer.ledger import Ledger
from purifl.peer.links import LinkError
from purifl.peer.mailbox import Mailbox
from purifl.peer.measure import Measure
from purifl.peer.messages import Answer, Expected, Header, Layout, Message, Payload, Reject, digest_of
from purifl.peer.overheard import OLD_TLS, refusal
from purifl.peer.participant import Participant
from purifl.peer.store import Store, WriteError
from purifl.peer.transport import Identity, Server
from purifl.peer.witness import Witness
from purifl.rows import are_finite

T = TypeVar("T")


class Node:
    """One peer of a federation.

    Args:
        config: What it is told.
        me: Its part of the experiment.
        measure: Tests its model.
        executor: Where it computes; a thread of its own if not given.
    """

    def __init__(self, config: PeerConfig, me: Participant, measure: Measure, executor: Executor | None = None) -> None:
        self.config, self.me, self.experiment = config, me, me.seat.experiment
        self.identity = Identity(config)
        self.neighbours = sorted(each.id for each in config.neighbours)
        self.journal = Journal(config.id, self.neighbours)
        self.measure = measure
        layout = Layout.of(self.me.theta.shape[1])
        self.expected = Expected(config.federation, self.experiment.digest(), layout, self.me.step_size)
        self.witness = Witness(self.identity, self.expected, self.journal) if config.compare_digests else None
        signed = self.identity.pins if self.witness else None
        self.mail = Mailbox(self.expected, self.neighbours, self.journal, signed, config.patience.transfer)
        self.company = Company(me, self.mail)
        self.exchange = Exchange(config, self.identity, self.mail, self.journal)
        self.server = Server(self.identity, self)
        self.store = Store(config, self.experiment)
        self.ledger = Ledger(me, self.mail, self.journal, self.witness)
        self.last: Row = {}
        self._dialled = 0
        self._trial_heard = False
        self._boot = secrets.token_hex(8)
        self._executor = executor or ThreadPoolExecutor(1)
        self._started = time.monotonic()

    # -- what the network asks ----------------------------------------------------------------------------------------

    async def push(self, peer: int, frames: AsyncIterator[bytes]) -> Answer:
        """A neighbour's message."""
        if peer not in self.neighbours:
            return Answer(status="rejected", round=self.me.round, reason=Reject.SENDER.value)
        self.exchange.answered(peer)
        return await self.mail.receive(peer, frames)

    def refused(self, reason: Reject, detail: str) -> None:
        """Somebody was not let in."""
        self.journal.reject(reason, detail)

    def overheard(self, line: str) -> None:
        """Something that gRPC itself says, the first refusal of an old TLS being that of this peer's own trial."""
        found = refusal(line)
        if found is None:
            self.journal.quote(line)
        elif found == OLD_TLS and not self._trial_heard:
            self._trial_heard = True
        else:
            self.refused(*found)

    def status(self, peer: int) -> bytes:
        """To this peer's own certificate everything, to a neighbour the round alone."""
        brief: Row = {"id": self.config.id, "round": self.me.round, "rounds": self.experiment.rounds}
        if peer != self.config.id:
            return json.dumps(brief).encode()
        near = {str(each): self._about(each) for each in self.neighbours}
        more = {"accuracy": self.last.get("test_accuracy"), "rejected": dict(self.journal.rejected)}
        return json.dumps(brief | more | {"neighbours": near}).encode()

    def _about(self, peer: int) -> Row:
        journal, pace = self.journal, self.exchange.pace[peer]
        counts = {key: getattr(journal, key)[peer] for key in ("sent", "received", "missed", "repaired")}
        trust, cut = self.me.trust_in(peer), self.me.has_cut(peer)
        round_ = self.mail.positions.get(peer, 0)
        return {"trust": trust, "cut": cut, "round": round_, "lag": pace.mean, "down": pace.down, **counts}

    # -- the life of a peer -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """All rounds that are left, from where the disk has them."""
        with self.store.alone():
            await self._run()

    async def _run(self) -> None:
        await self._compute(self._begin)
        port = await self.server.start()
        if self.config.metrics is not None:
            self.journal.serve(self.config.metrics)
        self.journal.note("started", round=self.me.round, address=self.config.listen, port=port)
        try:
            while self.me.round < self.experiment.rounds:
                await self._round()
            await self._close()
        finally:
            await self.exchange.stop()
            await self.server.stop()

    def _begin(self) -> None:
        saved = self.store.load()
        self._remember(self.store.folder.rows("metrics.jsonl"))
        if saved is None:
            self.me.begin()
        elif self.me.has_kept_its_place(saved):
            self.me.load_state_dict({key: x for key, x in saved.items() if not is_edges(key)})
            self.ledger.restore(saved)
        else:  # another neighbourhood: go on alone to the next round, so that no round is spoken of twice
            self.me.adopt(saved)
            self.me.step({})
            self.ledger.begin_anew()
            self.journal.note("neighbourhood changed", neighbours=self.neighbours, round=self.me.round)
            row, _ = self.measure.read(self.me, self.me.cut, {})
            self.store.commit([row | {"absent": True}], [], self._state(), self._seconds)
        self.mail.move(self.me.round)

    async def _round(self) -> None:
        began = time.monotonic()
        await self._check_certificates()
        if not await self._talk():
            await self._rejoin()
            return
        round_, before = self.me.round, self.me.cut.clone()
        messages, held = self.exchange.counting(round_), self.mail.all_held(round_)
        self.mail.close(round_, messages)
        listened = time.monotonic()
        await self._compute(lambda: self.ledger.take(held, messages))
        self.exchange.hurry = time.monotonic() - listened
        seconds = {"exchange": listened - began, "compute": self.exchange.hurry}
        row, events = await self._compute(lambda: self.measure.read(self.me, before, seconds))
        await self._keep([row], events)
        self.exchange.judge(round_, messages)
        self._publish(messages, time.monotonic() - began)

    async def _talk(self) -> bool:
        """Speak and listen; whether the others are still where this peer is."""
        round_ = self.me.round
        self.exchange.open(round_, frozenset(peer for peer in self.neighbours if self.me.has_cut(peer)))
        wanted = self.me.waits_for
        if wanted:
            await self.exchange.wait(
                lambda peer: peer not in wanted or bool(self.mail.held(peer, round_)), self.company.lost
            )
        heard = self.mail.all_held(round_)
        await self.exchange.send(await self._compute(lambda: self._speak(heard)))
        return await self.exchange.wait(lambda peer: self.exchange.settled(peer, round_), self.company.lost)

    async def _close(self) -> None:
        """Say once more what was counted, so that the ends of every edge agree, and let the others hear it."""
        self.exchange.hurry = None
        if await self._talk():
            held = self.mail.all_held(self.me.round)
            await self._compute(lambda: self.ledger.conclude(held))
            await self._keep([], [])
        await asyncio.sleep(2 * RETRY)
        self.store.finish(self.measure.trust(self.me), self.measure.histogram, self._seconds)
        self.journal.note("finished", accuracy=self.last.get("test_accuracy"))

    async def leave(self) -> None:
        """Say goodbye: neighbours forget what this peer contributed and do not wait for it."""
        with self.store.alone():
            await self._leave()

    async def _leave(self) -> None:
        saved = self.store.load()
        round_ = int(saved["round"]) if saved is not None else 0
        header = self._header(round_, kind="leave", size=0, digest=digest_of(()), scalars={})
        for peer, link in self.exchange.links.items():
            try:
                await link.push(header.frame(), ())
            except LinkError as error:
                self.journal.note("neighbour not told", logging.WARNING, neighbour=peer, reason=str(error))
        await self.exchange.stop()

    # -- what it says -------------------------------------------------------------------------------------------------

    def _speak(self, heard: dict[int, Message]) -> Outgoing:
        """This round's messages, having heard these, written once for all neighbours that hear the same."""
        if not are_finite(self.me.theta).all():
            raise PeerError(
                "its model is no longer finite, ruined by what it heard or learned; without its folder it begins anew, "
                "from its neighbours' models"
            )
        round_, layout = self.me.round, self.expected.layout
        written: dict[int, tuple[Payload, str, str]] = {}
        to = {}
        for peer, gamma in self.me.speak(heard).items():
            if id(gamma) not in written:
                payload = layout.write({"theta": self.me.theta.cpu(), "gamma": gamma.cpu()})
                digest = digest_of(payload)
                written[id(gamma)] = payload, digest, self.witness.sign(round_, digest) if self.witness else ""
            payload, digest, signature = written[id(gamma)]
            edge = self.ledger.edges[peer]
            header = self._header(
                round_, size=layout.size, digest=digest, scalars={"trust": self.me.trust_in(peer)},
                since=edge.since, counted=tuple(each for each in edge.counted if each < round_),
                signature=signature, witnessed=self.witness.statements(peer) if self.witness else (),
            )  # fmt: skip
            to[peer] = header.frame(), payload
        return Outgoing(round_, to)

    def _header(self, round_: int, **fields: object) -> Header:
        names = {"federation": self.expected.federation, "experiment": self.expected.experiment}
        own = {"round": round_, "sender": self.config.id, "boot": self._boot}
        return Header.model_validate({**names, **own, **fields})

    # -- when the others are rounds ahead -----------------------------------------------------------------------------

    async def _rejoin(self) -> None:
        """Take up the round after the one that most neighbours are in, from the median of their models."""
        await self.exchange.hush()
        until = time.monotonic() + self.config.patience.first
        self.mail.move(self.company.middle() + 1)
        while not (messages := self.company.messages(self.mail.open)):
            if self.company.messages(self.mail.open + 1) or self.company.middle() > self.mail.open + 1:
                self.mail.move(max(self.mail.open + 1, self.company.middle()))
                continue
            if time.monotonic() > until:
                raise PeerError("the neighbours went on without this peer, and cannot be heard; has the run ended?")
            await self.exchange.something(1.0)
        left, there = self.me.round, self.mail.open
        await self._compute(lambda: self.me.rejoin(there, messages))
        self.ledger.begin_anew()
        self.exchange.forget()
        self.journal.rejoins.inc()
        self.journal.note("rejoined", logging.WARNING, left=left, round=there, models=len(messages))
        row, _ = await self._compute(lambda: self.measure.read(self.me, self.me.cut, {}))
        away = [self.measure.skipped(each) for each in range(left + 1, there)]
        await self._keep([*away, row | {"absent": True}], [])

    # -- small things -------------------------------------------------------------------------------------------------

    async def _compute(self, work: Callable[[], T]) -> T:
        def computed() -> T:
            with deterministic(self.experiment.precision):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._executor, computed)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _state(self) -> dict[str, Tensor]:
        return self.me.state_dict() | self.ledger.state()

    async def _keep(self, rows: list[Row], events: list[Row]) -> None:
        """Store the round, and wait where the disk is full: nothing is said of a round that is not stored."""
        pause = RETRY
        while True:
            try:
                await self._compute(lambda: self.store.commit(rows, events, self._state(), self._seconds))
                break
            except WriteError as error:
                self.journal.note("cannot write", logging.ERROR, round=self.me.round, reason=str(error))
                pause = min(2 * pause, 5.0)
                await asyncio.sleep(pause)
        self._remember(rows)

    def _remember(self, rows: list[Row]) -> None:
        """The newest number of each kind, which is what the peer tells of itself."""
        for row in rows:
            self.last |= {key: x for key, x in row.items() if x is not None}

    def _publish(self, messages: dict[int, Message], seconds: float) -> None:
        """Note who was missing, and put the numbers where Prometheus finds them."""
        journal = self.journal
        for peer in self.neighbours:
            if peer not in messages:
                journal.count_missed(peer)
            journal.trust.labels(peer).set(self.me.trust_in(peer))
            journal.cut.labels(peer).set(self.me.has_cut(peer))
            journal.lag.labels(peer).set(self.exchange.pace[peer].mean or 0)
            journal.position.labels(peer).set(self.mail.positions.get(peer, 0))
        journal.round.set(self.me.round)
        journal.seconds.set(seconds)
        journal.accuracy.set(self.last.get("test_accuracy") or 0)
        missing = sorted(set(self.neighbours) - set(messages) - self.mail.left)
        journal.note("round", round=self.me.round, seconds=round(seconds, 4), missing=missing)

    async def _check_certificates(self) -> None:
        """Take up new certificates between rounds, and warn before one's own expires."""
        changes = self.identity.refresh()
        if changes != self._dialled:
            self._dialled = changes
            self.journal.note("certificates read again")
            await self.server.renew()
            await self.exchange.redial()
        left = self.identity.pair.certificate.not_valid_after_utc - datetime.now(UTC)
        self.journal.expiry.set(left.total_seconds())
        if left < SOON:
            self.journal.note("certificate expires", logging.WARNING, days=round(left.total_seconds() / 86400, 1))
