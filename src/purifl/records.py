"""Recording variables: what a client has aggregated from each neighbour, ever since the first round.

A record r_ij is either the difference record d_ij = Σ_τ w_ij^τ (γ_j^τ − γ_i^τ), or the paper's β_ij = Σ_τ w_ij^τ γ_j^τ,
from which Σ_τ γ_i^τ is taken off at the client's own edge. What a client uses is the sum of the records that count,

    S_i = Σ_{j counted} r_ij,

and as long as the same edges count it changes by one product a round, Σ_j c_ij γ_j. A single record is needed only when
an edge starts or stops counting. S_i is then summed anew over the edges that count: taking a record off again would
leave the rounding of what it once held behind, and an attacker decides how large that is.

A step of the model mixes w_ij (γ_j − γ_i) in and has the record in γ_i, together d_ij as it is after the round. What j
has done to the model in all rounds is −λ times the *influence* Σ_τ d_ij^τ, which can be asked for where records are
*traced*.

Two ways to keep what is needed then, with the same results to rounding: one vector for each edge (:class:`Dense`), or
all γ heard so far with their weights (:class:`Log`), shared by all rows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from purifl.errors import ConfigError, RunError
from purifl.memory import gib
from purifl.neighbourhood import Neighbourhood, add_rows, chunks, differences
from purifl.state import State

_BLOCK = 8  # rounds
_LIGHT = 1 << 27  # bytes that a block may have
_SEVERAL = 2  # records of a column, beyond which blocks are worth their copies


def coefficients(hood: Neighbourhood, weights: Tensor, counted: Tensor, of_differences: bool) -> Tensor:
    """(E,) c_ij, with which a round adds Σ_j c_ij γ_j to S_i.

    c_ij is w_ij on the edges counted and 0 on others. On a client's edge to itself it is −Σ_{j≠i} c_ij for difference
    records and w_ii − 1 for the paper's.
    """
    others = torch.where(counted & hood.to_others, weights, 0)
    own = -hood.sums(others) if of_differences else weights[hood.own] - 1
    return torch.where(hood.to_self, own[hood.rows], others)


@dataclass(frozen=True)
class Records(ABC):
    """The sums S_i of R rows and what it takes to form them anew, in a :data:`~purifl.state.State`.

    Attributes:
        of_differences: Whether differences are recorded, or the paper's β.
    """

    of_differences: bool

    def begin(self, hood: Neighbourhood, gamma: Tensor) -> State:
        """Nothing recorded, and every edge counts."""
        return {
            "sum": gamma.new_zeros(len(hood.own), gamma.shape[1]),
            "counted": torch.ones_like(hood.to_self),
            **self._empty(hood, gamma),
        }

    def count(self, state: State, hood: Neighbourhood, counted: Tensor, forget: bool = False) -> None:
        """From now on S_i is over the edges ``counted`` (E,), and a client's edge to itself.

        The record of an edge that stops counting is there again when it counts again, or is forgotten for good.
        """
        counted = counted | hood.to_self
        if not torch.equal(counted, state["counted"]):
            changed = counted != state["counted"]
            if forget:
                self._forget(state, hood, state["counted"] & ~counted)
            state["counted"].copy_(counted)
            self._sum_anew(state, hood, changed)

    def add(self, state: State, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> Tensor:
        """(R, d) S_i after a round with these weights (E,) and messages γ (N, d)."""
        self._keep(state, hood, weights, gamma)
        hood.accumulate(state["sum"], coefficients(hood, weights, state["counted"], self.of_differences), gamma)
        return state["sum"]

    def trace(self, state: State) -> None:  # noqa: B027 - only where every round is taken in at once
        """Σ_τ d_ij^τ goes on, after a round."""

    def add_influence(self, total: Tensor, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """``total`` (R, d) += Σ_j Σ_τ d_ij^τ over the ``edges``, a mask (E,), as far as it is finite.

        The last d_ij counts twice: over these edges nothing is mixed in this round, but γ_i still has d_ij in it.
        """
        rows = rows_of(hood, edges)
        found = self._influence(state, hood, edges | (hood.to_self & rows[hood.rows]))
        total.index_add_(0, rows.nonzero().flatten(), found.nan_to_num_(0, 0, 0))

    def forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """r_ij = 0 on the ``edges``, a mask (E,), as if nothing had been heard over them yet; they count as before."""
        self._forget(state, hood, edges)
        self._sum_anew(state, hood, edges)

    def _sum_anew(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """S_i of the rows whose ``edges``, a mask (E,), changed."""
        rows = rows_of(hood, edges)
        state["sum"][rows] = self._total(state, hood, rows[hood.rows] & state["counted"])

    @abstractmethod
    def vectors(self, hood: Neighbourhood) -> int:
        """Vectors of length d that are kept, the sums left out."""

    @abstractmethod
    def _empty(self, hood: Neighbourhood, gamma: Tensor) -> State:
        """What is kept, before the first round."""

    @abstractmethod
    def _keep(self, state: State, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> None:
        """Remember a round."""

    @abstractmethod
    def _forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        """r_ij ← 0 on the ``edges``, a mask (E,)."""

    @abstractmethod
    def _total(self, state: State, hood: Neighbourhood, edges: Tensor) -> Tensor:
        """Σ_j r_ij over the ``edges``, a mask (E,), for those rows whose edges they are."""

    @abstractmethod
    def _influence(self, state: State, hood: Neighbourhood, edges: Tensor) -> Tensor:
        """Σ_j (Σ_τ d_ij^τ + d_ij), in the same way."""


@dataclass(frozen=True)
class Dense(Records):
    """One vector for each record.

    Where records are many they take in a few rounds at a time, by one sparse product: to go through all of them each
    round takes longer than to find out who is to be trusted.

    Attributes:
        symmetric: Whether w_ij = w_ji. Then d_ij = −d_ji, and of the two one is kept.
        traced: Whether influences are kept as well, a second vector for each record.
        block: Rounds at a time.
    """

    symmetric: bool = False
    traced: bool = False
    block: int = 1

    def suited_to(self, hood: Neighbourhood, vector: int) -> Dense:
        """In blocks where a column has several records, and a block is light; a vector has ``vector`` bytes.

        Differences only if they are symmetric: in a product d_ij and d_ji, both kept, would cancel to the rounding of γ
        and not of γ_j − γ_i.
        """
        fit = self.symmetric or not self.of_differences
        several = self._count(hood) > _SEVERAL * hood.columns
        return replace(self, block=_BLOCK if fit and several and _BLOCK * hood.columns * vector <= _LIGHT else 1)

    def vectors(self, hood: Neighbourhood) -> int:
        """E, less where differences leave some out, twice where they are traced, and those of a block."""
        return self._count(hood) * (1 + self.traced) + (self.block * hood.columns if self.block > 1 else 0)

    def _count(self, hood: Neighbourhood) -> int:
        return len(self._edges(hood)) if self.of_differences else len(hood.rows)

    def _edges(self, hood: Neighbourhood) -> Tensor:
        """(V,) positions of the edges whose records are kept; a client differs from itself in nothing."""
        if not self.of_differences:
            return torch.arange(len(hood.rows), device=hood.rows.device)
        return hood.pairs if self.symmetric else hood.neighbours

    def _empty(self, hood: Neighbourhood, gamma: Tensor) -> State:
        records = gamma.new_zeros(len(self._edges(hood)), gamma.shape[1])
        influence = {"influence": torch.zeros_like(records)} if self.traced else {}
        return {"records": records} | influence | (_no_rounds(self.block, hood, gamma) if self.block > 1 else {})

    def trace(self, state: State) -> None:
        """With several rounds at a time influences go on when these are taken in."""
        if self.traced and self.block == 1:
            state["influence"] += state["records"]

    def _keep(self, state: State, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> None:
        if self.block == 1:
            self._take_in(state["records"], hood, weights, gamma)
            return
        _note(state, weights, gamma)
        if state["rounds"] == self.block:
            self._settle(state, hood)

    def _take_in(self, records: Tensor, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> None:
        """r_ij += w_ij (γ_j − γ_i), or w_ij γ_j with w_ii − 1 at i's own edge; without an (E, d) temporary."""
        edges, factors = self._edges(hood), self._factors(hood, weights)
        for part in chunks(len(edges), gamma.shape[1]):
            kept = edges[part]
            to, of = hood.cols[kept], hood.listeners[kept]
            heard = differences(gamma, to, of) if self.of_differences else gamma.index_select(0, to)
            records[part].addcmul_(factors[kept, None], heard)

    def _settle(self, state: State, hood: Neighbourhood) -> None:
        """The same for the rounds of a block, however many there are yet: r_ij += Σ_τ w_ij γ_j − Σ_τ w_ij γ_i.

        To Σ_τ d_ij^τ each of them adds the record as it was before, and what came since the first of them.
        """
        rounds = int(state["rounds"]) if self.block > 1 else 0
        if not rounds:
            return
        edges, factors = self._edges(hood), self._factors(hood, state["weights"][:rounds]).T
        gamma = state["gamma"][:rounds].flatten(0, 1)
        begins = torch.arange(0, len(gamma), hood.columns, device=gamma.device)
        for part in chunks(len(edges), gamma.shape[1]):
            kept = edges[part]
            places, values = hood.cols[kept, None] + begins, factors[kept]
            if self.of_differences:
                places = torch.cat([places, hood.listeners[kept, None] + begins], 1)
                values = torch.cat([values, -values], 1)
            offsets = torch.arange(0, values.numel() + 1, values.shape[1], device=gamma.device)
            if self.traced:
                often = torch.arange(rounds, 0, -1, device=gamma.device).repeat(2)  # rounds of the block with it in γ
                state["influence"][part].add_(state["records"][part], alpha=rounds)
                add_rows(state["influence"][part], offsets, (values * often).flatten(), places.flatten(), gamma)
            add_rows(state["records"][part], offsets, values.flatten(), places.flatten(), gamma)
        state["rounds"].zero_()

    def _factors(self, hood: Neighbourhood, weights: Tensor) -> Tensor:
        """(…, E) w_ij; a pair of which one end is not heard any more has 0, though the other may go on listening."""
        if not self.of_differences:
            return weights - hood.to_self.to(weights.dtype)
        if not self.symmetric:
            return weights
        return torch.minimum(weights, weights[..., hood.opposite])

    def _forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        self._settle(state, hood)
        place, sign = self._places(hood, state["records"].dtype)
        for kept in ("records", "influence") if self.traced else ("records",):
            state[kept][place[edges & (sign != 0)]] = 0

    def _total(self, state: State, hood: Neighbourhood, edges: Tensor) -> Tensor:
        self._settle(state, hood)
        place, sign = self._places(hood, state["records"].dtype)
        return hood.part(edges).fold(sign[edges], place[edges], state["records"])

    def _influence(self, state: State, hood: Neighbourhood, edges: Tensor) -> Tensor:
        latest = self._total(state, hood, edges)
        place, sign = self._places(hood, state["records"].dtype)
        return latest.add_(hood.part(edges).fold(sign[edges], place[edges], state["influence"]))

    def _places(self, hood: Neighbourhood, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(E,) where each edge's record is, and its sign there: −1 at a pair's other end, 0 where there is none."""
        kept = self._edges(hood)
        place, sign = torch.zeros_like(hood.rows), torch.zeros_like(hood.rows, dtype=dtype)
        back = hood.reverse[kept] if self.symmetric and self.of_differences else torch.full_like(kept, -1)
        for ends, value in ((back, -1), (kept, 1)):
            there = ends >= 0
            place[ends[there]] = there.nonzero().flatten()
            sign[ends[there]] = value
        return place, sign


@dataclass(frozen=True)
class Log(Records):
    """All γ heard and all weights used, round by round, shared by all rows.

    A round costs one copy of γ. A sum costs a product for each past round, in the rows that need it.

    Attributes:
        rounds: T, how many the log can hold.
        on_disk: Whether γ is kept in a temporary file instead of in memory. A checkpoint holds all of it nevertheless.
    """

    rounds: int = 1
    on_disk: bool = False

    def vectors(self, hood: Neighbourhood) -> int:
        """T·N, in memory or on disk."""
        return self.rounds * hood.columns

    def _empty(self, hood: Neighbourhood, gamma: Tensor) -> State:
        return _no_rounds(self.rounds, hood, gamma, self.on_disk)

    def _keep(self, state: State, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> None:
        if state["rounds"] == self.rounds:
            raise RunError(
                f"the log of records is full after {self.rounds} rounds, for which it was begun (Defense.for_rounds)"
            )
        _note(state, weights, gamma)
        self._release(state)

    def _forget(self, state: State, hood: Neighbourhood, edges: Tensor) -> None:
        state["weights"][:, edges] = 0

    def _total(self, state: State, hood: Neighbourhood, edges: Tensor) -> Tensor:
        return self._over_rounds(state, hood, edges)

    def _influence(self, state: State, hood: Neighbourhood, edges: Tensor) -> Tensor:
        often = torch.arange(int(state["rounds"]) + 1, 1, -1).to(state["weights"])  # it has been in γ since
        return self._over_rounds(state, hood, edges, often)

    def _over_rounds(self, state: State, hood: Neighbourhood, edges: Tensor, often: Tensor | None = None) -> Tensor:
        """The sum over all rounds, each counted that ``often``, or once."""
        part, counted = hood.part(edges), torch.ones_like(hood.to_self[edges])
        total = torch.zeros_like(state["sum"][: len(part.own)])
        for past in range(int(state["rounds"])):
            values = coefficients(part, state["weights"][past, edges], counted, self.of_differences)
            values = values if often is None else often[past] * values
            part.accumulate(total, values, state["gamma"][past].to(total.device))
            self._release(state)
        return total

    def _release(self, state: State) -> None:
        if self.on_disk:
            release(state["gamma"])


def rows_of(hood: Neighbourhood, edges: Tensor) -> Tensor:
    """(R,) whether a row has any of the ``edges``, a mask (E,)."""
    return torch.zeros_like(hood.own, dtype=torch.bool).index_fill_(0, hood.rows[edges], True)


def _no_rounds(capacity: int, hood: Neighbourhood, gamma: Tensor, on_disk: bool = False) -> State:
    """Room for the γ and the weights of that many rounds."""
    shape = (capacity, *gamma.shape)
    return {
        "gamma": mapped(shape, gamma.dtype) if on_disk else gamma.new_zeros(shape),
        "weights": gamma.new_zeros(capacity, len(hood.rows)),
        "rounds": torch.zeros((), dtype=torch.int64),
    }


def _note(state: State, weights: Tensor, gamma: Tensor) -> None:
    now = int(state["rounds"])
    state["gamma"][now], state["weights"][now] = gamma, weights
    state["rounds"] += 1


def release(x: Tensor) -> None:
    """Take the pages of a :func:`mapped` tensor out of memory, where the system can; they stay in the file."""
    if hasattr(mmap, "MADV_DONTNEED"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.nbytes), mmap.MADV_DONTNEED)


def mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in a file without a name in the folder for temporary files, gone with its last user.

    The space is taken at once, where the system can: a disk that fills up later would end the process.
    """
    size = prod(shape)
    try:
        with tempfile.NamedTemporaryFile(prefix="purifl-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
            else:
                file.truncate(size * dtype.itemsize)
            return torch.from_file(file.name, shared=True, size=size, dtype=dtype).view(shape)
    except OSError as error:
        place, needed = tempfile.gettempdir(), gib(size * dtype.itemsize)
        raise ConfigError(
            "defense.records", "disk", f"it needs {needed} in {place}: {error}; TMPDIR names another folder"
        ) from error
