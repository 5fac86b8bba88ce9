"""How the training samples are dealt out to the clients.

The two Dirichlet partitions follow the procedure of NIID-Bench (Li et al., ICDE 2022). Every partition is
an exact cover: each sample goes to one client and to one only.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from purifl.errors import ConfigError
from purifl.registry import Component, Registry

MIN_SAMPLES = 10
LABEL_TRIES = 1_000
QUANTITY_BLOCKS, QUANTITY_BLOCK = 10, 1_000

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


class Partition(Component):
    """A way to deal the training samples out to the clients."""

    @abstractmethod
    def split(self, labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        """The sample indices of each client, client 0 first."""


partitions: Registry[Partition] = Registry("partition", "purifl.data.partitions")


@partitions.register("iid")
class Iid(Partition):
    """Shuffled and dealt out evenly: every client sees the same distribution."""

    reference: ClassVar[str] = "Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022"

    def split(self, labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Permute the samples and cut them into parts whose sizes differ by at most one."""
        _check_clients(clients, len(labels), f"one sample for each out of {len(labels)}")
        return np.array_split(rng.permutation(len(labels)), clients)


@partitions.register("non-overlap")
class NonOverlap(Partition):
    """Every client holds classes of its own: with as many clients as classes, client k holds class k.

    Fewer clients than classes take contiguous blocks of classes, as even as possible. With more clients
    than classes, client i holds class i mod C, and the clients of one class share it evenly.
    """

    reference: ClassVar[str] = "Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022"

    def split(self, labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Hand out whole classes while there are enough of them, and evenly shuffled shares otherwise."""
        members = _by_class(labels)
        largest = min((len(members) * len(own) + k for k, own in enumerate(members)), default=0)
        _check_clients(clients, largest, "one sample for every client of the smallest class")
        if clients <= len(members):
            blocks = np.array_split(np.arange(len(members)), clients)
            return [np.concatenate([members[k] for k in block]) for block in blocks]
        parts: list[Indices] = [np.empty(0, dtype=np.int64)] * clients
        for k, own in enumerate(members):
            sharers = range(k, clients, len(members))
            for client, share in zip(sharers, np.array_split(rng.permutation(own), len(sharers)), strict=True):
                parts[client] = share
        return parts


@partitions.register("label-dir")
class LabelDirichlet(Partition):
    """Label skew: each class is shared out by a Dirichlet draw; smaller alpha, fewer classes per client.

    For each class, p ~ Dir(alpha · 1_n); p_j is set to zero for every client j that already holds N/n
    samples or more; the class is cut at floor(cumsum(p) / sum(p) · N_k). The whole is repeated until the
    smallest client has 10 samples. The shuffles do not depend on the draws, so they are made only once,
    for the draws that were accepted.
    """

    reference: ClassVar[str] = "Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022"

    alpha: float = Field(0.1, gt=0, allow_inf_nan=False, description="Dirichlet concentration; smaller is more skewed")

    def split(self, labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Draw the class shares until every client has enough samples, then deal and shuffle them."""
        _check_floor(clients, len(labels))
        members = _by_class(labels)
        cuts = self._accepted_cuts([len(own) for own in members], clients, rng)
        shares = [np.split(rng.permutation(own), cut[:-1]) for own, cut in zip(members, cuts, strict=True)]
        return [rng.permutation(np.concatenate(parts)) for parts in zip(*shares, strict=True)]

    def _accepted_cuts(self, counts: list[int], clients: int, rng: np.random.Generator) -> list[Indices]:
        for _ in range(LABEL_TRIES):
            held = np.zeros(clients, dtype=np.int64)
            cuts = []
            for count, draw in zip(counts, _dirichlet(rng, self.alpha, clients, len(counts)), strict=True):
                cuts.append(_cut(draw, count, held < sum(counts) / clients))
                held += np.diff(cuts[-1], prepend=0)
            if held.min() >= MIN_SAMPLES:
                return cuts
        raise ConfigError(
            "clients",
            clients,
            f"none of {LABEL_TRIES:,} draws with alpha = {self.alpha:g} gave every client "
            f"{MIN_SAMPLES} samples; use fewer clients or a larger alpha",
        )


@partitions.register("quantity-dir")
class QuantityDirichlet(Partition):
    """Quantity skew: client sizes follow one Dirichlet draw, labels are mixed; smaller alpha, more uneven.

    p ~ Dir(alpha · 1_n), redrawn until min(p) · N >= 10; the permuted samples are cut at
    floor(cumsum(p) · N). With many clients and a small alpha no draw ever passes. After 10,000 of them
    everyone gets 10 samples first, and one more draw shares out the rest; a warning says so.
    """

    reference: ClassVar[str] = "Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022"

    alpha: float = Field(0.1, gt=0, allow_inf_nan=False, description="Dirichlet concentration; smaller is more uneven")

    def split(self, labels: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        """Permute the samples and cut them at the drawn sizes."""
        total = len(labels)
        _check_floor(clients, total)
        order = rng.permutation(total)
        shares = self._accepted_shares(total, clients, rng)
        if shares is not None:
            return np.split(order, _cut(shares, total)[:-1])
        logging.getLogger("purifl").warning(
            "quantity-dir: no draw for %d clients with alpha = %g gave everyone %d samples, "
            "so each gets %d first and one draw shares out the rest.",
            *(clients, self.alpha, MIN_SAMPLES, MIN_SAMPLES),
        )
        rest = _cut(_dirichlet(rng, self.alpha, clients, 1)[0], total - MIN_SAMPLES * clients)
        return np.split(order, (rest + MIN_SAMPLES * np.arange(1, clients + 1))[:-1])

    def _accepted_shares(self, total: int, clients: int, rng: np.random.Generator) -> Floats | None:
        for _ in range(QUANTITY_BLOCKS):
            draws = _dirichlet(rng, self.alpha, clients, QUANTITY_BLOCK)
            passed = np.flatnonzero(draws.min(axis=1) * total >= MIN_SAMPLES)
            if len(passed):
                return np.asarray(draws[passed[0]])
        return None


def _by_class(labels: Indices) -> list[Indices]:
    """The sample indices of each distinct label, in the order of the labels."""
    return [np.flatnonzero(labels == k) for k in np.unique(labels)]


def _dirichlet(rng: np.random.Generator, alpha: float, clients: int, draws: int) -> Floats:
    return rng.dirichlet(np.full(clients, alpha), size=draws)


def _cut(shares: Floats, count: int, open_to: NDArray[np.bool_] | None = None) -> Indices:
    """Where each client's part of ``count`` samples ends, the clients not ``open_to`` more getting none.

    The running sum is divided by its own last value, so it ends in exactly 1 from the last open client on,
    and rounding cannot hand a left-over sample to a closed one.
    """
    if open_to is not None:
        shares = shares * open_to
        shares = shares if shares.sum() > 0 else open_to.astype(np.float64)
    ends = np.cumsum(shares)
    cuts: Indices = np.floor(ends / ends[-1] * count).astype(np.int64)
    return cuts


def _check_floor(clients: int, total: int) -> None:
    _check_clients(clients, total // MIN_SAMPLES, f"{MIN_SAMPLES} samples for each out of {total}")


def _check_clients(clients: int, largest: int, why: str) -> None:
    if not 1 <= clients <= largest:
        raise ConfigError("clients", clients, f"at least 1 and at most {largest} clients are allowed ({why})")
