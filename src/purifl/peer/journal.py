"""What a peer says about itself: structured log lines, and numbers for Prometheus."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter as Tally
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from purifl.errors import PeerError
from purifl.peer.messages import Reject

log = logging.getLogger("purifl.peer")

LINES = 5
"""So many lines a minute say why something was rejected, for each reason; whoever sends rubbish fills no disk."""
_MINUTE = 60.0


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how serious, what happened, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Journal:
    """Counts and logs what happens to one peer.

    Attributes:
        rejected: Messages and callers turned away, by reason.
    """

    def __init__(self, peer: int, neighbours: list[int]) -> None:
        self.peer, self.rejected = peer, Tally[str]()
        self.sent, self.received = Tally[int](), Tally[int]()
        self.missed, self.repaired = Tally[int](), Tally[int]()
        self._logged: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"purifl_{name}", text, labels, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"purifl_{name}", text, labels, registry=self.registry)

        self.round = gauge("round", "Rounds done")
        self.accuracy = gauge("test_accuracy", "Accuracy of this peer's model on its test split")
        self.seconds = gauge("round_seconds", "Length of the last round")
        self.expiry = gauge("certificate_expiry_seconds", "Time until this peer's certificate expires")
        self.lag = gauge("lag_seconds", "How late a neighbour's messages come, smoothed", "neighbour")
        self.trust = gauge("trust", "Trust in a neighbour", "neighbour")
        self.cut = gauge("cut", "Whether a neighbour is cut", "neighbour")
        self.position = gauge("neighbour_round", "The round a neighbour is in, as it says", "neighbour")
        self._sent = counter("sent_bytes", "Payload sent", "neighbour")
        self._received = counter("received_bytes", "Payload received and accepted", "neighbour")
        self._missed = counter("missed_rounds", "Rounds taken without a neighbour", "neighbour")
        self._repaired = counter("repaired_rounds", "Rounds put right with a neighbour afterwards", "neighbour")
        self._rejected = counter("rejected", "Messages and callers turned away", "reason")
        self._unreached = counter("unreached", "Attempts to send that failed", "neighbour", "reason")
        self.rejoins = counter("rejoins", "Times this peer lost the others and went on from their models")
        for reason in Reject:
            self._rejected.labels(reason.value)
        for each in neighbours:
            for family in (self._sent, self._received, self._missed, self._repaired):
                family.labels(each)

    def serve(self, address: str) -> None:
        """Let Prometheus read at this address."""
        host, _, port = address.rpartition(":")
        try:
            start_http_server(int(port), host, self.registry)
        except OSError as error:
            raise PeerError(f"metrics: {address} cannot be used: {error}") from None

    def note(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        """Log something that happened."""
        log.log(level, event, extra={"fields": {"peer": self.peer, **fields}})

    def reject(self, reason: Reject, detail: str, neighbour: int | None = None) -> None:
        """Something was dropped: all of it is counted, and a few lines a minute are logged for each reason."""
        with self._lock:  # gRPC's refusals are overheard in a thread of their own
            self.rejected[reason.value] += 1
        self._rejected.labels(reason.value).inc()
        if self._seldom(reason.value):
            count = self.rejected[reason.value]
            self.note(
                "rejected", logging.WARNING, reason=reason.value, detail=detail, neighbour=neighbour, so_far=count
            )

    def quote(self, line: str) -> None:
        """Log a few lines a minute of what a library has to say."""
        if self._seldom("gRPC"):
            self.note("gRPC", logging.WARNING, detail=line[:500])

    def _seldom(self, what: str) -> bool:
        """Whether fewer lines than allowed were logged about something within this minute."""
        now = time.monotonic()
        with self._lock:
            began, lines = self._logged.get(what, (now, 0))
            began, lines = (now, 0) if now - began >= _MINUTE else (began, lines)
            self._logged[what] = began, lines + 1
        return lines < LINES

    def count_unreached(self, neighbour: int, reason: str) -> None:
        """A message did not get there."""
        self._unreached.labels(neighbour, reason).inc()

    def count_sent(self, neighbour: int, size: int) -> None:
        """Bytes went out."""
        self.sent[neighbour] += size
        self._sent.labels(neighbour).inc(size)

    def count_received(self, neighbour: int, size: int) -> None:
        """Bytes came in and were accepted."""
        self.received[neighbour] += size
        self._received.labels(neighbour).inc(size)

    def count_missed(self, neighbour: int) -> None:
        """A round was taken without a neighbour."""
        self.missed[neighbour] += 1
        self._missed.labels(neighbour).inc()

    def count_repaired(self, neighbour: int, rounds: int) -> None:
        """Rounds were put right."""
        self.repaired[neighbour] += rounds
        self._repaired.labels(neighbour).inc(rounds)
