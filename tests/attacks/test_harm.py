"""Every attack in the registry does harm where nobody defends: none is a name without an effect."""

import pytest

from purifl import Experiment, run
from purifl.attacks import attacks

TARGETED = ["backdoor-9", "backdoor-1", "single-image"]
OTHERS = [name for name in attacks if name not in {"none", *TARGETED}]


def outcome(attack, rounds):
    return run(Experiment(attack=attack, defense="lower", rounds=rounds, eval_every=rounds)).summary()


@pytest.fixture(scope="module")
def peace():
    """Accuracy without an attack."""
    found = outcome("none", 20)["test_accuracy"]
    assert found > 0.9
    return found


@pytest.mark.parametrize("name", OTHERS)
def test_undefended_it_costs_ten_points_of_accuracy(name, peace):
    assert outcome(name, 20)["test_accuracy"] < peace - 0.1


@pytest.mark.parametrize("name", TARGETED)
def test_undefended_it_gains_fifty_points_of_attack_accuracy(name):
    honest, found = (outcome({"name": name, "malicious_level": level}, 10)["attack_accuracy"] for level in (0.0, 1.0))
    assert found > honest + 0.5
