"""What can go wrong on a network, as an enumeration, and how each of it is brought about."""

import asyncio
import contextlib
import errno
import json
import math
import random
import socket
from datetime import UTC, datetime, timedelta
from enum import Enum

import grpc
import torch
from federations import node, reached

from purifl.peer.identity import KeyPair, name_of, new_authority, new_peer
from purifl.peer.links import LinkError
from purifl.peer.messages import Layout, Reject, digest_of
from purifl.peer.transport import SERVICE


class Lost(Enum):
    """What a fault costs."""

    NOTHING = "nothing: models are those of the undisturbed run"
    ROUNDS = "some rounds of some edges: accuracy stays within 2 points"


class Fault(Enum):
    """A fault: what it costs, and under which reason whatever was dropped is counted."""

    KILLED = (Lost.NOTHING, None)
    TWO_KILLED = (Lost.ROUNDS, None)
    KILLED_IN_CHECKPOINT = (Lost.NOTHING, None)
    LINK_CUT = (Lost.ROUNDS, None)
    SLOW_PEER = (Lost.ROUNDS, None)
    RECEIPT_LOST = (Lost.NOTHING, None)
    DUPLICATED = (Lost.NOTHING, None)
    REORDERED = (Lost.NOTHING, Reject.ROUND)
    REPLAYED = (Lost.NOTHING, Reject.ROUND)
    TRUNCATED = (Lost.NOTHING, Reject.SIZE)
    BIT_FLIPPED = (Lost.NOTHING, Reject.DIGEST)
    OVERSIZED = (Lost.NOTHING, Reject.SIZE)
    NOT_A_NUMBER = (Lost.NOTHING, Reject.NOT_FINITE)
    INFINITE = (Lost.NOTHING, Reject.NOT_FINITE)
    WRONG_SHAPE = (Lost.NOTHING, Reject.LAYOUT)
    WRONG_SIZE = (Lost.NOTHING, Reject.SIZE)
    WRONG_ROUND = (Lost.NOTHING, Reject.ROUND)
    WRONG_FEDERATION = (Lost.NOTHING, Reject.FEDERATION)
    WRONG_SENDER = (Lost.NOTHING, Reject.SENDER)
    UNKNOWN_CERTIFICATE = (Lost.NOTHING, Reject.CERTIFICATE)
    EXPIRED_CERTIFICATE = (Lost.NOTHING, None)
    SELF_SIGNED_CERTIFICATE = (Lost.NOTHING, None)
    PLAINTEXT = (Lost.NOTHING, None)
    CONNECTION_FLOOD = (Lost.NOTHING, None)
    TRICKLE = (Lost.NOTHING, Reject.SLOW)
    FULL_DISK = (Lost.NOTHING, None)
    CLOCK_OFF = (Lost.NOTHING, None)

    def __init__(self, lost, reason):
        self.lost, self.reason = lost, reason

    def __new__(cls, *args):  # members with equal values stay apart
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member


DISTURBED = range(2, 5)
"""The rounds in which messages are disturbed."""


class Scene:
    """A federation under a fault: its peers as they live, and what runs beside them."""

    def __init__(self, network, fault):
        self.network, self.fault, self.others = network, fault, []
        if fault is Fault.CLOCK_OFF:
            self._clocks_off()
        self.nodes = [node(network, peer) for peer in network.peers]
        self.port = int(network.config(0).listen.rpartition(":")[2])
        self.lives = {}
        for name in (fault.name.lower(), "disturb"):
            if hasattr(self, name):
                getattr(self, name)()
                break
        for peer in network.peers:
            if peer not in self.lives:
                self.lives[peer] = self.nodes[peer].run()

    async def _die_and_return(self, peer, round_, away=0.1):
        task = asyncio.ensure_future(self.nodes[peer].run())
        await reached(self.nodes[peer], round_)
        await asyncio.sleep(random.Random(peer).random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(away)
        self.nodes[peer] = node(self.network, peer)
        await self.nodes[peer].run()

    def killed(self):
        self.lives[1] = self._die_and_return(1, 3)

    def two_killed(self):
        self.lives[1] = self._die_and_return(1, 3)
        self.lives[2] = self._die_and_return(2, 3, 0.15)

    def killed_in_checkpoint(self):
        folder = self.nodes[1].store.folder
        commit = folder._commit

        def die(new, name):
            if name == "checkpoint.safetensors" and self.nodes[1].me.round == 4:
                new.write_bytes(new.read_bytes()[:100])
                raise _KilledError
            commit(new, name)

        folder._commit = die

        async def live():
            with contextlib.suppress(_KilledError):
                await self.nodes[1].run()
                raise AssertionError("the peer was not killed")
            self.nodes[1] = node(self.network, 1)
            await self.nodes[1].run()

        self.lives[1] = live()

    def link_cut(self):
        for one, other in ((0, 1), (1, 0)):
            self._through(one, other, lambda round_, push: _unreachable() if round_ in DISTURBED else push())

    def slow_peer(self):
        compute = self.nodes[2]._compute

        async def slowly(work):
            await asyncio.sleep(0.15)
            return await compute(work)

        self.nodes[2]._compute = slowly

    def receipt_lost(self):
        lost = set()

        async def lose(round_, push):
            answer = await push()
            if round_ in DISTURBED and round_ not in lost:
                lost.add(round_)
                raise LinkError("the receipt was lost")
            return answer

        self._through(0, 1, lose)

    def duplicated(self):
        async def twice(round_, push):
            await push()
            return await push()

        self._through(0, 1, twice)

    def reordered(self):
        link, sent = self.nodes[0].exchange.links[1], []
        push = link.push

        async def older_after(header, payload):
            answer = await push(header, payload)
            sent.append((header, payload))
            if len(sent) > 2:
                await push(*sent[-3])
            return answer

        link.push = older_after

    replayed = reordered

    def _through(self, one, other, change):
        """Change how messages go from one peer to another."""
        link = self.nodes[one].exchange.links[other]
        push = link.push

        async def changed(header, payload):
            return await change(json.loads(header)["round"], lambda: push(header, payload))

        link.push = changed

    def disturb(self):
        """The first attempt at each message from 0 to 1 in some rounds is damaged; the next is right."""
        damage = _DAMAGES.get(self.fault)
        if damage is None:
            self._intrude()
            return
        link, done = self.nodes[0].exchange.links[1], set()
        frames = link.frames

        def damaged(header, payload):
            said = json.loads(header)
            if said["round"] in DISTURBED and said["round"] not in done:
                done.add(said["round"])
                header, damaged_payload = damage(said, bytearray(b"".join(payload)))
                header, payload = json.dumps(header).encode(), (bytes(damaged_payload),)
            return frames(header, payload)

        link.frames = damaged

    def _intrude(self):
        authority = self.network._authority()
        federation = self.network.federation
        expired = datetime.now(UTC) - timedelta(days=10)
        strangers = {
            Fault.UNKNOWN_CERTIFICATE: lambda: new_peer(authority, federation, 9, 10),
            Fault.EXPIRED_CERTIFICATE: lambda: new_peer(authority, federation, 1, 1, expired),
            Fault.SELF_SIGNED_CERTIFICATE: lambda: new_peer(new_authority(federation), federation, 1, 10),
            Fault.PLAINTEXT: lambda: None,
        }
        if self.fault in strangers:
            self.others.append(self._knock(strangers[self.fault]()))

    async def _knock(self, pair):
        """Somebody who must not get in tries to, again and again."""
        await reached(self.nodes[0], 1)
        refusals = 0
        while True:
            async with self.channel(pair) as channel:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await channel.stream_unary(f"/{SERVICE}/Push")(iter([b"{}"]), timeout=2)
                    raise AssertionError("a stranger was let in")
                refusals += 1
            self.refusals = refusals
            await asyncio.sleep(0.05)

    def channel(self, pair):
        if pair is None:
            return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        roots = (self.network.folder(0) / "peer.crt").read_bytes()
        credentials = grpc.ssl_channel_credentials(roots, pair.key_pem, pair.pem)
        name = name_of(self.network.federation, 0)
        options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options)

    def connection_flood(self):
        async def flood():
            await reached(self.nodes[0], 1)
            sockets = []
            try:
                for _ in range(400):
                    one = socket.socket()
                    one.setblocking(False)
                    sockets.append(one)
                    with contextlib.suppress(BlockingIOError):
                        one.connect(("127.0.0.1", self.port))
                    await asyncio.sleep(0.001)
                await asyncio.sleep(60)
            finally:
                for one in sockets:
                    one.close()

        self.others.append(flood())

    def trickle(self):
        """Peer 3's key in other hands: a message that never ends, beside the true ones, which are not kept waiting."""
        folder = self.network.folder(3)
        pair = KeyPair.read(folder / "peer.key", folder / "peer.crt")
        mail = self.nodes[0].mail
        mail._timeout = 0.3

        async def drops(size):
            header, pieces = self.nodes[3].exchange.outgoing.to[0]
            payload = b"".join(pieces)
            yield json.dumps(json.loads(header) | {"round": mail.open + 1}).encode()
            for k in range(size):
                yield payload[k : k + 1]
                await asyncio.sleep(0.05)

        async def drip():
            await reached(self.nodes[0], 3)
            self.nodes[3].exchange.links[0].push = self._held_back(self.nodes[3].exchange.links[0].push)
            async with self.channel(pair) as channel:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await channel.stream_unary(f"/{SERVICE}/Push")(drops(1000), timeout=2)
            self.hold.set()
            await asyncio.sleep(60)

        self.hold = asyncio.Event()
        self.others.append(drip())

    def _held_back(self, push):
        async def later(header, payload):
            await self.hold.wait()
            return await push(header, payload)

        return later

    def full_disk(self):
        folder, failures = self.nodes[1].store.folder, iter(range(3))
        save = folder.save

        def full(state, *rest):
            if int(state["round"]) == 3 and next(failures, None) is not None:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(state, *rest)

        folder.save = full

    def _clocks_off(self):
        """Certificates made by clocks an hour off, for peers that believe their own."""
        authority, federation = self.network._authority(), self.network.federation
        for peer, hours in ((1, 1), (2, -1)):
            pair = new_peer(authority, federation, peer, 10, datetime.now(UTC) + timedelta(hours=hours))
            folder = self.network.folder(peer)
            pair.write(folder / "peer.key", folder / "peer.crt")
            for other in self.network.peers:
                if other != peer:
                    (self.network.folder(other) / "neighbours" / f"{peer}.crt").write_bytes(pair.pem)


class _KilledError(BaseException):
    """The process is gone."""


async def _unreachable():
    raise LinkError("the cable is cut")


def _flipped(header, payload):
    payload[len(payload) // 2] ^= 4
    return header, payload


def _numbers(value):
    def put(header, payload):
        length = len(payload) // 8 - 100
        payload[-4 * length : -4 * length + 4] = torch.tensor([value]).numpy().tobytes()
        return header | {"digest": digest_of([payload])}, payload

    return put


def _other_shape(header, payload):
    length = bytes(payload).split(b'"shape":[')[1].split(b"]")[0]
    payload = bytes(payload).replace(b"[" + length + b"]", b"[" + str(int(length) + 1).encode() + b"]", 1)
    return header | {"digest": digest_of([payload])}, payload


def _other_size(header, payload):
    payload = b"".join(Layout.of(7).write({"theta": torch.zeros(7), "gamma": torch.zeros(7)}))
    return header | {"digest": digest_of([payload]), "size": len(payload)}, payload


_DAMAGES = {
    Fault.TRUNCATED: lambda header, payload: (header, payload[:-5]),
    Fault.BIT_FLIPPED: _flipped,
    Fault.OVERSIZED: lambda header, payload: (header, payload + bytes(5)),
    Fault.NOT_A_NUMBER: _numbers(math.nan),
    Fault.INFINITE: _numbers(math.inf),
    Fault.WRONG_SHAPE: _other_shape,
    Fault.WRONG_SIZE: _other_size,
    Fault.WRONG_ROUND: lambda header, payload: (header | {"round": header["round"] + 9}, payload),
    Fault.WRONG_FEDERATION: lambda header, payload: (header | {"federation": "another"}, payload),
    Fault.WRONG_SENDER: lambda header, payload: (header | {"sender": 2}, payload),
}
