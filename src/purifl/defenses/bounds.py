"""The two ends of every comparison: no defence at all, and perfect knowledge."""

from __future__ import annotations

from purifl.defenses.base import Defense, defenses
from purifl.registry import PAPER


@defenses.register("lower")
class Lower(Defense):
    """No defence: plain averaging of everything heard.

    With a detector it becomes the frame in which the paper runs its baselines: averaging by detection
    weights, where a neighbour under the threshold is dropped but its past stays.
    """

    reference = "Pu, Nedić: Distributed stochastic gradient tracking methods, Mathematical Programming 2021"


@defenses.register("upper")
class Upper(Defense):
    """Perfect knowledge: the benign clients train among themselves from the start.

    The bound of every method that detects and restarts. Where the malicious clients separate the graph,
    each benign component trains alone.
    """

    reference = PAPER
    knows_malicious = True
