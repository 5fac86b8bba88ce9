"""Every defence in the registry does something under attack, and little without one."""

from functools import cache

import networkx as nx
import pytest
import torch
from torch import nn

from purifl import Client, Experiment, Federation, Samples, Training, run
from purifl.defenses import defenses
from purifl.detection.none import NoDetection
from purifl.errors import ConfigError
from purifl.simulation import Simulation

ACTIVE = [name for name in defenses if name != "lower"]


def final_models(**settings):
    simulation = Simulation(Experiment(model="mlp", rounds=10, eval_every=10, **settings))
    while not simulation.finished:
        simulation.step()
    fed = simulation.federation
    return {fed.clients[k].id: fed.theta[k] for k in fed.benign}


@pytest.mark.parametrize("name", ACTIVE)
def test_under_attack_a_defence_differs_from_plain_averaging(name):
    """With the same detector and weights, so that the difference is the defence's own."""
    defense = defenses[name]
    attack = {"name": "backdoor-9", "malicious_clients": [4]}
    settings = {"attack": attack, "detector": defense.detector, "mixing": defense.mixing}
    ours, plain = final_models(defense=name, **settings), final_models(defense="lower", **settings)
    distance = max((ours[k] - plain[k]).norm().item() for k in ours)
    assert distance > 1e-5 * max(plain[k].norm().item() for k in ours)


@pytest.mark.parametrize("name", list(defenses))
def test_without_an_attacker_a_defence_stays_within_ten_points_of_tracking(name):
    """Undisturbed by false alarms, that is with no detector; 25 rounds on iid digits.

    Krum follows a single client's message, which breaks gradient tracking even among honest clients: it is held to
    the margin where nothing is tracked.
    """
    assert accuracy("lower") > 0.9
    assert accuracy(name, "dsgd" if name == "krum" else "dsgt") > accuracy("lower") - 0.1


def test_gpd_as_it_comes_costs_at_most_two_points_without_an_attacker():
    found = run(Experiment(model="mlp", rounds=25, eval_every=25)).summary()
    assert found["test_accuracy"] > accuracy("lower") - 0.02


@cache
def accuracy(name, algorithm="dsgt"):
    experiment = Experiment(
        defense=name, detector="none", model="mlp", rounds=25, eval_every=25, training={"algorithm": algorithm}
    )
    return run(experiment).summary()["test_accuracy"]


# ---------------------------------------------------------------- messages and graphs at the edge


def federation(name, graph, malicious=(), detector=None):
    rng = torch.Generator().manual_seed(0)
    clients = [
        Client(k, Samples(torch.randn(12, 3, generator=rng), torch.arange(12) % 2), malicious=k in malicious)
        for k in range(graph.number_of_nodes())
    ]
    training = Training(batch_size=4, step_size=0.1)
    return Federation(
        lambda: nn.Linear(3, 2), clients, graph, training=training, defense=defenses.resolve(name), detector=detector
    )


def possible(name, graph, **options):
    try:
        return federation(name, graph, **options)
    except ConfigError as error:
        if not defenses[name].needs:
            raise
        pytest.skip(f"{name} says before starting that it cannot: {error}")


@pytest.mark.parametrize("name", list(defenses))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_hostile_messages_leave_benign_models_finite(name, bad):
    fed = possible(name, nx.complete_graph(8), malicious=(3,))
    for _ in range(8):
        fed.gamma[3] = bad
        fed.step()
    assert fed.theta[fed.benign].isfinite().all()
    assert fed.gamma[fed.benign].isfinite().all()


@pytest.mark.parametrize("name", list(defenses))
def test_silence_everywhere_changes_nothing(name):
    """All γ zero: every model is the average, and stays."""
    fed = possible(name, nx.complete_graph(8), detector=NoDetection())
    fed.gamma[:] = 0
    before = fed.theta.clone()
    fed.step()
    torch.testing.assert_close(fed.theta, before)


@pytest.mark.parametrize("name", list(defenses))
@pytest.mark.parametrize("graph", [nx.path_graph(2), nx.path_graph(4), nx.star_graph(4)], ids=["pair", "line", "star"])
def test_clients_with_one_neighbour(name, graph):
    fed = possible(name, graph)
    for _ in range(4):
        fed.step()
    assert fed.theta.isfinite().all()


@pytest.mark.parametrize("name", list(defenses))
def test_a_single_benign_client_trains_on(name):
    fed = possible(name, nx.complete_graph(3), malicious=(0, 2))
    for _ in range(6):
        fed.gamma[[0, 2]] = 1e6
        fed.step()
    assert fed.theta[fed.benign].isfinite().all()
