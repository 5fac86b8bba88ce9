"""From a description to experiments."""

import pytest
import yaml

from purifl.errors import ConfigError
from purifl.sweeps import Sweep
from purifl.sweeps.grid import matches

DESCRIPTION = """
base: {rounds: 3, attack: {name: backdoor-9, target: 2}}
grid:
  attack.malicious_level: [1.0, 0.5]
  defense: [lower, {name: gpd, threshold: 0.2}]
seeds: 2
"""


def experiments(**changes):
    return Sweep.parse(yaml.safe_load(DESCRIPTION) | changes).experiments()


def test_every_combination_with_every_seed():
    found = experiments()
    settings = [(e.attack.malicious_level, e.defense.name, e.seed) for e in found]
    assert sorted(settings) == sorted((a, d, s) for a in (1.0, 0.5) for d in ("lower", "gpd") for s in (0, 1))
    assert {(e.rounds, e.attack.name, e.attack.target) for e in found} == {(3, "backdoor-9", 2)}
    assert {e.defense.threshold for e in found if e.defense.name == "gpd"} == {0.2}


def test_a_component_and_its_parameter_may_both_vary_in_any_order():
    for keys in (("attack.malicious_level", "attack"), ("attack", "attack.malicious_level")):
        values = {"attack": ["lie", "fang"], "attack.malicious_level": [0.5]}
        found = experiments(grid={key: values[key] for key in keys}, seeds=[7])
        assert [(e.attack.name, e.attack.malicious_level, e.seed) for e in found] == [("lie", 0.5, 7), ("fang", 0.5, 7)]


def test_several_grids_are_put_together_and_what_is_in_both_is_run_once():
    both = [{"defense": ["lower", "gpd"]}, {"defense": ["gpd"], "clients": [10, 12]}]
    found = experiments(grid=both, seeds=1)
    assert [(e.defense.name, e.clients) for e in found] == [("lower", 10), ("gpd", 10), ("gpd", 12)]


def test_exclusions_know_components_by_name_defaults_and_lists():
    left = experiments(exclude=[{"defense": "lower", "attack.malicious_level": [0.5, 0.7]}])
    assert len(left) == 6
    assert not [e for e in left if e.defense.name == "lower" and e.attack.malicious_level == 0.5]
    assert len(experiments(exclude=[{"topology": "complete", "seed": 1}])) == 4


def test_anything_with_several_values_is_a_list_of_them():
    found = experiments(grid={"defense": ("lower", "gpd")}, seeds=range(2))
    assert [(each.defense.name, each.seed) for each in found] == [("lower", 0), ("lower", 1), ("gpd", 0), ("gpd", 1)]


def test_a_combination_that_cannot_be_can_be_excluded():
    base = {"training": {"algorithm": "dsgd"}, "rounds": 3}
    with pytest.raises(ConfigError, match=r"training\.algorithm.*needs 'dsgt'.*defense=.*gpd.*exclude"):
        experiments(base=base, grid={"defense": ["lower", "gpd"]})
    assert len(experiments(base=base, grid={"defense": ["lower", "gpd"]}, exclude=[{"defense": "gpd"}])) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exclude": [{"defense": "krum"}]}, "exclude.0.*no combination"),
        ({"exclude": [{"rounds": 3}]}, "nothing to run"),
        ({"grid": {"defense": []}}, "grid.defense.*at least one value"),
        ({"grid": {"defence": ["gpd"]}}, "defence.*did you mean 'defense'"),
        ({"grid": {"defense": ["gdp"]}}, "gdp.*did you mean 'gpd'"),
        ({"grid": {"defense": "gpd"}}, "grid.*list"),
        ({"grid": {"seed": [1, 2]}}, "grid.seed.*'seeds'"),
        ({"base": {"seed": 4}}, "base.seed.*'seeds'"),
        ({"seeds": 0}, "seeds: 0 .*1 to 10000"),
        ({"grids": {}}, "grids.*did you mean 'grid'"),
    ],
)
def test_what_is_wrong_is_said(changes, said):
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        experiments(**changes)


def test_matching():
    settings = {"attack": {"name": "lie", "z": 1.0}, "defense": "gpd", "rounds": 5}
    assert matches(settings, {"attack": "lie", "attack.z": 1, "defense.name": "gpd", "rounds": [4, 5]})
    assert matches(settings, {"attack": {"name": "lie"}})
    assert not matches(settings, {"attack": "fang"})
    assert not matches(settings, {"attack.q": 1})
    assert not matches(settings, {"defense.threshold": 0.1})
