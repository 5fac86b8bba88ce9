"""Coverage-guided fuzzing of the parser: python tests/peer/fuzz_parsing.py -max_total_time=60 (make fuzz)."""

import sys

import atheris

with atheris.instrument_imports(include=["purifl.peer.messages"]):
    from test_parsing import HEADER, PAYLOAD, TENSORS, parse

    from purifl.peer.messages import RejectedError

MOST = 64 << 20
"""Resident bytes that a minute of garbage may add."""


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


seen = {"start": 0, "count": 0}


def one(data):
    """Frames cut from the data, a header and pieces, each its own or damaged; nothing may pass but the truth."""
    provider = atheris.FuzzedDataProvider(data)
    header = bytearray(HEADER) if provider.ConsumeBool() else bytearray(provider.ConsumeBytes(600))
    for _ in range(provider.ConsumeIntInRange(0, 4) if header else 0):
        header[provider.ConsumeIntInRange(0, len(header) - 1)] = provider.ConsumeIntInRange(0, 255)
    payload = bytearray(PAYLOAD)
    for _ in range(provider.ConsumeIntInRange(0, 3)):
        payload[provider.ConsumeIntInRange(0, len(payload) - 1)] = provider.ConsumeIntInRange(0, 255)
    rest = bytes(payload) + provider.ConsumeBytes(provider.ConsumeIntInRange(0, 64))
    size = provider.ConsumeIntInRange(1, 512)
    seen["count"] += 1
    if seen["count"] == 1000:
        seen["start"] = resident()
    if seen["start"] and seen["count"] % 1000 == 0 and resident() - seen["start"] > MOST:
        raise MemoryError(f"grown by {resident() - seen['start']} bytes")
    try:
        message = parse([bytes(header), *(rest[k : k + size] for k in range(0, len(rest), size))])
    except RejectedError:
        return
    for name, tensor in TENSORS.items():
        if not message.tensors[name].equal(tensor):
            raise AssertionError("garbage was accepted")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
