"""The way to a neighbour: a channel to the very certificate that is pinned, and why it cannot be had."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from enum import StrEnum

import grpc
import grpc.aio
from cryptography import x509

from purifl.errors import ConfigError
from purifl.peer.identity import check_dates, name_of, to_pem
from purifl.peer.messages import HEADER_LIMIT, Answer, Payload, RejectedError
from purifl.peer.transport import SERVICE, Identity, tls_socket


class Unreached(StrEnum):
    """Why a message did not get to a neighbour."""

    OWN_DATES = "own certificate expired"  # or not valid yet
    EXPIRED = "certificate expired"  # the neighbour's
    NOT_PINNED = "certificate not pinned"
    NONE_LEFT = "no certificate left"  # revoked, or its file is gone
    NOT_ACCEPTED = "not accepted"  # this peer's certificate, by the neighbour
    SLOW = "slow"
    UNREACHABLE = "unreachable"


class LinkError(Exception):
    """A neighbour could not be reached, or not in time."""

    def __init__(self, text: str, reason: Unreached = Unreached.UNREACHABLE) -> None:
        self.reason = reason
        super().__init__(text)


def dial(identity: Identity, peer: int, address: str, pins: list[x509.Certificate]) -> grpc.aio.Channel:
    """A channel to a peer at whose end one of these very certificates must be."""
    if not pins:
        text = f"no certificate of peer {peer} is left to accept: revoked, or its file is gone"
        raise LinkError(text, Unreached.NONE_LEFT)
    pair = identity.pair
    roots = b"".join(to_pem(each) for each in pins)
    credentials = grpc.ssl_channel_credentials(roots, pair.key_pem, pair.pem)
    return grpc.aio.secure_channel(
        address,
        credentials,
        options=[
            ("grpc.ssl_target_name_override", name_of(identity.config.federation, peer)),
            ("grpc.max_receive_message_length", 1 << 20),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


class Link:
    """The way to one neighbour."""

    def __init__(self, identity: Identity, peer: int, address: str, timeout: float) -> None:
        self._identity, self.peer, self._address, self._timeout = identity, peer, address, timeout
        self._channel: grpc.aio.Channel | None = None
        self._pinned: list[x509.Certificate] = []

    async def push(self, header: bytes, payload: Payload) -> Answer:
        """Send a message; what the neighbour says to it."""
        if len(header) > HEADER_LIMIT:
            raise LinkError(f"a header of {len(header)} bytes would be refused")
        if self._channel is None:
            self._pinned = list(self._identity.pins.of(self.peer))
            self._channel = dial(self._identity, self.peer, self._address, self._pinned)
        call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = self._channel.stream_unary(f"/{SERVICE}/Push")
        try:
            return Answer.read(await call(self.frames(header, payload), timeout=self._timeout))
        except grpc.aio.AioRpcError as error:
            problem = await explained(error, self._identity, self._address)
            if problem.reason is Unreached.NOT_PINNED:
                await self._take_up_pins()
            raise problem from None
        except RejectedError as error:
            raise LinkError(f"an answer that is none: {error}") from None

    def frames(self, header: bytes, payload: Payload) -> Iterator[bytes]:
        """A message as it is sent."""
        yield header
        yield from payload

    async def _take_up_pins(self) -> None:
        """Dial again if other certificates are pinned than when this channel was made: the neighbour's may be new."""
        self._identity.refresh()
        if list(self._identity.pins.of(self.peer)) != self._pinned:
            await self.close(self._timeout)  # other calls, which would be cancelled, end by themselves until then

    async def close(self, grace: float | None = None) -> None:
        """Hang up; the next message dials again, with the certificates as they are then."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(grace)


async def explained(error: grpc.aio.AioRpcError, identity: Identity, address: str) -> LinkError:
    """A failed call in words that an operator can act on."""
    details, code = error.details() or "", error.code()
    try:
        check_dates(identity.pair.certificate, "certificate")
    except ConfigError as reason:
        return LinkError(f"this peer's {reason}", Unreached.OWN_DATES)
    if "certificate has expired" in details:
        return LinkError("its certificate has expired; it needs a new one (purifl network renew)", Unreached.EXPIRED)
    if "CERTIFICATE_VERIFY_FAILED" in details:
        text = "its certificate is not the one pinned here; has it a new one that was not sent?"
        return LinkError(text, Unreached.NOT_PINNED)
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return LinkError(f"it does not accept this peer: {details}", Unreached.NOT_ACCEPTED)
    if "Socket closed" in details and await asyncio.to_thread(hangs_up, identity, address):
        text = "it hangs up when it sees this peer's certificate: of another authority, or not valid by its clock"
        return LinkError(text, Unreached.NOT_ACCEPTED)
    slow = code == grpc.StatusCode.DEADLINE_EXCEEDED
    silent = code == grpc.StatusCode.UNAVAILABLE and "failed to connect" in details
    text = f"nobody answers at {address}" if silent else f"{code.name.lower()}: {details}"[:300]
    return LinkError(text, Unreached.SLOW if slow else Unreached.UNREACHABLE)


def hangs_up(identity: Identity, address: str) -> bool:
    """Whether a server agrees on TLS 1.3 and goes away at the sight of one's certificate, without a word as to why.

    With TLS 1.3 a client sends its certificate last, and has no answer to it but that the server begins to speak.
    """
    host, _, port = address.rpartition(":")
    config = identity.config
    version = ssl.TLSVersion.TLSv1_3
    try:
        with tls_socket(host.strip("[]"), int(port), config.certificate, config.key, version) as connection:
            return not connection.recv(1)
    except ConnectionError:
        return False
    except OSError as error:  # an alert, which says so, or a time-out
        return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


async def ask(identity: Identity, peer: int, address: str, certificates: list[x509.Certificate]) -> bytes:
    """A peer's status."""
    channel = dial(identity, peer, address, certificates)
    call: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/{SERVICE}/Status")
    try:
        return await call(b"", timeout=5)
    except grpc.aio.AioRpcError as error:
        raise await explained(error, identity, address) from None
    finally:
        await channel.close()
