"""Random streams that depend on what they are for, never on when they are drawn.

Every draw in purifl comes from a generator named by the seed and by its purpose, for example
``stream(seed, "batches", client, round)``. Nothing random is carried from one round to the next, so a
resumed run, another order of clients and another number of workers all see the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def entropy(seed: int, purpose: str, *index: int) -> np.random.SeedSequence:
    """The seed sequence of the stream called ``purpose`` at ``index``."""
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *index])


def stream(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """A NumPy generator for one purpose.

    Example:
        >>> bool((stream(0, "batches", 3, 7).permutation(5) == stream(0, "batches", 3, 7).permutation(5)).all())
        True
    """
    return np.random.default_rng(entropy(seed, purpose, *index))


@contextmanager
def seeded(device: torch.device, seed: int, purpose: str, *index: int) -> Iterator[None]:
    """Within it torch draws from the named stream: for what draws inside a model (initial weights, dropout).

    Afterwards torch's own generators are as they were.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[device.index or 0])
    number = int(entropy(seed, purpose, *index).generate_state(1, np.uint64)[0] >> np.uint64(1))
    before = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(number)
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
