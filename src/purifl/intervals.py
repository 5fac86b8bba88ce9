"""Means over seeds, with what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval, mean ± half, by Student's t.

    Attributes:
        mean: Over the values.
        half: Half the width of the interval; None for a single value, of whose spread nothing is known.
        n: How many values.
    """

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float:
        """The lower end; the mean itself for a single value."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end; the mean itself for a single value."""
        return self.mean + (self.half or 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values, half = t_{0.975, n−1} · s / √n.

    Example:
        >>> estimate([1.0, 2.0, 3.0])
        Estimate(mean=2.0, half=2.484137711906146, n=3)
    """
    n = len(values)
    if n < 2:
        return Estimate(fmean(values), None, n)
    return Estimate(fmean(values), float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * stdev(values) / n**0.5, n)
