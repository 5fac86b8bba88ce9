"""Messages between peers: a versioned header and tensors, neither of which is believed before it is checked.

A message is a stream of frames. The first is the header, JSON of a fixed schema; the others are the pieces of one
safetensors file, whose every byte but the numbers is known in advance from the size of the model. The order of the
checks is that of their cost: certificate, header, federation and experiment, round, size, layout, digest, numbers.
Nothing is ever unpickled or evaluated, and no more is kept of a message than its header and the bytes that a message
of this federation has.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import torch
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save
from torch import Tensor

VERSION = 2
TENSORS = ("theta", "gamma")
"""What every message of a round carries, each a vector of length d."""

_STORED = tuple(sorted(TENSORS))
"""The order in which safetensors writes them."""

SCALARS = ("trust",)
"""What it says about the edge it travels over: how much the sender trusts the receiver."""

CHUNK = 1 << 20
HEADER_LIMIT = 1 << 15
FRAME_LIMIT = CHUNK + 1024
"""The largest frame that gRPC lets through."""

LARGEST = 1e15
"""No θ or γ is longer: a sum of ten thousand such vectors still has a square that float32 can hold."""

WITNESSED = 64
"""At most so many of the others' statements are told with a message."""

WINDOW = 8
"""The last so many rounds that an edge counted are told with each message."""


Payload = tuple[bytes, ...]
"""The tensors of a message as they are sent, in pieces: cut once for all neighbours."""


class Reject(StrEnum):
    """Why something from the network was dropped."""

    CERTIFICATE = "certificate"  # no neighbour's
    EXPIRED = "expired"
    REVOKED = "revoked"
    PROTOCOL = "protocol"  # not TLS 1.3
    HANDSHAKE = "handshake"  # TLS was not agreed upon for another reason
    HEADER = "header"
    VERSION = "version"
    SENDER = "sender"  # not whom the certificate names
    FEDERATION = "federation"
    EXPERIMENT = "experiment"
    ROUND = "round"
    SCALARS = "scalars"
    SIZE = "size"
    LAYOUT = "layout"  # other tensors, dtypes or shapes
    DIGEST = "digest"
    NOT_FINITE = "not finite"
    CONFLICT = "conflict"  # another message for the same round came before
    SIGNATURE = "signature"
    SLOW = "slow"
    BUSY = "busy"  # more calls at a time than one neighbour may have


class RejectedError(Exception):
    """A message that is dropped."""

    def __init__(self, reason: Reject, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else str(reason))


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Round = Annotated[int, Field(ge=0, lt=2**31)]
Peer = Annotated[int, Field(ge=0, lt=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Statement(_Strict):
    """That a peer sent tensors of this digest in a round, with its signature: what neighbours compare."""

    sender: Peer
    round: Round
    digest: Digest
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,100}$")]


class Header(_Strict):
    """The first frame of a message.

    Attributes:
        boot: Drawn when the sender was started: one that changed has forgotten what it was sent.
        since: The round from which on the sender's record of this edge counts.
        counted: The last rounds that the edge counted in, as the sender has it on disk.
        signature: Of :func:`statement`, where neighbours compare digests.
        witnessed: What the sender's other neighbours sent in the round before, where they do.
    """

    version: Literal[2] = 2
    federation: Annotated[str, Field(max_length=64)]
    experiment: Annotated[str, Field(max_length=64)]
    round: Round
    sender: Peer
    kind: Literal["round", "leave"] = "round"
    boot: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    size: Annotated[int, Field(ge=0, lt=2**40)]
    digest: Digest
    scalars: Annotated[dict[str, float], Field(max_length=len(SCALARS))]
    since: Round = 0
    counted: Annotated[tuple[Round, ...], Field(max_length=WINDOW)] = ()
    signature: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,100}$")] = ""
    witnessed: Annotated[tuple[Statement, ...], Field(max_length=WITNESSED)] = ()

    def frame(self) -> bytes:
        """The header as it is sent."""
        return self.model_dump_json().encode()

    @classmethod
    def read(cls, frame: bytes) -> Header:
        """The header in a frame from the network."""
        if len(frame) > HEADER_LIMIT:
            raise RejectedError(Reject.HEADER, f"{len(frame)} bytes")
        try:
            return cls.model_validate_json(frame)
        except ValidationError as error:
            reason = Reject.VERSION if _other_version(frame) else Reject.HEADER
            first = error.errors(include_input=False, include_url=False)[0]
            raise RejectedError(reason, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]) from None


def _other_version(frame: bytes) -> bool:
    try:
        header: Any = json.loads(frame)
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("version") != VERSION


def statement(federation: str, experiment: str, round_: int, sender: int, digest: str) -> bytes:
    """What a peer signs about the tensors it sends in a round, the same to everybody."""
    return json.dumps([VERSION, federation, experiment, round_, sender, digest]).encode()


class Answer(_Strict):
    """What a receiver says to a message.

    ``held``: it has it. ``behind``: it is not that far yet. ``ahead``: it has taken that round without it.
    """

    status: Literal["held", "behind", "ahead", "rejected"]
    round: Round
    reason: Annotated[str, Field(max_length=64)] = ""

    def frame(self) -> bytes:
        """The answer as it is sent."""
        return self.model_dump_json().encode()

    @classmethod
    def read(cls, frame: bytes) -> Answer:
        """The answer in a frame from the network."""
        if len(frame) > HEADER_LIMIT:
            raise RejectedError(Reject.HEADER, f"{len(frame)} bytes")
        try:
            return cls.model_validate_json(frame)
        except ValidationError:
            raise RejectedError(Reject.HEADER, "not an answer") from None


@dataclass(frozen=True)
class Layout:
    """The bytes that the tensors of a message must begin with, and how many there are in all.

    Attributes:
        length: d.
        prefix: Everything before the numbers, as safetensors writes it.
    """

    length: int
    prefix: bytes

    @classmethod
    def of(cls, length: int) -> Layout:
        """The layout of messages about models of ``length`` float32 parameters."""
        empty = save({name: torch.zeros(length) for name in TENSORS})
        return cls(length, empty[: len(empty) - 4 * length * len(TENSORS)])

    @property
    def size(self) -> int:
        """Bytes of a message's tensors."""
        return len(self.prefix) + 4 * self.length * len(TENSORS)

    def write(self, tensors: dict[str, Tensor]) -> Payload:
        """The tensors, of length d each, as a safetensors file in pieces of :data:`CHUNK` bytes."""
        numbers = [tensors[name].detach().reshape(-1).contiguous().numpy().data for name in _STORED]
        whole = b"".join([self.prefix, *numbers])
        return tuple(whole[start : start + CHUNK] for start in range(0, len(whole), CHUNK))

    def read(self, data: Tensor) -> dict[str, Tensor]:
        """The tensors in bytes whose layout was checked, without copying."""
        numbers = data[len(self.prefix) :].view(torch.float32)
        return dict(zip(_STORED, numbers.view(-1, self.length), strict=True))


@dataclass(frozen=True)
class Message:
    """A message that passed every check."""

    header: Header
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Expected:
    """What a receiver accepts.

    Attributes:
        federation: The federation's name.
        experiment: Digest of the experiment.
        layout: Of the tensors.
        step: λ, with which θ − λγ must be finite.
    """

    federation: str
    experiment: str
    layout: Layout
    step: float

    def check(self, header: Header, sender: int) -> None:
        """Refuse a header that is not from ``sender``, to this federation, about this experiment, of this size."""
        if header.sender != sender:
            raise RejectedError(Reject.SENDER, f"says {header.sender}, its certificate is peer {sender}'s")
        if header.federation != self.federation:
            raise RejectedError(Reject.FEDERATION, repr(header.federation))
        if header.experiment != self.experiment:
            raise RejectedError(Reject.EXPERIMENT, repr(header.experiment))
        if header.since > header.round or any(each >= header.round for each in header.counted):
            raise RejectedError(Reject.ROUND, "it speaks of rounds to come")
        if header.kind == "leave":
            if header.size:
                raise RejectedError(Reject.SIZE, f"{header.size} bytes")
            return
        if set(header.scalars) != set(SCALARS) or not all(0 <= x <= 1 for x in header.scalars.values()):
            raise RejectedError(Reject.SCALARS, repr(header.scalars)[:100])
        if header.size != self.layout.size:
            raise RejectedError(Reject.SIZE, f"{header.size} bytes instead of {self.layout.size}")


class Assembly:
    """The tensors of one message as their pieces come in: never more bytes than a message has."""

    def __init__(self, expected: Expected, header: Header) -> None:
        self._expected, self._header = expected, header
        self._buffer = torch.empty(header.size, dtype=torch.uint8)
        self._data = self._buffer.numpy().data
        self._filled, self._hash = 0, blake3()

    def add(self, chunk: bytes) -> None:
        """Take the next piece, and digest it while it is in the processor's cache."""
        end = self._filled + len(chunk)
        if end > len(self._data):
            raise RejectedError(Reject.SIZE, "more bytes than announced")
        prefix = self._expected.layout.prefix
        self._data[self._filled : end] = chunk
        if self._filled < len(prefix) and self._data[: min(end, len(prefix))] != prefix[: min(end, len(prefix))]:
            raise RejectedError(Reject.LAYOUT, "other tensors, dtypes or shapes")
        self._hash.update(chunk)
        self._filled = end

    def finish(self) -> Message:
        """The message, once all of it is here and right."""
        if self._filled != len(self._data):
            raise RejectedError(Reject.SIZE, f"{self._filled} bytes of {len(self._data)}")
        if self._hash.hexdigest() != self._header.digest:
            raise RejectedError(Reject.DIGEST)
        if self._header.kind == "leave":
            return Message(self._header, {})
        tensors = self._expected.layout.read(self._buffer)
        if not self._finite(tensors["theta"], tensors["gamma"]):
            raise RejectedError(Reject.NOT_FINITE)
        return Message(self._header, tensors)

    def _finite(self, theta: Tensor, gamma: Tensor) -> bool:
        """Whether θ, γ and θ − λγ are finite, and so are the norms that are formed of them later."""
        most = [float(torch.stack(torch.aminmax(x)).abs().max()) for x in (theta, gamma)]  # NaN where there is one
        moderate = all(x * math.sqrt(len(theta)) <= LARGEST for x in most)
        return moderate and most[0] + self._expected.step * most[1] < torch.finfo(torch.float32).max


def digest_of(payload: Payload) -> str:
    """BLAKE3 of a message's tensors: as hard to forge as SHA-256, and several times as fast."""
    digest = blake3()
    for piece in payload:
        digest.update(piece)
    return digest.hexdigest()
