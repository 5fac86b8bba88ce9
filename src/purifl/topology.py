"""Communication graphs, and the mixing weights on them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import networkx as nx
import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from purifl.errors import ConfigError
from purifl.neighbourhood import Neighbourhood
from purifl.registry import Component, Registry

Graph: TypeAlias = "nx.Graph[Any]"
Mixing = Literal["uniform", "metropolis"]
_DRAWS = 100


class Topology(Component):
    """Which clients talk to which: an undirected, connected graph on clients 0..n-1."""

    @abstractmethod
    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """One graph on ``clients`` nodes."""

    def build(self, clients: int, rng: np.random.Generator) -> Graph:
        """A connected graph without self-loops, or an error that says why there is none."""
        graph: Graph = nx.Graph(self.draw(clients, rng))
        graph.remove_edges_from(list(nx.selfloop_edges(graph)))
        if not nx.is_connected(graph):
            parts = nx.number_connected_components(graph)
            raise ConfigError("topology", self.name, f"the graph must be connected, it has {parts} parts")
        return graph


topologies: Registry[Topology] = Registry("topology", "purifl.topology")


@topologies.register("complete")
class Complete(Topology):
    """Every client talks to every other (the paper's default)."""

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """K_n."""
        graph: Graph = nx.complete_graph(clients)
        return graph


@topologies.register("line")
class Line(Topology):
    """Clients in a row, each talking to the one before and the one after."""

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """P_n."""
        graph: Graph = nx.path_graph(clients)
        return graph


@topologies.register("ring")
class Ring(Topology):
    """Clients in a circle, each talking to its two neighbours."""

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """C_n; two clients make a line."""
        graph: Graph = nx.cycle_graph(clients) if clients > 2 else nx.path_graph(clients)
        return graph


@topologies.register("star")
class Star(Topology):
    """Client 0 talks to all others, who talk to it alone."""

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """A hub and n - 1 leaves."""
        graph: Graph = nx.star_graph(clients - 1)
        return graph


@topologies.register("grid")
class Grid(Topology):
    """A rectangle as near to a square as n allows (10: 2×5); for a prime n its last row is not full."""

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """Numbered row by row."""
        height = max(h for h in range(1, math.isqrt(clients) + 1) if clients % h == 0)
        width = clients // height if height > 1 else math.ceil(math.sqrt(clients))
        graph: Graph = nx.empty_graph(clients)
        right = [(k, k + 1) for k in range(clients - 1) if k % width != width - 1]
        down = [(k, k + width) for k in range(clients - width)]
        graph.add_edges_from(right + down)
        return graph


def _first_connected(draw: Callable[[int], Graph], rng: np.random.Generator) -> Graph:
    """Draw random graphs until one is connected; after many tries return one that is not."""
    for _ in range(_DRAWS):
        graph = draw(int(rng.integers(2**32)))
        if nx.is_connected(graph):
            break
    return graph


@topologies.register("k-regular")
class KRegular(Topology):
    """A random graph in which every client has the same number of neighbours."""

    degree: int = Field(4, ge=1, description="neighbours of each client, itself not counted")

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """Uniform among regular graphs; n·degree must be even and degree < n."""
        if self.degree >= clients or clients * self.degree % 2:
            raise ConfigError(
                "topology.degree", self.degree, f"it must be under {clients} and clients × degree must be even"
            )
        return _first_connected(lambda seed: nx.random_regular_graph(self.degree, clients, seed=seed), rng)


@topologies.register("erdos-renyi")
class ErdosRenyi(Topology):
    """Every pair of clients talks with the same probability, redrawn until connected."""

    probability: float = Field(0.5, gt=0, le=1, description="of an edge between two clients")

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """G(n, p) given that it is connected, tried 100 times."""
        return _first_connected(lambda seed: nx.fast_gnp_random_graph(clients, self.probability, seed=seed), rng)


@topologies.register("small-world")
class SmallWorld(Topology):
    """A ring of near neighbours with some links rewired far away (Watts and Strogatz)."""

    degree: int = Field(4, ge=2, description="neighbours on the ring before rewiring, half on each side")
    probability: float = Field(0.1, ge=0, le=1, description="that a link is rewired")

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """Watts-Strogatz given that it is connected."""
        if self.degree >= clients or self.degree % 2:
            raise ConfigError("topology.degree", self.degree, f"it must be even and under the {clients} clients")
        return _first_connected(
            lambda seed: nx.watts_strogatz_graph(clients, self.degree, self.probability, seed=seed), rng
        )


@topologies.register("file")
class FromFile(Topology):
    """A graph you bring: GraphML (.graphml, .xml) or an edge list (one pair of names a line)."""

    path: Annotated[Path, AfterValidator(Path.absolute)] = Field(
        description="the file; its nodes, in sorted order, become clients 0..n-1"
    )

    def draw(self, clients: int, rng: np.random.Generator) -> Graph:
        """The graph in the file, which must have as many nodes as there are clients."""
        graph = self._read()
        if graph.number_of_nodes() != clients:
            raise ConfigError(
                "clients", clients, f"the graph in {self.path} has {graph.number_of_nodes()} nodes; use that number"
            )
        names = sorted(graph.nodes, key=lambda name: (not str(name).isdigit(), len(str(name)), str(name)))
        ordered: Graph = nx.empty_graph(clients)
        position = {name: k for k, name in enumerate(names)}
        ordered.add_edges_from((position[a], position[b]) for a, b in graph.edges)
        return ordered

    def _read(self) -> Graph:
        try:
            if self.path.suffix.lower() in {".graphml", ".xml"}:
                return nx.Graph(nx.read_graphml(self.path))
            return nx.read_edgelist(self.path, data=False)
        except Exception as error:
            raise ConfigError("topology.path", str(self.path), f"cannot read a graph from it: {error}") from error


def neighbourhood(
    graph: Graph, clients: list[int], rows: list[int], private: frozenset[int] = frozenset()
) -> Neighbourhood:
    """The neighbourhood of some ``rows`` in a graph whose columns are ``clients``, in that order.

    A client in ``private`` says something else to each of the rows, so each hears it in a column of its own,
    after the common ones. Rows, columns and ``private`` are client ids.
    """
    position = {client: k for k, client in enumerate(clients)}
    owner = list(range(len(clients)))
    heard = []
    for i in rows:
        columns = []
        for j in sorted((i, *graph.neighbors(i)), key=position.__getitem__):
            if j in private and j != i:
                owner.append(position[j])
            columns.append(len(owner) - 1 if j in private and j != i else position[j])
        heard.append(columns)
    reach = [1 + graph.degree[clients[k]] for k in owner]
    return Neighbourhood.of(heard, [position[i] for i in rows], owner, reach)


def mixing_weights(kind: Mixing, hood: Neighbourhood, trust: Tensor, offered: Tensor, kept: Tensor) -> Tensor:
    """The weights w_ij with which row i mixes what it heard, from the trust each end puts in the other.

    Trust starts at 1/m_i, m_i = |N_i|, and is lowered by a detector. With ``uniform`` the weights are the
    trust itself (the paper), normalised over the edges ``kept``. With ``metropolis`` they are

        w_ij = min(trust_ij, trust_ji),    w_ii = 1 − Σ_{j≠i} w_ij,

    which without any suspicion is min(1/m_i, 1/m_j) = 1/(1 + max(deg_i, deg_j)), the Metropolis–Hastings
    weights, and stays symmetric whatever happens to the trust: what gradient tracking needs to conserve
    Σγ = Σg on irregular graphs. Weight taken from a neighbour goes back to oneself. A neighbour that lies
    about its trust can only lower its own weight.

    Args:
        kind: Which of the two.
        hood: The edges.
        trust: (E,) row i's trust in column j.
        offered: (E,) column j's trust in row i, as j says.
        kept: (E,) edges that count this round; a client's edge to itself always does.
    """
    if kind == "uniform":
        return hood.normalise(torch.where(kept, trust, 0))
    weights = torch.where(kept & hood.to_others, torch.minimum(trust, offered), 0)
    return torch.where(hood.to_self, 1 - hood.sums(weights)[hood.rows], weights)
