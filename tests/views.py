"""Views as a federation would give them to an attack, made by hand."""

import networkx as nx
import torch

from purifl.attacks import View
from purifl.data import Samples
from purifl.federation import Federation
from purifl.topology import neighbourhood
from purifl.training import Client, Training
from quadratics import Point, Problem, problem


def messages(n, d=6, seed=0, dtype=torch.float64):
    """n random messages, with some coordinates of one sign, tied or all zero."""
    gamma = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    gamma[:, 0] = gamma[:, 0].abs() + 0.1
    gamma[:, 1] = -gamma[:, 1].abs() - 0.1
    gamma[:, 2] = 0
    gamma[:, 3] = 0.5
    return gamma


def view(gamma, malicious, graph=None, *, private=False, partial=False, trust=None, cut=None, seed=0, **changes):
    """What attackers on a (complete) graph see when everybody's honest message is ``gamma``."""
    n = len(gamma)
    graph = nx.complete_graph(n) if graph is None else graph
    benign = [k for k in range(n) if k not in malicious]
    hood = neighbourhood(graph, list(range(n)), benign, frozenset(malicious if private else ()))
    ours = [k for k in range(hood.columns) if int(hood.owner[k]) in malicious and (k >= n) == private]
    known = [k for k in benign if not partial or set(graph.neighbors(k)) & set(malicious)]
    start = (1 / hood.size.to(gamma.dtype))[hood.rows]
    trust = start if trust is None else trust
    made = {
        "round": 0,
        "clients": n,
        "hood": hood,
        "gamma": gamma[hood.owner],
        "seen": gamma[known],
        "columns": torch.tensor(ours, dtype=torch.int64),
        "trust": trust,
        "cut": torch.zeros_like(hood.to_self) if cut is None else cut,
        "foresee": lambda _: trust,
        "threshold": 0.1 * start,
        "rng": torch.Generator().manual_seed(seed),
    }
    return View(**made | changes)


def honest_problem(n=10, malicious=(8, 9), **options) -> Problem:
    """Quadratics in which the malicious clients' data is honest: what they craft is all that is wrong."""
    quad = problem(n=n, malicious=0, **options)
    clients = [Client(c.id, c.data, malicious=c.id in malicious) for c in quad.clients]
    return Problem(clients, quad.start, [k for k in range(n) if k not in malicious])


def benign_spread(x):
    """Mean distance to the mean."""
    return (x - x.mean(0)).norm(dim=1).mean().item()


def single_precision(quad: Problem, graph, **options) -> Federation:
    """The same federation in float32."""
    single = [Client(c.id, Samples(c.data.x.float(), c.data.y), malicious=c.malicious) for c in quad.clients]
    return Federation(
        lambda: Point(quad.start.float()), single, graph,
        training=Training(gradient="batch", batch_size=1, step_size=0.1),
        loss=lambda output, _: output.mean(), **options,
    )  # fmt: skip
