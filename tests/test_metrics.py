"""Accuracies, masks and connectivity on a federation whose answers are known."""

import networkx as nx
import pytest
import torch
from torch import nn

from purifl import Client, Federation, Samples
from purifl.metrics import Targets, accuracies, edges, masks, tracking


@pytest.fixture
def fed():
    """Five clients on a ring, client 3 malicious; each benign model always answers its own id."""
    data = Samples(torch.zeros(4, 1), torch.arange(4))
    clients = [Client(k, data, data if k == 3 else None) for k in range(5)]
    federation = Federation(lambda: nn.Linear(1, 5), clients, nx.cycle_graph(5))
    federation.theta[:, :5] = 0
    federation.theta[:, 5:] = torch.eye(5)
    return federation


def test_test_accuracy_is_over_benign_clients_own_models(fed):
    test = Samples(torch.zeros(10, 1), torch.tensor([0] * 4 + [1] * 3 + [3] * 3))
    row = accuracies(fed, Targets(test))
    assert row["accuracy_by_client"] == pytest.approx({"0": 0.4, "1": 0.3, "2": 0.0, "4": 0.0})
    assert row["test_accuracy"] == pytest.approx(0.175)
    assert row["test_accuracy_min"] == 0
    assert row["test_accuracy_std"] == pytest.approx(0.1785, abs=1e-4)
    assert row["attack_accuracy"] is None


def test_attack_accuracy_with_and_without_true_targets(fed):
    """The attacker wants 0. Of five probes two are truly 0; only client 0's model says 0, and it does so always."""
    probe = Samples(torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64))
    genuine = torch.tensor([True, True, False, False, False])
    fed.theta[1, :5], fed.theta[1, 5:] = torch.tensor([-9.0, 9, 0, 0, 0]), 0
    probe.x[:] = torch.tensor([[-1.0], [-1], [-1], [1], [1]])  # client 1 now says 0 for negative inputs
    row = accuracies(fed, Targets(Samples(torch.zeros(1, 1), torch.zeros(1).long()), probe, genuine))
    assert row["attack_accuracy"] == pytest.approx((3 + 1) / (4 * 3))
    assert row["attack_accuracy_all"] == pytest.approx((5 + 3) / (4 * 5))


def test_a_model_that_is_not_finite_is_right_about_nothing(fed):
    fed.theta[0] = torch.nan
    row = accuracies(fed, Targets(Samples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))))
    assert row["accuracy_by_client"]["0"] == 0


def test_masks_count_edges_and_components(fed):
    assert masks(fed) == {"missed_edges": 2, "false_alarm_edges": 0, "benign_components": 1}
    ends = [(int(fed.hood.own_cols[r]), int(c)) for r, c in zip(fed.hood.rows, fed.hood.cols, strict=True)]
    for cut in [(2, 3), (0, 1)]:
        fed.cut[ends.index(cut)] = True
    assert masks(fed) == {"missed_edges": 1, "false_alarm_edges": 1, "benign_components": 2}
    assert {edge for edge, cut in edges(fed).items() if cut} == {(2, 3), (0, 1)}


def test_tracking_error_is_the_distance_of_the_means(fed):
    fed.gradient[:] = 0
    fed.gamma[:] = 0
    fed.gamma[0, :2] = torch.tensor([3.0, 4.0])
    fed.gamma[3] = 100
    row = tracking(fed)
    assert row["tracking_error"] == pytest.approx(5 / 4)
    assert row["gamma_norm"] == pytest.approx(5 / 4)
    assert row["benign_distance"] == pytest.approx(5)
    assert row["malicious_distance"] == pytest.approx(100 * 10**0.5)
