"""A federation on quadratics, where optima and biases are known in closed form.

Client i holds L_i(x) = ½ (x − a_i)ᵀ A_i (x − a_i); malicious clients, the last ones, send the gradient of a
quadratic whose optimum lies 8 away. The model is the vector x itself, and a client's only sample is [A_i | a_i].
"""

from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from torch import nn

from purifl.data import Samples
from purifl.federation import Federation
from purifl.training import Client, Training


class Point(nn.Module):
    """f([A | a]) = ½ (x − a)ᵀ A (x − a), with x the parameters."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.clone())

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        matrix, centre = sample[..., :-1], sample[..., -1]
        gap = self.x - centre
        return 0.5 * torch.einsum("bi,bij,bj->b", gap, matrix, gap)


@dataclass
class Problem:
    """The clients' quadratics, drawn by a seed."""

    clients: list[Client]
    start: torch.Tensor
    benign: list[int]

    def optimum(self, weights: np.ndarray | None = None) -> torch.Tensor:
        """The minimiser of Σ_B w_i L_i, equal weights if none are given."""
        chosen = np.ones(len(self.benign)) if weights is None else weights
        parts = [self.clients[k].data.x[0] for k in self.benign]
        matrix = sum(w * p[:, :-1] for w, p in zip(chosen, parts, strict=True))
        right = sum(w * p[:, :-1] @ p[:, -1] for w, p in zip(chosen, parts, strict=True))
        return torch.linalg.solve(matrix, right)

    def distance(self, federation: Federation) -> float:
        """Mean distance of the benign models to the benign optimum."""
        return (federation.theta[federation.benign] - self.optimum()).norm(dim=1).mean().item()


def _sample(matrix: np.ndarray, centre: np.ndarray) -> Samples:
    return Samples(torch.tensor(np.column_stack([matrix, centre]))[None], torch.zeros(1, dtype=torch.int64))


def problem(seed=0, n=10, malicious=2, d=20, heterogeneity=1.0, scale=1.0) -> Problem:
    """Curvatures between 0.5 and 1.5, benign optima about ``heterogeneity`` from the origin, start at distance 3."""
    rng = np.random.default_rng(seed)
    rotations = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(n)]
    matrices = [scale * (q * rng.uniform(0.5, 1.5, d)) @ q.T for q in rotations]
    centres = heterogeneity * rng.normal(size=(n, d)) / np.sqrt(d)
    evil, start = (size * v / np.linalg.norm(v) for size, v in ((8, rng.normal(size=d)), (3, rng.normal(size=d))))
    benign = list(range(n - malicious))
    clients = [
        Client(k, _sample(matrices[k], centres[k]), None if k in benign else _sample(matrices[k], evil))
        for k in range(n)
    ]
    return Problem(clients, torch.tensor(start), benign)


def federation(quad: Problem, graph: nx.Graph | None = None, step=0.1, **options) -> Federation:
    """A federation with exact gradients."""
    return Federation(
        lambda: Point(quad.start),
        quad.clients,
        graph if graph is not None else nx.complete_graph(len(quad.clients)),
        training=Training(gradient="batch", batch_size=1, step_size=step),
        loss=lambda output, _: output.mean(),
        **options,
    )


def steps(fed: Federation, count: int) -> Federation:
    for _ in range(count):
        fed.step()
    return fed


def tracking_error(fed: Federation) -> float:
    """‖Σ_B γ − Σ_B g‖ / b."""
    return (fed.gamma - fed.gradient)[fed.benign].mean(0).norm().item()
