"""Where clients stand in a picture of their graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from purifl.result import Result

CROWD = 40
"""Clients from which on a graph is crowded."""

Position = tuple[float, float]


def layout(result: Result, results: Sequence[Result]) -> dict[int, Position]:
    """A spot in [-1, 1]² for every client, the same in all runs on the same graph.

    Trust names only the edges of benign clients that take part, so the graph is put together from every run
    that has it, and what is then still apart is tied on, for otherwise it would be pushed out of the picture.
    """
    own = result.experiment
    if own.topology.name in {"complete", "ring"}:
        turn = 2 * math.pi / own.clients
        return {k: (math.sin(k * turn), math.cos(k * turn)) for k in range(own.clients)}
    graph = nx.empty_graph(own.clients)
    for other in results:
        its = other.experiment
        if (its.topology, its.clients, its.seed) == (own.topology, own.clients, own.seed):
            graph.add_edges_from((edge["client"], edge["neighbour"]) for edge in other.trust)
    graph.add_edges_from(list(nx.k_edge_augmentation(graph, 1)))
    if own.clients > CROWD:
        return _fill_square(nx.spring_layout(graph, seed=0))
    start = nx.planar_layout(graph) if nx.is_planar(graph) else None
    return _fill_square(nx.kamada_kawai_layout(graph, pos=start))


def _fill_square(spots: Mapping[int, NDArray[np.float64]]) -> dict[int, Position]:
    """The layout stretched to [-1, 1] both ways, though a thin one not to more than twice its breadth."""
    where = np.array(list(spots.values()))
    low, high = where.min(0), where.max(0)
    half = np.maximum(high - low, (high - low).max() / 2) / 2
    return {k: (float(x), float(y)) for k, (x, y) in zip(spots, (where - (low + high) / 2) / half, strict=True)}
