"""Bring your own model, data and graph: eight hospitals, one of which mislabels everything."""

import networkx as nx
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

from purifl import Client, Federation, Samples, Training


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


def main() -> float:
    x, y = load_breast_cancer(return_X_y=True)
    data = Samples(torch.tensor(StandardScaler().fit_transform(x)).float(), torch.tensor(y))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    test, shares = data.at(order[:169]), [data.at(part) for part in order[169:].chunk(8)]

    clients = [Client(k, share) for k, share in enumerate(shares)]
    clients[4] = Client(4, shares[4], poisoned=Samples(shares[4].x, 1 - shares[4].y))

    federation = Federation(model, clients, nx.complete_graph(8), training=Training(batch_size=16, step_size=0.05))
    for _ in range(20):
        federation.step()

    with torch.no_grad():
        right: list[float] = [
            (federation.engine.use(federation.theta[k])(test.x).argmax(1) == test.y).float().mean().item()
            for k in federation.benign
        ]
    cut = federation.hood.cols[federation.cut].tolist()
    print(f"accuracy of the honest hospitals: {', '.join(f'{value:.1%}' for value in right)}")
    print(f"times each client was cut off: { {k: cut.count(k) for k in sorted(set(cut))} }")
    return min(right)


if __name__ == "__main__":
    main()
