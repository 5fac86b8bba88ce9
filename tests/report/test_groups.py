"""Seeds become groups, defences set-ups, and every one has a name of its own."""

import pytest

from purifl import Experiment, Result
from purifl.report.groups import setups
from purifl.report.layout import layout
from synthetic import edge, synthetic


def names(*results):
    return [(setup.name, [group.name for group in setup.groups]) for setup in setups(results)]


def test_defences_share_a_set_up_and_seeds_a_group():
    (setup,) = setups([synthetic("gpd", seed=2), synthetic("lower"), synthetic("gpd", seed=0)])
    assert setup.name == "digits, iid, under backdoor-9"
    assert [(group.name, [run.experiment.seed for run in group.runs]) for group in setup.groups] == [
        ("gpd", [0, 2]),
        ("lower", [0]),
    ]


def test_a_name_says_what_differs():
    assert names(synthetic(), synthetic({"name": "gpd", "threshold": 0.9})) == [
        ("digits, iid, under backdoor-9", ["gpd (defense.threshold 0.1)", "gpd (defense.threshold 0.9)"])
    ]
    assert names(synthetic(), synthetic(attack="single-image"), synthetic(topology="ring")) == [
        ("digits, iid, under backdoor-9 (topology.name complete)", ["gpd"]),
        ("digits, iid, under single-image", ["gpd"]),
        ("digits, iid, under backdoor-9 (topology.name ring)", ["gpd"]),
    ]


def test_the_same_experiment_again_is_no_further_seed():
    assert names(synthetic(), synthetic(), synthetic(seed=1)) == [
        ("digits, iid, under backdoor-9", ["gpd, run 1", "gpd, run 2"])
    ]


@pytest.mark.parametrize("topology", ["complete", "ring", "grid", "star"])
@pytest.mark.parametrize("clients", [4, 60])
def test_layout_is_the_same_for_all_defenses_and_inside_the_picture(topology, clients):
    experiments = [Experiment(topology=topology, clients=clients, defense=name) for name in ("lower", "upper")]
    ring = [edge(k, (k + 1) % clients, 0.1, False) for k in range(clients)]
    results = [Result(experiments[0], trust=ring), Result(experiments[1], trust=ring[:1])]
    first, second = (layout(result, results) for result in results)
    assert first == second
    assert first.keys() == set(range(clients))
    assert len(set(first.values())) == clients
    assert max(abs(value) for spot in first.values() for value in spot) <= 1 + 1e-9
