"""The parser of messages: what is right passes, and nothing else does."""

import json
import math
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.peer.messages import (
    CHUNK,
    HEADER_LIMIT,
    Answer,
    Assembly,
    Expected,
    Header,
    Layout,
    Reject,
    RejectedError,
    digest_of,
)

LENGTH = 37
LAYOUT = Layout.of(LENGTH)
EXPECTED = Expected("digits", "abc", LAYOUT, 0.1)
TENSORS = {"theta": torch.arange(LENGTH) / 7, "gamma": -torch.arange(LENGTH) / 3}
PAYLOAD = b"".join(LAYOUT.write(TENSORS))


def header(**changes):
    fields = {
        "federation": "digits", "experiment": "abc", "round": 5, "sender": 3, "boot": "0" * 16, "size": len(PAYLOAD),
        "digest": digest_of([PAYLOAD]), "scalars": {"trust": 0.25}, "since": 1, "counted": (2, 3, 4),
    }  # fmt: skip
    return Header(**(fields | changes))


def parse(frames, sender=3):
    """A message from its frames, as a mailbox reads it."""
    first, *chunks = frames
    head = Header.read(first)
    EXPECTED.check(head, sender)
    assembly = Assembly(EXPECTED, head)
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.finish()


@pytest.mark.parametrize("size", [1, 7, 64, CHUNK])
def test_a_message_comes_out_as_it_went_in(size):
    message = parse([header().frame(), *(PAYLOAD[k : k + size] for k in range(0, len(PAYLOAD), size))])
    assert message.header == header()
    for name, tensor in TENSORS.items():
        assert torch.equal(message.tensors[name], tensor)


def with_number(value):
    return b"".join(LAYOUT.write(TENSORS | {"gamma": TENSORS["gamma"].index_fill(0, torch.tensor([4]), value)}))


def of(payload, **changes):
    return [header(digest=digest_of([payload]), size=len(payload), **changes).frame(), payload]


OTHER_NAMES = PAYLOAD.replace(b"gamma", b"theta", 1)
OTHER_DTYPE = PAYLOAD.replace(b"F32", b"I32", 1)
LARGER = b"".join(Layout.of(LENGTH + 1).write({name: torch.zeros(LENGTH + 1) for name in TENSORS}))
HUGE = b"".join(LAYOUT.write({"theta": torch.full((LENGTH,), 3.3e38), "gamma": torch.full((LENGTH,), -3.3e38)}))

BAD = {
    "not JSON": (Reject.HEADER, [b"\x80\x04pickle", PAYLOAD]),
    "no object": (Reject.HEADER, [b"[1, 2]", PAYLOAD]),
    "an unknown field": (Reject.HEADER, [json.dumps(json.loads(header().frame()) | {"eval": "1"}).encode(), PAYLOAD]),
    "deeply nested": (Reject.HEADER, [b"[" * 30000, PAYLOAD]),
    "too long": (Reject.HEADER, [b" " * (HEADER_LIMIT + 1), PAYLOAD]),
    "another version": (Reject.VERSION, [header().frame().replace(b'"version":2', b'"version":1'), PAYLOAD]),
    "somebody else's": (Reject.SENDER, [header(sender=4).frame(), PAYLOAD]),
    "another federation": (Reject.FEDERATION, [header(federation="mnist").frame(), PAYLOAD]),
    "another experiment": (Reject.EXPERIMENT, [header(experiment="xyz").frame(), PAYLOAD]),
    "rounds to come": (Reject.ROUND, [header(counted=(5,)).frame(), PAYLOAD]),
    "a record to come": (Reject.ROUND, [header(since=6).frame(), PAYLOAD]),
    "no trust": (Reject.SCALARS, [header(scalars={}).frame(), PAYLOAD]),
    "another scalar": (Reject.SCALARS, [header(scalars={"weight": 0.5}).frame(), PAYLOAD]),
    "negative trust": (Reject.SCALARS, [header(scalars={"trust": -0.1}).frame(), PAYLOAD]),
    "trust that is no number": (Reject.HEADER, [header().frame().replace(b"0.25", b"NaN"), PAYLOAD]),
    "another size": (Reject.SIZE, of(LARGER)),
    "a false size": (Reject.SIZE, [header(size=len(PAYLOAD) + 1).frame(), PAYLOAD]),
    "an enormous size": (Reject.SIZE, [header(size=2**39).frame(), PAYLOAD]),
    "truncated": (Reject.SIZE, [header().frame(), PAYLOAD[:-1]]),
    "continued": (Reject.SIZE, [header().frame(), PAYLOAD, b"x"]),
    "other names": (Reject.LAYOUT, of(OTHER_NAMES)),
    "another dtype": (Reject.LAYOUT, of(OTHER_DTYPE)),
    "a flipped bit": (Reject.DIGEST, [header().frame(), PAYLOAD[:-1] + bytes([PAYLOAD[-1] ^ 1])]),
    "not a number": (Reject.NOT_FINITE, of(with_number(math.nan))),
    "infinite": (Reject.NOT_FINITE, of(with_number(math.inf))),
    "infinite as a model": (Reject.NOT_FINITE, of(HUGE)),
    "infinite once it is squared": (Reject.NOT_FINITE, of(with_number(1e20))),
    "a farewell with tensors": (Reject.SIZE, [header(kind="leave").frame(), PAYLOAD]),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_rejected_with_its_reason(what):
    reason, frames = BAD[what]
    with pytest.raises(RejectedError) as caught:
        parse(frames)
    assert caught.value.reason is reason


def test_an_enormous_announcement_takes_no_memory():
    tracemalloc.start()
    for what in ("an enormous size", "deeply nested", "too long"):
        with pytest.raises(RejectedError):
            parse(BAD[what][1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * HEADER_LIMIT


@given(st.binary(max_size=200))
def test_garbage_is_no_header_and_no_answer(garbage):
    for reader in (Header.read, Answer.read):
        with pytest.raises(RejectedError):
            reader(garbage)


HEADER = header().frame()


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(HEADER) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_header_is_rejected_or_means_the_same_message(changes):
    damaged = bytearray(HEADER)
    for place, value in changes:
        damaged[place] = value
    try:
        message = parse([bytes(damaged), PAYLOAD])
    except RejectedError:
        return
    assert torch.equal(message.tensors["theta"], TENSORS["theta"])
    assert message.header.sender == 3
    assert message.header.federation == "digits"
    assert 0 <= message.header.scalars["trust"] <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.sampled_from(list(Header.model_fields)), JSON)
def test_any_value_in_any_field_is_rejected_or_valid(field, value):
    try:
        read = Header.read(json.dumps(json.loads(HEADER) | {field: value}).encode())
    except RejectedError:
        return
    assert Header.read(read.frame()) == read


@settings(max_examples=200)
@given(st.integers(0, len(PAYLOAD) - 1), st.integers(1, 255), st.integers(1, 400))
def test_no_flipped_byte_passes_the_digest(place, flip, size):
    damaged = bytearray(PAYLOAD)
    damaged[place] ^= flip
    with pytest.raises(RejectedError) as caught:
        parse([HEADER, *(bytes(damaged[k : k + size]) for k in range(0, len(damaged), size))])
    assert caught.value.reason in {Reject.DIGEST, Reject.LAYOUT}
