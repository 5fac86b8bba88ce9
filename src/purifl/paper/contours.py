"""Problems with two parameters, small enough to be seen: the real federation on them, and where its clients went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from purifl.data import Samples
from purifl.defenses import defenses
from purifl.federation import Federation
from purifl.training import Client, Training

Path2D = NDArray[np.float64]


class Landscape(nn.Module):
    """L(x) = ½ Σ_k c_k (x_k − m_k)² − Σ_w depth_w exp(−‖x − m_w‖² / 2 width_w²), x the two parameters.

    A sample is the matrix of [c, 0, 0], [m, 0, 0] and a row of depth, place and width for each well.
    """

    def __init__(self, start: list[float]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, sample: Tensor) -> Tensor:
        """The loss of each sample."""
        curvature, centre, wells = sample[:, 0, :2], sample[:, 1, :2], sample[:, 2:]
        bowl = 0.5 * (curvature * (self.x - centre) ** 2).sum(1)
        reach = ((self.x - wells[..., 1:3]) ** 2).sum(2) / (2 * wells[..., 3] ** 2)
        return bowl - (wells[..., 0] * torch.exp(-reach)).sum(1)


@dataclass(frozen=True)
class Track:
    """Where the benign clients went.

    Attributes:
        paths: (rounds + 1, clients, 2).
        cut: The round in which the attacker was cut by all; None if never.
        loss: The mean benign loss where they ended.
        distance: Their mean distance from its least point, at the end.
    """

    paths: Path2D
    cut: int | None
    loss: float
    distance: float


@dataclass(frozen=True)
class Problem:
    """Clients' losses, one of them malicious, as an item's data has them."""

    data: dict[str, Any]

    def _sample(self, bowl: dict[str, Any], wells: list[list[float]]) -> Samples:
        rows = [[*bowl["curvature"], 0.0, 0.0], [*bowl["centre"], 0.0, 0.0], *wells]
        return Samples(torch.tensor([rows], dtype=torch.float64), torch.zeros(1, dtype=torch.int64))

    def _clients(self, attacked: bool) -> list[Client]:
        wells = self.data.get("wells", [])
        evil = self.data["malicious"]
        flat = [[0.0, 0.0, 0.0, 1.0] for _ in wells]
        return [
            Client(
                k,
                self._sample(own, wells),
                self._sample(evil, flat) if attacked and k == evil["client"] else None,
            )
            for k, own in enumerate(self.data["clients"])
        ]

    def benign(self, honest: bool = False) -> list[Client]:
        """The clients whose loss counts: all of them where everybody is honest."""
        return self._clients(False) if honest else [c for c in self._clients(True) if not c.malicious]

    def loss(self, points: Path2D, honest: bool = False) -> Path2D:
        """(...,) the mean benign loss at points (..., 2)."""
        flat = points.reshape(-1, 2)
        samples = torch.cat([client.data.x for client in self.benign(honest)])
        with torch.no_grad():
            found = [float(Landscape(point)(samples).mean()) for point in flat.tolist()]
        return np.array(found).reshape(points.shape[:-1])

    def optimum(self, honest: bool = False) -> Path2D:
        """The point of least mean benign loss, looked for from the clients' centres and all wells."""
        starts = [own["centre"] for own in self.data["clients"]] + [well[1:3] for well in self.data.get("wells", [])]
        found = [minimize(lambda x: float(self.loss(np.array(x), honest)), start, tol=1e-10) for start in starts]
        best: Path2D = min(found, key=lambda end: end.fun).x
        return best

    def track(self, panel: str) -> Track:
        """Run the federation with a defence; or ``honest``: nobody attacks; or ``upper``: without the attacker."""
        honest = panel == "honest"
        clients = self.benign(honest) if panel in {"honest", "upper"} else self._clients(True)
        name = "lower" if panel in {"honest", "upper"} else panel
        graph = nx.complete_graph(len(self.data["clients"])).subgraph([client.id for client in clients])
        federation = Federation(
            lambda: Landscape(self.data["start"]),
            clients,
            nx.Graph(graph),
            training=Training(gradient="batch", batch_size=1, step_size=self.data["step_size"]),
            defense=defenses.resolve(name).for_rounds(self.data["rounds"]),
            loss=lambda output, _: output.mean(),
            engine="loop",
        )
        paths, cut = [federation.theta[federation.benign].numpy().copy()], None
        for _ in range(self.data["rounds"]):
            federation.step()
            paths.append(federation.theta[federation.benign].numpy().copy())
            if cut is None and len(federation.malicious) and not (federation.to_malicious & ~federation.cut).any():
                cut = federation.round
        end = paths[-1]
        distance = float(np.linalg.norm(end - self.optimum(honest), axis=1).mean())
        return Track(np.array(paths), cut, float(self.loss(end, honest).mean()), distance)
