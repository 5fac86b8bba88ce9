"""How long to wait for a neighbour: as long as it usually takes, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from purifl.peer.config import Patience

MISSES = 3
"""A neighbour that missed so many rounds in a row is not waited for until it is heard again."""


@dataclass
class Pace:
    """How late a neighbour's messages come, measured from when one's own is ready.

    Smoothed as round-trip times are in TCP (RFC 6298): the mean, and the mean deviation from it.
    """

    patience: Patience
    mean: float | None = None
    deviation: float = 0.0
    misses: int = 0

    def heard(self, lag: float) -> None:
        """Its message came ``lag`` seconds after one's own was ready, perhaps too late to be used."""
        lag = max(0.0, lag)
        if self.mean is None:
            self.mean, self.deviation = lag, lag / 2
        else:
            self.deviation += (abs(lag - self.mean) - self.deviation) / 4
            self.mean += (lag - self.mean) / 8
        self.misses = 0

    def missed(self) -> None:
        """A round was taken without it."""
        self.misses += 1 if self.mean is not None else MISSES

    @property
    def down(self) -> bool:
        """Whether it is taken to be away."""
        return self.misses >= MISSES

    def deadline(self, own: float) -> float:
        """Seconds to wait for it, where one's own round takes ``own``: a neighbour one round behind can catch up."""
        if self.down:
            return 0.0
        if self.mean is None:
            return self.patience.first
        least = max(self.patience.least, own)
        return min(max(self.mean + 4 * self.deviation, least), self.patience.most)
