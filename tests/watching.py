"""Messages of gradient tracking, and what the detector makes of them round by round."""

from itertools import pairwise

import networkx as nx
import numpy as np
import torch

from purifl.defenses import Heard
from purifl.detection import lower_trust
from purifl.detection.persistence import Persistence
from purifl.topology import neighbourhood


def everyone(hood):
    return torch.ones_like(hood.to_self)


def first(hood, gamma):
    """The first exchange, in which everybody says its trust 1/m."""
    return Heard(gamma, gamma, (1 / hood.reach.double())[hood.cols], everyone(hood))


def tracked(graph, gradients):
    """γ of gradient tracking over ``gradients`` (T, n, d), with Metropolis weights."""
    n = graph.number_of_nodes()
    weights = np.zeros((n, n))
    for a, b in graph.edges:
        weights[a, b] = weights[b, a] = 1 / (1 + max(graph.degree[a], graph.degree[b]))
    weights += np.diag(1 - weights.sum(1))
    gamma = [gradients[0]]
    for before, now in pairwise(gradients):
        gamma.append(weights @ gamma[-1] + now - before)
    return np.array(gamma)


def watch(graph, messages, gradients=None, **parameters):
    """Scores, round by round; without ``gradients``, as if everybody's own were 0 and messages had to tell."""
    clients = list(range(graph.number_of_nodes()))
    hood = neighbourhood(graph, clients, clients)
    detector = Persistence(**parameters)
    state = detector.begin(hood, first(hood, torch.tensor(messages[0])))
    own = np.zeros_like(messages) if gradients is None else gradients
    return hood, [
        detector.scores(state, hood, torch.tensor(message), everyone(hood), torch.tensor(each))
        for message, each in zip(messages, own, strict=True)
    ]


def least_trust(hood, scores):
    """(E,) the least that Algorithm 2 makes of the scores, as a share of what everybody has at first."""
    least = trust = hood.uniform.double()
    for each in scores:
        trust = lower_trust(hood, trust, each, everyone(hood))
        least = torch.minimum(least, trust)
    return least / hood.uniform


def setting(n=6, d=4, seed=0, density=0.6):
    graph = nx.compose(nx.path_graph(n), nx.gnp_random_graph(n, density, seed=seed))
    hood = neighbourhood(graph, list(range(n)), list(range(n)))
    gamma = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return hood, gamma, list(zip(hood.rows.tolist(), hood.cols.tolist(), strict=True))


GRAPHS = {
    "complete": nx.complete_graph(10), "ring": nx.cycle_graph(10), "star": nx.star_graph(9), "line": nx.path_graph(10),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(2, 5)),
}  # fmt: skip
