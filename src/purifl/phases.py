"""Where the time of a round goes: its phases are marked once, where they are done, and timed when asked for.

profile = Profile()
run(experiment, profile=profile)
profile.summary()["train"]["share"]
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch

Phase = Literal["exchange", "mix", "train", "track", "detect", "craft", "measure", "store", "other"]


class Profile:
    """The time spent in each phase of the rounds that it was there for.

    A moment belongs to the innermost phase it falls into, and to ``other`` where there is none, so that the
    phases add up to the whole.

    Attributes:
        seconds: Of each phase.
        calls: How often each phase was entered.
    """

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)
        self.calls: Counter[Phase] = Counter()
        self._inside: list[Phase] = []
        self._since = 0.0

    def enter(self, name: Phase) -> None:
        """From now on time is spent in ``name``."""
        self._charge()
        self._inside.append(name)
        self.calls[name] += 1

    def leave(self) -> None:
        """From now on time is spent in what the phase was entered from."""
        self._charge()
        self._inside.pop()

    def _charge(self) -> None:
        """Add the time since the last change to the phase it was spent in, work queued on a GPU included."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._inside:
            self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    def summary(self) -> dict[Phase, dict[str, float]]:
        """Of each phase the seconds, the milliseconds per round, and the share of the whole."""
        rounds, total = max(1, self.calls["train"]), sum(self.seconds.values()) or 1.0
        return {
            phase: {"seconds": spent, "ms_per_round": 1000 * spent / rounds, "share": spent / total}
            for phase, spent in self.seconds.items()
        }


_profile: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def timed_by(profile: Profile | None) -> Iterator[None]:
    """Within it phases are timed, or not if there is no profile."""
    token = _profile.set(profile)
    try:
        with phase("other"):
            yield
    finally:
        _profile.reset(token)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Marks a block, or as ``@phase(name)`` a function, as a phase of the round."""
    profile = _profile.get()
    if profile is None:
        yield
        return
    profile.enter(name)
    try:
        yield
    finally:
        profile.leave()
