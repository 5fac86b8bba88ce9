"""Accuracies, masks and connectivity on a federation whose answers are known."""

from collections import Counter

import networkx as nx
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from purifl import Client, Experiment, Federation, Samples, run
from purifl.attacks import attacks
from purifl.metrics import Meter, Targets
from purifl.simulation import Simulation

ANYTHING = Targets(Samples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)))


def measured(fed, targets=ANYTHING):
    return Meter(fed, targets).read(fed.cut, evaluate=True)[0]


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
    row = measured(fed, Targets(test))
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
    row = measured(fed, Targets(ANYTHING.test, probe, genuine))
    assert row["attack_accuracy"] == pytest.approx((3 + 1) / (4 * 3))
    assert row["attack_accuracy_all"] == pytest.approx((5 + 3) / (4 * 5))


def test_a_model_that_is_not_finite_is_right_about_nothing(fed):
    fed.theta[0] = torch.nan
    row = measured(fed, ANYTHING)
    assert row["accuracy_by_client"]["0"] == 0


def ends(fed):
    """Client and neighbour of each edge, as positions."""
    return list(zip(fed.hood.own_cols[fed.hood.rows].tolist(), fed.hood.senders.tolist(), strict=True))


def test_masks_count_edges_and_components(fed):
    row = measured(fed)
    assert (row["missed_edges"], row["false_alarm_edges"], row["benign_components"]) == (2, 0, 1)
    for cut in [(2, 3), (0, 1)]:
        fed.cut[ends(fed).index(cut)] = True
    row = measured(fed)
    assert (row["missed_edges"], row["false_alarm_edges"], row["benign_components"]) == (1, 1, 2)


@pytest.mark.parametrize("seed", range(8))
def test_events_and_components_are_those_of_a_loop_over_edges(seed):
    """Random cuts on a random graph; the attackers' columns are private, so that columns are not clients."""
    data = Samples(torch.zeros(2, 1), torch.arange(2))
    clients = [Client(10 + k, data, malicious=k in {1, 4}) for k in range(12)]
    graph = nx.relabel_nodes(nx.gnp_random_graph(12, 0.35, seed=seed), lambda k: 10 + k)
    fed = Federation(lambda: nn.Linear(1, 2), clients, graph, attack=attacks.resolve("equivocate"))
    meter, draws = Meter(fed, ANYTHING), torch.Generator().manual_seed(seed)
    for share in (0.0, 0.3, 0.3, 0.8):
        before = fed.cut
        fed.cut = (torch.rand(before.shape, generator=draws) < share) & ~fed.hood.to_self
        row, events = meter.read(before, evaluate=False)

        kept: nx.Graph = nx.empty_graph(fed.benign)
        open_ = {edge for edge, cut in zip(ends(fed), fed.cut.tolist(), strict=True) if not cut}
        kept.add_edges_from((i, j) for i, j in open_ if (j, i) in open_)
        assert row["benign_components"] == nx.number_connected_components(kept)
        expected = [
            ("cut" if new else "readmitted", 10 + i, 10 + j, j in {1, 4})
            for (i, j), old, new in zip(ends(fed), before.tolist(), fed.cut.tolist(), strict=True)
            if old != new
        ]
        keys = ("event", "client", "neighbour", "malicious")
        assert [tuple(event[key] for key in keys) for event in events] == expected


class Transfers(TorchDispatchMode):
    """Counts what would make a GPU wait for the host, or the host for it."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = Counter()
        for name in ("tolist", "numpy"):
            monkeypatch.setattr(Tensor, name, self.counted(name, getattr(Tensor, name)))

    def counted(self, name, method):
        def count(tensor, *args):
            self.count[name] += 1
            return method(tensor, *args)

        return count

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masked = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        if masked or name in {"_local_scalar_dense", "nonzero", "masked_select", "equal"}:
            self.count[name] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("clients", [6, 24])
def test_a_round_is_measured_in_one_transfer_and_cuts_in_another(monkeypatch, clients):
    settings = {"topology": "ring", "model": {"name": "mlp", "hidden": 4}, "attack": "backdoor-9", "clients": clients}
    simulation = Simulation(Experiment(**settings, training={"gradient": "batch"}, rounds=9))
    federation, meter, transfers = simulation.federation, simulation._meter, Transfers(monkeypatch)
    seen = []
    for toggled in (0, 0, 3, 0, 1):
        before = federation.cut
        federation.cut = before.clone()
        federation.cut[(~federation.hood.to_self).nonzero()[:toggled, 0]] ^= True
        transfers.count.clear()
        with transfers:
            _, events = meter.read(before, evaluate=True)
        assert len(events) == toggled
        seen.append(dict(transfers.count))
    one, two = {"tolist": 1}, {"tolist": 1, "numpy": 1}
    assert seen[1:] == [one, two, one, two]


def test_a_row_has_the_trust_on_every_edge_in_the_order_of_the_result(tiny):
    result = run(Experiment.parse(tiny()))
    for row in result.history:
        assert len(row["trust"]) == len(result.trust)
    assert result.final["trust"] == pytest.approx([edge["trust"] for edge in result.trust], abs=6e-7)
    assert all(len(str(value)) <= 8 for row in result.history for value in row["trust"])
    assert len({tuple(row["trust"]) for row in result.history}) > 1


def test_trust_is_null_where_it_is_not_finite_and_left_out_where_edges_are_too_many(fed, monkeypatch):
    fed.trust[:] = torch.nan
    assert set(measured(fed)["trust"]) == {None}
    monkeypatch.setattr("purifl.metrics._FOLLOWED", 3)
    assert "trust" not in measured(fed)


def test_tracking_error_is_the_distance_of_the_means(fed):
    fed.gradient[:] = 0
    fed.gamma[:] = 0
    fed.gamma[0, :2] = torch.tensor([3.0, 4.0])
    fed.gamma[3] = 100
    row = measured(fed)
    assert row["tracking_error"] == pytest.approx(5 / 4)
    assert row["gamma_norm"] == pytest.approx(5 / 4)
    assert row["benign_distance"] == pytest.approx(5)
    assert row["malicious_distance"] == pytest.approx(100 * 10**0.5)


def test_accuracy_by_label_is_over_benign_models_and_null_where_there_is_no_such_input(fed):
    test = Samples(torch.zeros(5, 1), torch.tensor([0, 0, 1, 3, 3]))
    row = measured(fed, Targets(test))
    assert row["accuracy_by_label"] == [0.25, 0.25, None, 0.0]  # of four models each says its own id: 0, 1, 2 and 4
