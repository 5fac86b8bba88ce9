"""Who hears whom, and the arithmetic over it: every rule is "client i combines what it heard from j".

A :class:`Neighbourhood` has R *rows*, the clients computed here, and N *columns*, the clients heard. A
simulation has all clients as both; one peer on a network has a single row and its neighbours as columns.
It is stored edge by edge (i, j), a client's edge to itself included, so cost and memory grow with the
number of edges. In the shapes below E is that number and d the number of model parameters. Where a good
part of all R·N pairs are edges, sums over them are taken as dense products; what comes out is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

_CHUNK = 1 << 19  # numbers handled at once where an (E, d) temporary would otherwise arise: they stay in cache
_COUNTABLE = (1 << 31) - 1  # numbers in a factor of a sparse product: libraries count them in int32
_CUDA_WIDTH = 1 << 15  # with millions of columns CUDA's sparse product leaves its result empty, without an error
_DENSE = 1 / 4  # share of pairs that are edges from which on a dense product is faster than one over the edges
_NOISE = 1e-12  # of ‖x_i‖² + ‖x_j‖²: what rounding can leave of ‖x_j − x_i‖² in a product of two vectors

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
        reach: (N,) m_j, how many that client hears, itself included. It is part of the graph, and never its own word.
        clients: How many there are in the federation, whether or not anybody here hears them.
    """

    rows: Tensor
    cols: Tensor
    own: Tensor
    owner: Tensor
    reach: Tensor
    clients: int

    @classmethod
    def of(
        cls,
        heard: Sequence[Sequence[int]],
        own: Sequence[int],
        owner: Sequence[int],
        reach: Sequence[int],
        clients: int | None = None,
    ) -> Neighbourhood:
        """Rows that hear the columns ``heard[i]``, one of which, ``own[i]``, is the row itself.

        ``clients`` is how many there are in all; if not given, as many as have a column.
        """
        rows = [i for i, js in enumerate(heard) for _ in js]
        cols = [j for js in heard for j in js]
        starts = torch.tensor([0, *(len(js) for js in heard)]).cumsum(0)
        loops = [int(starts[i]) + list(js).index(own[i]) for i, js in enumerate(heard)]
        numbers = (rows, cols, loops, owner, reach)
        i, j, own_edges, owners, theirs = (torch.tensor(each, dtype=torch.int64) for each in numbers)
        return cls(i, j, own_edges, owners, theirs, len(set(owner)) if clients is None else clients)

    def to(self, device: torch.device | str) -> Neighbourhood:
        """The same neighbourhood on ``device``."""
        tensors = (self.rows, self.cols, self.own, self.owner, self.reach)
        rows, cols, own, owner, reach = (x.to(device) for x in tensors)
        return Neighbourhood(rows, cols, own, owner, reach, self.clients)

    @cached_property
    def size(self) -> Tensor:
        """(R,) m_i = |N_i|, the client itself included."""
        return torch.bincount(self.rows, minlength=len(self.own))

    @cached_property
    def at_ends(self) -> tuple[Tensor, Tensor]:
        """(E,) m_i and (E,) m_j in float64: how many are heard at either end of each edge."""
        return self.size[self.rows].double(), self.reach[self.cols].double()

    @cached_property
    def offsets(self) -> Tensor:
        """(R + 1,) where each row's edges begin."""
        return torch.cat([self.size.new_zeros(1), self.size.cumsum(0)])

    @cached_property
    def own_cols(self) -> Tensor:
        """(R,) the column of each row's own client."""
        return self.cols[self.own]

    @cached_property
    def listeners(self) -> Tensor:
        """(E,) the column of the client that hears, at each edge."""
        return self.own_cols[self.rows]

    @property
    def columns(self) -> int:
        """N."""
        return len(self.owner)

    @cached_property
    def dense(self) -> bool:
        """Whether so many pairs of a row and a column are edges that dense products pay."""
        return len(self.rows) >= _DENSE * len(self.own) * self.columns

    @cached_property
    def senders(self) -> Tensor:
        """(E,) the client at the other end of each edge."""
        return self.owner[self.cols]

    @cached_property
    def to_self(self) -> Tensor:
        """(E,) whether the edge is a client's edge to itself."""
        return self.cols == self.listeners

    @cached_property
    def to_others(self) -> Tensor:
        """(E,) whether the edge is to another client."""
        return ~self.to_self

    @cached_property
    def uniform(self) -> Tensor:
        """(E,) 1/m_i in float64, the trust that everybody begins with."""
        return (1 / self.size.double())[self.rows]

    @cached_property
    def reverse(self) -> Tensor:
        """(E,) position, among the edges, of the edge (j, i); −1 where j is no row here."""
        edges = self.listeners * self.columns + self.cols
        wanted = self.cols * self.columns + self.listeners
        known, order = edges.sort()
        place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
        return torch.where(known[place] == wanted, order[place], -1)

    @cached_property
    def opposite(self) -> Tensor:
        """(E,) position of the edge (j, i), as :attr:`reverse`, and of the edge itself where j is no row here."""
        return torch.where(self.reverse >= 0, self.reverse, torch.arange(len(self.rows), device=self.rows.device))

    @cached_property
    def neighbours(self) -> Tensor:
        """Positions of the edges to other clients."""
        return self.to_others.nonzero().flatten()

    @cached_property
    def pairs(self) -> Tensor:
        """Positions of the edges to other clients, of two opposite ones (i, j) and (j, i) only the first."""
        reverse = self.reverse[self.neighbours]
        return self.neighbours[(reverse < 0) | (reverse > self.neighbours)]

    def part(self, edges: Tensor) -> Neighbourhood:
        """Only the ``edges``, a mask (E,), and the rows whose they are; these keep their edges to themselves."""
        rows = edges[self.own]
        row, edge = rows.cumsum(0) - 1, edges.cumsum(0) - 1
        own = edge[self.own[rows]]
        return Neighbourhood(row[self.rows[edges]], self.cols[edges], own, self.owner, self.reach, self.clients)

    def combine(self, values: Tensor, x: Tensor) -> Tensor:
        """Σ_j values_ij x_j: (E,) and (N, d) give (R, d). In a dense product all meet all, so x must be finite."""
        return self._matrix(values) @ x if self.dense else self.fold(values, self.cols, x)

    def accumulate(self, total: Tensor, values: Tensor, x: Tensor) -> None:
        """total_i += Σ_j values_ij x_j, in place: (R, d), (E,) and (N, d), finite."""
        if self.dense:
            total.addmm_(self._matrix(values), x)
        else:
            add_rows(total, self.offsets, values, self.cols, x)

    def fold(self, values: Tensor, place: Tensor, vectors: Tensor) -> Tensor:
        """Σ_j values_ij y_ij, where y_ij is vectors[place_ij]: (E,), (E,) and (V, d) give (R, d)."""
        total = vectors.new_zeros(len(self.own), vectors.shape[1])
        add_rows(total, self.offsets, values, place, vectors)
        return total

    @cached_property
    def _cells(self) -> Tensor:
        """(E,) where in a table (R, N) each edge stands."""
        return self.rows * self.columns + self.cols

    @cached_property
    def _edges(self) -> Tensor:
        """(R·N,) the edge at each place of such a table, E where there is none."""
        edges = torch.full((len(self.own) * self.columns,), len(self.rows), device=self.rows.device)
        return edges.index_copy_(0, self._cells, torch.arange(len(self.rows), device=self.rows.device))

    def _matrix(self, values: Tensor) -> Tensor:
        """(R, N) the values where there are edges, 0 elsewhere."""
        return torch.cat([values, values.new_zeros(1)])[self._edges].view(len(self.own), self.columns)

    def sums(self, values: Tensor) -> Tensor:
        """Σ_j values_ij: (E,) gives (R,)."""
        return torch.segment_reduce(values, "sum", lengths=self.size, unsafe=True)

    def maxima(self, values: Tensor) -> Tensor:
        """max_j values_ij: (E,) gives (R,)."""
        return torch.segment_reduce(values, "max", lengths=self.size, unsafe=True)

    def normalise(self, values: Tensor) -> Tensor:
        """values_ij / Σ_k values_ik."""
        return values / self.sums(values)[self.rows]

    def distances(self, x: Tensor) -> Tensor:
        """‖x_j − x_i‖₂: (N, d) gives (E,), ∞ to and from a vector that is not finite."""
        return self.exact_distances(x).to(x.dtype)

    def exact_distances(self, x: Tensor) -> Tensor:
        """The same in float64, which no vector of finite float32 numbers is too long for."""
        return self.geometry(x)[0][0]

    def geometry(self, *xs: Tensor) -> tuple[Tensor, Tensor]:
        """‖x_j − x_i‖₂ (K, E) and ‖x_j‖₂ (K, N) in float64, of K times N vectors (N, d).

        On dense graphs from ‖x_i‖² + ‖x_j‖² − 2⟨x_i, x_j⟩ in float64, where numbers of float32 are exact: a distance
        of 1e-4 of the vectors' lengths is then right to 1e-5 of itself. What is below the rounding of such a product
        counts as 0, so that equal vectors have no distance.
        """
        if self._by_products(xs[0]):
            products, squares = self._products(*xs)
            own = squares if self._all_with_all else squares[:, self.own_cols]
            both = own[:, :, None] + squares[:, None]
            between = torch.sub(both, products, alpha=2)
            between = between.masked_fill_(between < _NOISE * both, 0).flatten(1)[:, self._products_at]
            distances, lengths = between.sqrt_(), squares.sqrt()
        else:
            distances, lengths = torch.stack([self._by_edges(x) for x in xs]), torch.stack([norms(x) for x in xs])
        return distances.nan_to_num_(torch.inf, torch.inf), lengths

    def dots(self, x: Tensor) -> Tensor:
        """⟨x_i, x_j⟩ in float64: (N, d) gives (E,)."""
        if self._by_products(x):
            return self._products(x)[0].flatten()[self._products_at]
        return pair_products(x, self.listeners, x, self.cols)

    def products(self, x: Tensor, y: Tensor) -> Tensor:
        """⟨x_i, y_j⟩ in float64: (R, d) and (N, d) give (E,)."""
        if not self.dense:
            return pair_products(x, self.rows, y, self.cols)
        table = torch.zeros(len(self.own), self.columns, dtype=torch.float64, device=x.device)
        for part in chunks(x.shape[1], len(self.own) + self.columns):
            table.addmm_(x[:, part].double(), y[:, part].double().T)
        return table.flatten()[self._cells]

    def _by_products(self, x: Tensor) -> bool:
        return self.dense and x.dtype != torch.float64

    @cached_property
    def _all_with_all(self) -> bool:
        """Whether so many columns are rows as well that taking the rows' vectors out is more work than it saves."""
        return self.columns <= 2 * len(self.own)

    @cached_property
    def _products_at(self) -> Tensor:
        """(E,) where the edges stand in a table of all columns, or of the rows, with all columns."""
        return self.listeners * self.columns + self.cols if self._all_with_all else self._cells

    def _products(self, *xs: Tensor) -> tuple[Tensor, Tensor]:
        """⟨x_i, x_j⟩ of all columns, or of the rows, with all columns, and ‖x_j‖² (K, N), in float64, by pieces."""
        count, wide = len(xs), self.columns
        high = wide if self._all_with_all else len(self.own)
        table = torch.zeros(count, high, wide, dtype=torch.float64, device=xs[0].device)
        squares = table.diagonal(dim1=1, dim2=2) if self._all_with_all else table.new_zeros(count, wide)
        for part in chunks(xs[0].shape[1], count * wide):
            columns = table.new_empty(count, wide, part.stop - part.start)
            for k, x in enumerate(xs):
                columns[k] = x[:, part]
            table.baddbmm_(columns if self._all_with_all else columns[:, self.own_cols], columns.mT)
            if not self._all_with_all:
                squares += columns.square_().sum(2)
        return table, squares

    def _by_edges(self, x: Tensor) -> Tensor:
        parts = (differences(x, self.cols[e], self.listeners[e]) for e in chunks(len(self.rows), x.shape[1]))
        return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])

    def medians(self, values: Tensor, among: Tensor) -> Tensor:
        """Each row's median of ``values`` over the edges in ``among``: (R,), NaN where there are none.

        Of an even number the lower of the two middle values, so that one of two neighbours cannot raise it.
        """
        return self.quantiles(values, among, 0.5)

    def quantiles(self, values: Tensor, among: Tensor, share: float) -> Tensor:
        """Each row's quantile over the edges in ``among``: (R,), NaN where there are none; between two, the lower."""
        shown = torch.where(among, values, torch.nan)  # sorted behind all numbers
        place = ((self.sums(among.to(values.dtype)) - 1) * share).long()
        if len(shown) == len(self.own) * self.columns:
            return shown.view(-1, self.columns).sort(1).values.gather(1, place[:, None])[:, 0]
        order = shown.argsort(stable=True)
        order = order[self.rows[order].argsort(stable=True)]
        return shown[order[self.offsets[:-1] + place]]


def add_rows(total: Tensor, offsets: Tensor, values: Tensor, place: Tensor, vectors: Tensor) -> None:
    """total_r += Σ_e values_e vectors[place_e], in place, over the e from offsets[r] up to offsets[r + 1]."""
    shape = (len(total), len(vectors))
    if max(shape) * vectors.shape[1] > _COUNTABLE:
        _add_one_by_one(total, offsets, values, place, vectors)
        return
    matrix = torch.sparse_csr_tensor(offsets, place, values, shape, check_invariants=False)
    if vectors.device.type == "cpu":
        total.addmm_(matrix, vectors)
        return
    for into, part in zip(torch.split(total, _CUDA_WIDTH, 1), torch.split(vectors, _CUDA_WIDTH, 1), strict=True):
        into.add_(torch.sparse.mm(matrix, part.contiguous()))


def _add_one_by_one(total: Tensor, offsets: Tensor, values: Tensor, place: Tensor, vectors: Tensor) -> None:
    bounds, terms = offsets.tolist(), list(zip(values.tolist(), place.tolist(), strict=True))
    for row, (start, end) in enumerate(pairwise(bounds)):
        for value, there in terms[start:end]:
            total[row].add_(vectors[there], alpha=value)


def chunks(count: int, width: int) -> Iterator[slice]:
    """Slices of ``count`` vectors, small enough that (slice, width) stays a moderate temporary."""
    step = max(1, _CHUNK // max(1, width))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def surely_none(marked: Tensor) -> bool:
    """Whether it can be told at once that nothing is marked; to ask a GPU, the host would wait for it."""
    return marked.device.type == "cpu" and not marked.any()


def gram(x: Tensor) -> Tensor:
    """(N, N) ⟨x_i, x_j⟩ in float64, a few coordinates at a time."""
    table = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for part in chunks(x.shape[1], len(x)):
        columns = x[:, part].double()
        table.addmm_(columns, columns.T)
    return table


def pair_products(x: Tensor, rows: Tensor, y: Tensor, cols: Tensor) -> Tensor:
    """(K,) ⟨x_i, y_j⟩ in float64 for pairs of ``rows`` i and ``cols`` j, a few at a time."""
    return torch.cat([(x[rows[k]].double() * y[cols[k]]).sum(1) for k in chunks(len(rows), x.shape[1])])


def norms(x: Tensor) -> Tensor:
    """(N,) ‖x_j‖₂ in float64, a few vectors at a time."""
    parts = [torch.linalg.vector_norm(x[part], dim=1, dtype=torch.float64) for part in chunks(*x.shape)]
    return torch.cat(parts)


def differences(x: Tensor, to: Tensor, of: Tensor) -> Tensor:
    """x_j − x_i for pairs of columns j (``to``) and i (``of``)."""
    return x.index_select(0, to).sub_(x.index_select(0, of))
