"""What several seeds say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean and how sure it is.

    Attributes:
        mean: Over the runs.
        half: Half the width of the 95 % interval around it; None where one run cannot tell.
        n: How many runs.
    """

    mean: float
    half: float | None
    n: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Student's interval of the mean, m ± t_{n−1} s/√n; None where a run has no such number."""
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    x, n = np.array(values, dtype=float), len(values)
    if n == 1:
        return Estimate(float(x[0]), None, 1)
    quantile = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    return Estimate(float(x.mean()), quantile * float(x.std(ddof=1)) / math.sqrt(n), n)
