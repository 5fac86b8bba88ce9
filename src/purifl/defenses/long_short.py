"""MUD-HoG: tell attackers apart by short and long histories of gradients."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, KMeans
from torch import Tensor

from purifl.defenses.base import Defense, Heard, defenses
from purifl.neighbourhood import Neighbourhood
from purifl.state import State

Vectors = NDArray[np.float64]
Mask = NDArray[np.bool_]

SIGN, UNTARGETED, TARGETED, UNRELIABLE = range(4)
_CROWD = 8  # fewer vectors make no clusters
_CLEAN = 2  # rounds without suspicion after which a flag is taken back


@defenses.register("long-short")
class LongShort(Defense):
    """MUD-HoG: cut by four tests of each neighbour's mean of its last γ (short) and sum of all γ (long).

    From round ``start`` on a client suspects, among the neighbours not yet sorted out by an earlier test,

    1. sign-flippers: cos(short_j, median of shorts) < 0, the median over neighbours without a flag of 1 to 3;
    2. untargeted: DBSCAN noise among the shorts, beyond the largest gap in distance to the main cluster's median;
    3. targeted: the smaller cluster of 2-means on the longs;
    4. unreliable: cos(short_j, median of shorts) below the largest gap.

    ``delay`` suspicions in a row by the same test (twice as many for the third) flag a neighbour, two clean
    rounds in a row clear it. Flags of 1 to 3 are cuts; an unreliable neighbour is honest, so its flag is kept
    in the state but it is listened to, as in the published code. Tests 2 to 4 need a crowd and are left out
    in neighbourhoods of fewer than 8, the client included; 3 and 4 find somebody in every crowd, honest or
    not. ``eps`` is a distance between γ, so that it has to suit their size.

    Made for a server, it is run here by each client on what it hears. Unlike in the published code the window
    moves on, the tests count separately, and a mere suspicion excludes nobody.
    """

    reference = "Gupta, Luo, Ngo, Das: Long-Short History of Gradients Is All You Need, ESORICS 2022"
    needs = "at least 8 clients in a neighbourhood for tests 2 to 4"
    mixing = "uniform"

    window: int = Field(3, ge=1, description="rounds of the short history")
    start: int = Field(3, ge=0, description="first round with a test")
    delay: int = Field(2, ge=1, description="suspicions in a row that make a flag; twice as many in test 3")
    eps: float = Field(0.5, gt=0, description="DBSCAN's radius, in units of γ")
    min_samples: int = Field(5, ge=1, description="DBSCAN's smallest number of vectors within the radius")

    def begin(self, hood: Neighbourhood, first: Heard) -> State:
        """No history; each test's suspicions and clean rounds in a row, and its flags, edge by edge."""
        tests = hood.to_self.new_zeros(4, len(hood.rows))
        return {
            "recent": first.gamma.new_zeros(self.window, *first.gamma.shape),
            "long": torch.zeros_like(first.gamma),
            "rounds": torch.zeros((), dtype=torch.int64),
            "streak": tests.long(),
            "clean": tests.long(),
            "flagged": tests,
        }

    def memory(self, hood: Neighbourhood, vector: int) -> int:
        """The window's and the sum's."""
        return (self.window + 1) * hood.columns * vector

    def cut(self, state: State, hood: Neighbourhood, trust: Tensor, heard: Heard) -> Tensor:
        """Whoever is flagged by tests 1 to 3, and whom a detector suspects if there is one."""
        now = int(state["rounds"])
        state["recent"][now % self.window] = heard.gamma
        state["long"] += heard.gamma
        state["rounds"] += 1
        if now >= self.start:
            self._count(state, self._suspect(state, hood, min(now + 1, self.window)))
        return state["flagged"][:UNRELIABLE].any(0) | self.suspects(hood, trust)

    def _count(self, state: State, suspected: Tensor) -> None:
        """Flag after suspicions in a row, clear after clean rounds in a row."""
        delays = suspected.new_tensor([1, 1, 2, 1], dtype=torch.int64)[:, None] * self.delay
        state["streak"].add_(1).mul_(suspected)
        state["clean"].add_(1).mul_(~suspected)
        state["flagged"] |= state["streak"] >= delays
        state["flagged"] &= state["clean"] < _CLEAN

    def _suspect(self, state: State, hood: Neighbourhood, length: int) -> Tensor:
        """(4, E) what each test says of each neighbour."""
        short, long = (x.double().cpu().numpy() for x in (state["recent"].sum(0) / length, state["long"]))
        cols, flagged = hood.cols.cpu().numpy(), state["flagged"].cpu().numpy()
        found = np.zeros_like(flagged)
        bounds = hood.offsets.tolist()
        for start, end, own in zip(bounds, bounds[1:], hood.own.tolist(), strict=False):
            heard = cols[start:end]
            found[:, start:end] = self.examine(short[heard], long[heard], flagged[:, start:end], own - start)
        return torch.from_numpy(found).to(hood.rows.device)

    def examine(self, short: Vectors, long: Vectors, flagged: Mask, own: int) -> Mask:
        """(4, m) suspicions of one client against the m senders of these histories, never against itself."""
        found, trusted = np.zeros_like(flagged), ~flagged[:UNRELIABLE].any(0)
        found[SIGN] = _cosines(short, np.median(short[trusted], axis=0)) < 0
        found[SIGN, own] = False
        if len(short) >= _CROWD:
            aligned = ~(found[SIGN] | flagged[SIGN])
            found[UNTARGETED, aligned] = self._outliers(short[aligned])
            alike = aligned & ~(found[UNTARGETED] | flagged[UNTARGETED])
            found[TARGETED, alike] = _minority(long[alike])
            rest = aligned & trusted
            cosines = _cosines(short[rest], np.median(short[rest], axis=0))
            found[UNRELIABLE, rest] = cosines < _largest_gap(cosines)
        found[:, own] = False
        return found

    def _outliers(self, points: Vectors) -> Mask:
        """DBSCAN's noise beyond the largest gap; nobody where most are noise."""
        scan = DBSCAN(eps=self.eps, min_samples=self.min_samples, metric="precomputed")
        labels = scan.fit(cdist(points, points)).labels_
        main = max(Counter(labels.tolist()).items(), key=lambda item: (item[1], item[0]))[0]
        distances = np.linalg.norm(points - np.median(points[labels == main], axis=0), axis=1)
        others = distances[labels != main]
        noise: Mask = (labels == -1) & (labels != main) & (distances > _largest_gap(others))
        return noise


def _cosines(points: Vectors, centre: Vectors) -> Vectors:
    """Of each point with the centre; 0 for a zero vector."""
    lengths = np.linalg.norm(points, axis=1) * np.linalg.norm(centre)
    cosines: Vectors = points @ centre / np.where(lengths > 0, lengths, 1)
    return cosines


def _largest_gap(values: Vectors) -> float:
    """The middle of the largest gap between neighbouring values; −∞ where there is none."""
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    if not gaps.any():
        return -np.inf
    widest = int(gaps.argmax())
    return float(ordered[widest] + gaps[widest] / 2)


def _minority(points: Vectors) -> Mask:
    """The smaller of two clusters; nobody where they are of equal size or there are no two."""
    if (points == points[0]).all():
        return np.zeros(len(points), dtype=bool)
    labels = KMeans(n_clusters=2, random_state=0).fit(points).labels_
    sizes = np.bincount(labels, minlength=2)
    smaller: Mask = (labels == sizes.argmin()) & (sizes[0] != sizes[1])
    return smaller
