"""gRPC over mutual TLS 1.3: who may connect, and how little of anything they may use.

Handlers take and return raw bytes, since messages have a format of their own (:mod:`purifl.peer.messages`): there is no
code to generate. That TLS 1.2 cannot be agreed upon, for which :mod:`purifl.peer` sees, is tried on the running server
before any neighbour is let in (:func:`refuses_tls12`), and the version of each connection is looked at again.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from cryptography import x509

from purifl.errors import ConfigError, PeerError
from purifl.peer.config import PeerConfig
from purifl.peer.identity import KeyPair, Pins, check_dates, fingerprint
from purifl.peer.messages import FRAME_LIMIT, Answer, Reject, RejectedError

SERVICE = "purifl.Peer"
HANDSHAKE_MS = 5000
IDLE_MS = 30_000
_GRACE, _TAKEOVER = 2.0, 30.0
"""Seconds for calls that are under way when the certificate changes, and for the address to be free again."""

STREAMS = 4
"""Calls that one connection may have open at a time, and one neighbour over all its connections."""


class Identity:
    """A peer's key and certificate, and whom it accepts; files are read again when they change."""

    def __init__(self, config: PeerConfig) -> None:
        self.config = config
        for name in ("authority", "certificate", "key"):
            if not getattr(config, name).is_file():
                raise ConfigError(
                    name, str(getattr(config, name)),
                    "there is no such file; without certificates a peer does not start (purifl network create)",
                )  # fmt: skip
        self.pins = Pins({each.id: each.certificate for each in config.neighbours}, config.revoked)
        self._changes = 0
        self._read()
        check_dates(self.pair.certificate, "certificate")

    def _read(self) -> None:
        seen = [path.stat().st_mtime_ns for path in (self.config.key, self.config.certificate)]
        self.pair = KeyPair.read(self.config.key, self.config.certificate)
        self.authority, self._seen = self.config.authority.read_bytes(), seen

    def refresh(self) -> int:
        """Read what changed, own certificate or pins, and say how often that happened so far.

        What is half written is left for later.
        """
        changed = self.pins.refresh()
        with suppress(ConfigError, OSError):
            paths = (self.config.key, self.config.certificate)
            if [path.stat().st_mtime_ns for path in paths] != self._seen:
                self._read()
                changed = True
        self._changes += changed
        return self._changes

    def who(self, pem: bytes) -> int:
        """The neighbour, or oneself, whose pinned certificate this is."""
        certificate = x509.load_pem_x509_certificate(pem)
        if self.pins.is_revoked(certificate):
            raise RejectedError(Reject.REVOKED, f"certificate {fingerprint(certificate)[:16]} was revoked")
        if certificate == self.pair.certificate:
            return self.config.id
        owner = self.pins.owner(certificate)
        if owner is None:
            said = certificate.subject.rfc4514_string()[:80]
            raise RejectedError(
                Reject.CERTIFICATE, f"{said}, fingerprint {fingerprint(certificate)[:16]}, is pinned for no neighbour"
            )
        return owner


class Service(Protocol):
    """What a server does with what comes in."""

    async def push(self, peer: int, frames: AsyncIterator[bytes]) -> Answer:
        """A neighbour's message."""

    def status(self, peer: int) -> bytes:
        """What is said to a neighbour, or to oneself, about how things stand."""

    def refused(self, reason: Reject, detail: str) -> None:
        """Somebody was not let in."""


class Server(grpc.GenericRpcHandler):
    """Listens for neighbours."""

    def __init__(self, identity: Identity, service: Service) -> None:
        self._identity, self._service = identity, service
        self._server: grpc.aio.Server | None = None
        self._calls = Counter[int]()
        self._served = identity.pair.certificate

    async def start(self) -> int:
        """Listen; the port, after making sure that TLS 1.2 is refused there."""
        config = self._identity.config
        port = await self._listen()
        host = config.listen.rpartition(":")[0]
        reachable = host if host not in {"0.0.0.0", "[::]"} else "localhost"
        if not await asyncio.to_thread(refuses_tls12, reachable.strip("[]"), port, config.certificate, config.key):
            await self.stop()
            raise PeerError("this build of gRPC accepts TLS 1.2 whatever it is told; a peer speaks TLS 1.3 only")
        return port

    async def renew(self) -> None:
        """Show one's new certificate, if there is one: to whoever calls from now on.

        gRPC could be told of it during a handshake, but then frees what other handshakes are just using. So another
        server takes the place of this one. Who calls in between, or is cut short, calls again.
        """
        if self._server is None or self._identity.pair.certificate == self._served:
            return
        closing = asyncio.ensure_future(self._server.stop(_GRACE))
        until = time.monotonic() + _TAKEOVER
        while True:
            await asyncio.sleep(0.01)
            try:
                await self._listen()
                break
            except PeerError:
                if time.monotonic() > until:
                    raise
        await closing

    async def _listen(self) -> int:
        config, pair, server = self._identity.config, self._identity.pair, self._build()
        credentials = grpc.ssl_server_credentials([(pair.key_pem, pair.pem)], self._identity.authority, True)
        try:
            port = server.add_secure_port(config.listen, credentials)
        except RuntimeError as error:
            reason = str(error).partition("; set GRPC_VERBOSITY")[0]
            raise PeerError(f"listen: {config.listen} cannot be used: {reason}") from None
        await server.start()
        self._server, self._served = server, pair.certificate
        return port

    async def stop(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            await self._server.stop(0.5)

    def _build(self) -> grpc.aio.Server:
        neighbours = len(self._identity.config.neighbours)
        server = grpc.aio.server(
            maximum_concurrent_rpcs=STREAMS * (neighbours + 2),
            options=[
                ("grpc.max_receive_message_length", FRAME_LIMIT),
                ("grpc.max_metadata_size", 1 << 13),
                ("grpc.max_concurrent_streams", STREAMS),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.max_allowed_incoming_connections", 16 * (neighbours + 2)),
                ("grpc.so_reuseport", 0),
            ],
        )
        server.add_generic_rpc_handlers((self,))
        return server

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 - gRPC's own
        """The handler of a method."""
        if handler_call_details.method == f"/{SERVICE}/Push":
            return grpc.stream_unary_rpc_method_handler(self._push)
        if handler_call_details.method == f"/{SERVICE}/Status":
            return grpc.stream_unary_rpc_method_handler(self._status)  # called before anything was sent
        return None

    async def _push(self, frames: AsyncIterator[bytes], context: Any) -> bytes:  # noqa: ANN401
        peer = await self._admit(context)
        if self._calls[peer] >= STREAMS:
            self._service.refused(Reject.BUSY, f"peer {peer} has {STREAMS} calls open")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS} calls are open already")
        self._calls[peer] += 1
        try:
            return (await self._service.push(peer, frames)).frame()
        finally:
            self._calls[peer] -= 1

    async def _status(self, _: AsyncIterator[bytes], context: Any) -> bytes:  # noqa: ANN401
        return self._service.status(await self._admit(context))

    async def _admit(self, context: Any) -> int:  # noqa: ANN401
        """Who is calling; anyone but a neighbour is sent away before a byte of the call is read."""
        about = context.auth_context()
        self._identity.refresh()
        try:
            if about.get("ssl_tls_version", [b"TLSv1.3"])[0] != b"TLSv1.3":
                raise RejectedError(Reject.PROTOCOL, "not TLS 1.3")
            return self._identity.who(about["x509_pem_cert"][0])
        except RejectedError as refusal:
            self._service.refused(refusal.reason, refusal.detail)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))
            raise AssertionError from None  # abort does not return


def refuses_tls12(host: str, port: int, certificate: Path, key: Path) -> bool:
    """Whether a server turns away a client that has the right certificate and speaks nothing newer than TLS 1.2."""
    try:
        with tls_socket(host, port, certificate, key, ssl.TLSVersion.TLSv1_2):
            return False
    except (ssl.SSLError, ConnectionError):
        return True


@contextmanager
def tls_socket(host: str, port: int, certificate: Path, key: Path, version: ssl.TLSVersion) -> Iterator[ssl.SSLSocket]:
    """A connection as gRPC makes them, whoever is at its other end: for finding out, and for nothing to be sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate, key)
    with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain) as safe:
        yield safe
