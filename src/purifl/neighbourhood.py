"""Who hears whom, and the arithmetic over it: every rule is "client i combines what it heard from j".

A :class:`Neighbourhood` has R *rows*, the clients computed here, and N *columns*, the clients heard. A
simulation has all clients as both; one peer on a network has a single row and its neighbours as columns.
It is stored edge by edge (i, j), a client's edge to itself included, so cost and memory grow with the
number of edges. In the shapes below E is that number and d the number of model parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_CHUNK = 1 << 24  # numbers handled at once where an (E, d) temporary would otherwise arise

warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The edges (i, j) of R rows over N columns, sorted by row.

    Attributes:
        rows: (E,) row i of each edge.
        cols: (E,) column j of each edge.
        own: (R,) position, among the edges, of each row's edge to itself.
        owner: (N,) the client whose message a column is; a client that speaks privately to each neighbour has
            several columns.
    """

    rows: Tensor
    cols: Tensor
    own: Tensor
    owner: Tensor

    @classmethod
    def of(cls, heard: Sequence[Sequence[int]], own: Sequence[int], owner: Sequence[int]) -> Neighbourhood:
        """Rows that hear the columns ``heard[i]``, one of which, ``own[i]``, is the row itself."""
        rows = [i for i, js in enumerate(heard) for _ in js]
        cols = [j for js in heard for j in js]
        starts = torch.tensor([0, *(len(js) for js in heard)]).cumsum(0)
        loops = [int(starts[i]) + list(js).index(own[i]) for i, js in enumerate(heard)]
        index = [torch.tensor(each, dtype=torch.int64) for each in (rows, cols, loops, owner)]
        return cls(*index)

    def to(self, device: torch.device | str) -> Neighbourhood:
        """The same neighbourhood on ``device``."""
        return Neighbourhood(*(x.to(device) for x in (self.rows, self.cols, self.own, self.owner)))

    @cached_property
    def size(self) -> Tensor:
        """(R,) m_i = |N_i|, the client itself included."""
        return torch.bincount(self.rows, minlength=len(self.own))

    @cached_property
    def offsets(self) -> Tensor:
        """(R + 1,) where each row's edges begin."""
        return torch.cat([self.size.new_zeros(1), self.size.cumsum(0)])

    @cached_property
    def own_cols(self) -> Tensor:
        """(R,) the column of each row's own client."""
        return self.cols[self.own]

    @property
    def columns(self) -> int:
        """N."""
        return len(self.owner)

    @cached_property
    def senders(self) -> Tensor:
        """(E,) the client at the other end of each edge."""
        return self.owner[self.cols]

    @cached_property
    def to_self(self) -> Tensor:
        """(E,) whether the edge is a client's edge to itself."""
        return self.cols == self.own_cols[self.rows]

    def combine(self, values: Tensor, x: Tensor) -> Tensor:
        """Σ_j values_ij x_j: (E,) and (N, d) give (R, d)."""
        return self._product(values, self.cols, x)

    def fold(self, values: Tensor, per_edge: Tensor) -> Tensor:
        """Σ_j values_ij y_ij: (E,) and (E, d) give (R, d)."""
        return self._product(values, torch.arange(len(self.rows), device=self.rows.device), per_edge)

    def _product(self, values: Tensor, index: Tensor, x: Tensor) -> Tensor:
        matrix = torch.sparse_csr_tensor(self.offsets, index, values, (len(self.own), len(x)), check_invariants=False)
        product: Tensor = torch.sparse.mm(matrix, x)
        return product

    def sums(self, values: Tensor) -> Tensor:
        """Σ_j values_ij: (E,) gives (R,)."""
        return torch.segment_reduce(values, "sum", lengths=self.size, unsafe=True)

    def normalise(self, values: Tensor) -> Tensor:
        """values_ij / Σ_k values_ik."""
        return values / self.sums(values)[self.rows]

    def chunks(self, width: int) -> Iterator[slice]:
        """Slices of the edges, small enough that (slice, width) stays a moderate temporary."""
        step = max(1, _CHUNK // max(1, width))
        for start in range(0, len(self.rows), step):
            yield slice(start, min(start + step, len(self.rows)))

    def differences(self, x: Tensor, edges: slice) -> Tensor:
        """x_j − x_i for some of the edges: (N, d) gives (slice, d)."""
        return x[self.cols[edges]] - x[self.own_cols[self.rows[edges]]]

    def distances(self, x: Tensor) -> Tensor:
        """‖x_j − x_i‖₂: (N, d) gives (E,)."""
        parts = [self.differences(x, edges).norm(dim=1) for edges in self.chunks(x.shape[1])]
        return torch.cat(parts)

    def medians(self, values: Tensor, among: Tensor) -> Tensor:
        """Each row's median of ``values`` over the edges in ``among``: (R,), NaN where there are none.

        Of an even number the lower of the two middle values, so that one of two neighbours cannot raise it.
        """
        shown = torch.where(among, values, torch.inf)
        order = shown.argsort(stable=True)
        order = order[self.rows[order].argsort(stable=True)]
        count = self.sums(among.to(values.dtype)).long()
        middle = shown[order[self.offsets[:-1] + (count - 1).clamp(min=0) // 2]]
        return torch.where(count > 0, middle, torch.nan)
