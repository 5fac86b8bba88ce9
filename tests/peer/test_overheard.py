"""What gRPC writes to standard error about those it turned away is counted, and put in words."""

import os
import sys
import time
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from federations import federation, node, play

from purifl.peer.identity import new_authority, new_peer
from purifl.peer.links import Link, LinkError, Unreached, dial
from purifl.peer.messages import Reject
from purifl.peer.overheard import overhearing, refusal
from purifl.peer.transport import SERVICE, Identity


def test_lines_of_libraries_are_told_and_those_of_python_go_on(capfd):
    told = []
    with overhearing(told.append):
        os.write(2, b"I1115 ssl.cc:1] one\n\nanother \xff line")
        sys.stderr.write("own\n")
    os.write(2, b"later\n")
    assert told == ["I1115 ssl.cc:1] one", r"another \xff line"]
    assert capfd.readouterr().err == "own\nlater\n"


def test_standard_error_is_as_it_was_after_an_error(capfd):
    before = sys.stderr
    with pytest.raises(ValueError, match="wrong"), overhearing(lambda _: None):
        raise ValueError("wrong")
    assert sys.stderr is before
    os.write(2, b"there\n")
    assert capfd.readouterr().err == "there\n"


LINE = "I1 2 3 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: error:1000007d:SSL routines:"


def test_lines_about_other_things_are_no_refusals():
    assert refusal("W1 tcp.cc:3] something else") is None
    assert refusal(LINE + "OPENSSL_internal:SOMETHING_NEW: x") == (
        Reject.HANDSHAKE,
        "1000007d:SSL routines:OPENSSL_internal:SOMETHING_NEW: x",
    )


def test_a_peers_own_trial_of_an_old_tls_is_no_refusal_and_a_strangers_is(tmp_path):
    peer = node(federation(tmp_path, clients=2), 0)
    peer.overheard(LINE + "OPENSSL_internal:NO_SHARED_CIPHER: x")
    assert not peer.journal.rejected
    peer.overheard(LINE + "OPENSSL_internal:NO_SHARED_CIPHER: x")
    assert peer.journal.rejected == {Reject.PROTOCOL.value: 1}


STRANGERS = {
    "expired": (Reject.EXPIRED, Unreached.OWN_DATES),
    "of another authority": (Reject.CERTIFICATE, Unreached.NOT_ACCEPTED),
    "plaintext": (Reject.PROTOCOL, None),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_who_fails_the_handshake_is_counted_and_knows_why(stranger, tmp_path):
    """Both ends say it in words: the one that refuses, and the one that is refused."""
    network, (reason, unreached) = federation(tmp_path, clients=2), STRANGERS[stranger]
    folder, identity = network.folder(1), Identity(network.config(1))
    if stranger == "expired":
        pair = new_peer(network._authority(), network.federation, 1, 2, datetime.now(UTC) - timedelta(days=9))
    else:
        pair = new_peer(new_authority(network.federation), network.federation, 1, 9)
    pair.write(folder / "peer.key", folder / "peer.crt")
    identity.refresh()

    async def story():
        peer = node(network, 0)
        with overhearing(peer.overheard):
            await peer.server.start()
            try:
                return peer.journal, await knock()
            finally:
                await peer.server.stop()

    async def knock():
        address = network.config(0).listen
        if unreached is None:
            async with grpc.aio.insecure_channel(address) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.stream_unary(f"/{SERVICE}/Push")(iter([b"{}"]), timeout=5)
            return None
        link = Link(identity, 0, address, 5)
        try:
            await link.push(b"{}", ())
        except LinkError as error:
            return error
        finally:
            await link.close()

    journal, error = play(story())
    until = time.monotonic() + 5
    while not journal.rejected and time.monotonic() < until:
        time.sleep(0.01)
    assert set(journal.rejected) == {reason.value}
    if unreached is not None:
        assert error.reason is unreached


def test_a_neighbour_whose_certificate_has_expired_is_called_so(tmp_path):
    network = federation(tmp_path, clients=2)
    peer, folder = node(network, 0), network.folder(0)
    pair = new_peer(network._authority(), network.federation, 0, 2, datetime.now(UTC) - timedelta(days=9))
    pair.write(folder / "peer.key", folder / "peer.crt")
    (network.folder(1) / "neighbours" / "0.crt").write_bytes(pair.pem)
    peer.identity.refresh()

    async def story():
        await peer.server.start()
        link = Link(Identity(network.config(1)), 0, network.config(0).listen, 5)
        try:
            await link.push(b"{}", ())
        finally:
            await link.close()
            await peer.server.stop()

    with pytest.raises(LinkError, match="needs a new one") as caught:
        play(story())
    assert caught.value.reason is Unreached.EXPIRED


def test_why_a_neighbour_is_not_reached_is_told_apart(tmp_path):
    network = federation(tmp_path, clients=2)
    identity = Identity(network.config(1))
    with pytest.raises(LinkError) as caught:
        dial(identity, 0, network.config(0).listen, [])
    assert caught.value.reason is Unreached.NONE_LEFT

    async def nobody_there():
        link = Link(identity, 0, network.config(0).listen, 5)
        try:
            await link.push(b"{}", ())
        finally:
            await link.close()

    with pytest.raises(LinkError) as caught:
        play(nobody_there())
    assert caught.value.reason is Unreached.UNREACHABLE
