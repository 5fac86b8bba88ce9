"""Who gets in, and over what."""

import asyncio
import contextlib
import socket
import ssl
import threading

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from federations import federation, node, play

from purifl.errors import ConfigError, PeerError
from purifl.peer.identity import check_dates, new_authority, new_peer
from purifl.peer.links import Link, LinkError, dial
from purifl.peer.transport import SERVICE, STREAMS, Identity, Server, refuses_tls12, tls_socket


def served(network, check):
    """Run a check while peer 0 listens."""

    async def story():
        peer = node(network, 0)
        await peer.server.start()
        try:
            return await check(peer)
        finally:
            await peer.server.stop()

    return play(story())


def port_of(network):
    return int(network.config(0).listen.rpartition(":")[2])


@pytest.fixture
def network(tmp_path):
    return federation(tmp_path, clients=2)


def test_tls_1_2_is_refused_and_1_3_is_not(network):
    def connect(version):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = version
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(network.folder(1) / "peer.crt", network.folder(1) / "peer.key")
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port_of(network)), 5) as plain, context.wrap_socket(plain) as safe:
            return safe.version()

    async def check(_):
        assert await asyncio.to_thread(connect, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(connect, ssl.TLSVersion.TLSv1_2)

    served(network, check)


def test_the_probe_notices_a_server_that_speaks_tls_1_2(network):
    folder = network.folder(0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "peer.crt", folder / "peer.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with context.wrap_socket(connection, server_side=True) as safe:
                safe.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        assert not refuses_tls12("127.0.0.1", listening.getsockname()[1], folder / "peer.crt", folder / "peer.key")


def test_a_server_that_cannot_refuse_tls_1_2_does_not_start(network, monkeypatch):
    monkeypatch.setattr("purifl.peer.transport.refuses_tls12", lambda *_: False)
    with pytest.raises(PeerError, match=r"TLS 1\.3 only"):
        play(Server(Identity(network.config(0)), None).start())


def test_a_neighbour_with_another_certificate_than_the_pinned_one_is_not_spoken_to(network):
    stranger = new_peer(network._authority(), network.federation, 0, 10)
    (network.folder(1) / "neighbours" / "0.crt").write_bytes(stranger.pem)

    async def check(peer):
        link = Link(Identity(network.config(1)), 0, network.config(0).listen, 5)
        with pytest.raises(LinkError, match="not the one pinned"):
            await link.push(b"{}", b"")
        await link.close()

    served(network, check)


@pytest.mark.parametrize("missing", ["peer.crt", "peer.key", "authority.crt"])
def test_without_certificates_a_peer_does_not_start(missing, network):
    (network.folder(0) / missing).unlink()
    with pytest.raises(ConfigError, match="without certificates a peer does not start"):
        node(network, 0)


def test_an_expired_certificate_is_refused_in_words(network):
    from datetime import UTC, datetime, timedelta

    past = datetime.now(UTC) - timedelta(days=9)
    pair = new_peer(network._authority(), network.federation, 0, 2, past)
    pair.write(network.folder(0) / "peer.key", network.folder(0) / "peer.crt")
    with pytest.raises(ConfigError, match=r"expired .* purifl network renew"):
        node(network, 0)
    with pytest.raises(ConfigError, match="set the clock"):
        check_dates(pair.certificate, "certificate", past - timedelta(days=3))


def test_keys_are_their_owners_alone(network):
    for peer in network.peers:
        assert (network.folder(peer) / "peer.key").stat().st_mode & 0o077 == 0
        assert network.folder(peer).stat().st_mode & 0o077 == 0


def test_a_key_of_another_certificate_is_refused(network):
    other = new_authority("other")
    other.write(network.folder(0) / "peer.key", network.folder(0) / "elsewhere.crt")
    with pytest.raises(ConfigError, match="not for the key"):
        node(network, 0)


@pytest.mark.parametrize("method", ["Push", "Status"])
def test_one_neighbour_cannot_use_up_the_calls_of_another(method, tmp_path):
    network = federation(tmp_path, clients=3)
    greedy, other = Identity(network.config(1)), Identity(network.config(2))
    address = network.config(0).listen

    async def nothing():
        await asyncio.sleep(60)
        yield b""

    async def check(peer):
        channels = [dial(greedy, 0, address, list(greedy.pins.of(0))) for _ in range(len(network.peers) + 1)]
        calls = [
            channel.stream_unary(f"/{SERVICE}/{method}")(nothing()) for channel in channels for _ in range(STREAMS)
        ]
        async with asyncio.timeout(10):
            while sum(call.done() for call in calls) < len(calls) - STREAMS:
                await asyncio.sleep(0.01)
        if method == "Push":
            refused = [await call.code() for call in calls if call.done()]
            assert set(refused) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert peer.journal.rejected["busy"] == len(refused)
        link = Link(other, 0, address, 5)
        assert (await link.push(b"{}", b"")).status == "rejected"
        for channel in channels:
            await channel.close()
        await link.close()

    served(network, check)


def test_a_new_certificate_is_shown_while_others_are_connecting(network):
    def shown():
        config = network.config(1)
        with tls_socket("127.0.0.1", port_of(network), config.certificate, config.key, ssl.TLSVersion.TLSv1_3) as safe:
            return safe.getpeercert(binary_form=True)

    async def often(seen):
        while True:
            with contextlib.suppress(OSError):  # nobody listens for a moment
                seen.append(await asyncio.to_thread(shown))

    async def check(peer):
        seen, before = [], peer.identity.pair.certificate.public_bytes(Encoding.DER)
        knocking = [asyncio.ensure_future(often(seen)) for _ in range(3)]
        while before not in seen:
            await asyncio.sleep(0.01)
        network.renew(0)
        peer.identity.refresh()
        await peer.server.renew()
        after = await asyncio.to_thread(shown)
        for task in knocking:
            task.cancel()
        await asyncio.gather(*knocking, return_exceptions=True)
        assert after == peer.identity.pair.certificate.public_bytes(Encoding.DER) != before
        assert set(seen) <= {before, after}

    served(network, check)


def test_who_dialled_before_a_certificate_was_renewed_gets_through_without_waiting_for_the_next_round(network):
    async def check(peer):
        link = Link(Identity(network.config(1)), 0, network.config(0).listen, 5)
        await link.push(b"{}", b"")
        network.renew(0)
        peer.identity.refresh()
        await peer.server.renew()
        async with asyncio.timeout(30):
            while True:
                try:
                    await link.push(b"{}", b"")
                    break
                except LinkError:
                    await asyncio.sleep(0.05)
        await link.close()

    served(network, check)
