"""Every attack in the registry does harm where nobody defends: none is a name without an effect."""

from functools import cache

import pytest

from purifl import Experiment, run
from purifl.attacks import attacks


@cache
def outcome(name, level):
    attack = {"name": name, "malicious_level": level}
    return run(Experiment(attack=attack, defense="lower", rounds=20, eval_every=20)).summary()


@pytest.mark.parametrize("name", [name for name in attacks if name != "none"])
def test_undefended_it_gains_fifty_points_or_costs_ten(name):
    """A targeted attack gains attack accuracy against its own level 0; any other costs test accuracy."""
    found, peace = outcome(name, 1.0), outcome("none", 1.0)
    assert peace["test_accuracy"] > 0.9
    if found["attack_accuracy"] is None:
        assert found["test_accuracy"] < peace["test_accuracy"] - 0.1
    else:
        assert found["attack_accuracy"] > outcome(name, 0.0)["attack_accuracy"] + 0.5
