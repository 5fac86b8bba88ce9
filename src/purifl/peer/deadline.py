"""How long to wait for a neighbour: as long as it usually takes, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from purifl.peer.config import Patience

MISSES = 3
"""A neighbour that cannot be reached for so many rounds in a row is not waited for until it is heard again."""

PATIENT_MISSES = 6
"""One that answers but is behind gets twice the time in each round, so often."""


@dataclass
class Pace:
    """How late a neighbour's messages come, measured from when one's own is ready.

    Smoothed as round-trip times are in TCP (RFC 6298): the mean, and the mean deviation from it.
    """

    patience: Patience
    mean: float | None = None
    deviation: float = 0.0
    late: int = 0
    away: int = 0

    def heard(self, lag: float) -> None:
        """Its message came ``lag`` seconds after one's own was ready, perhaps too late to be used."""
        lag = max(0.0, lag)
        if self.mean is None:
            self.mean, self.deviation = lag, lag / 2
        else:
            self.deviation += (abs(lag - self.mean) - self.deviation) / 4
            self.mean += (lag - self.mean) / 8
        self.late = self.away = 0

    def missed(self, answers: bool) -> None:
        """A round was taken without it, though it ``answers``, or it does not."""
        if answers:
            self.late, self.away = self.late + 1, 0
        else:
            self.away += 1 if self.mean is not None else MISSES

    @property
    def down(self) -> bool:
        """Whether it is taken to be away."""
        return self.away >= MISSES or self.late >= PATIENT_MISSES

    def deadline(self, own: float, answers: bool = False) -> float:
        """Seconds to wait for it, where one's own round takes ``own``: a neighbour one round behind can catch up.

        One that ``answers`` is there, and perhaps waiting for somebody else; it is given three times as long.
        """
        if self.down:
            return 0.0
        if self.mean is None:
            return self.patience.first
        least = max(self.patience.least, own)
        usual = max(self.mean + 4 * self.deviation, least)
        return min(usual * (3 * 2**self.late if answers else 1), self.patience.most)
