"""What holds for every rule that weighs or combines what is heard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses import defenses
from turns import (
    DETECTORS,
    TOPOLOGIES,
    check_agreement,
    check_cut_mid_run,
    check_deaf_to_the_cut,
    check_sound,
    check_with_detector,
    refused,
    turns,
)

KRUM = {"line", "ring", "star", "grid"}
RULES = {
    "trimmed-mean": ({"assumed": 2}, {"line", "star"}),
    "median": ({}, set()),
    "krum": ({"assumed": 2}, KRUM),
    "multi-krum": ({"assumed": 2}, KRUM),
    "bulyan": ({"assumed": 0}, KRUM),
    "byz": ({}, set()),
    "clipped-gossip": ({}, set()),
    "ubar": ({"share": 0.7}, set()),
}
"""Each rule's parameters, and the topologies on which it refuses two attackers among ten clients."""

every_rule = pytest.mark.parametrize("name", list(RULES))


def rule(name):
    return defenses.resolve({"name": name, **RULES[name][0]})


@every_rule
@given(turn=turns())
@settings(max_examples=60, deadline=None)
def test_stays_between_what_is_kept(name, turn):
    check_sound(rule(name), turn)


@every_rule
@given(turn=turns(), row=st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_what_is_not_kept_has_no_effect(name, turn, row):
    check_deaf_to_the_cut(rule(name), turn, row)


@every_rule
@pytest.mark.parametrize("vector", [[0.0, 0.0], [1e30, -1e30], [1.0, 2.0]])
def test_clients_that_agree_stay(name, vector):
    check_agreement(rule(name), vector)


@every_rule
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_runs_or_refuses(name, topology):
    assert refused(name, topology) == ("defense.assumed" if topology in RULES[name][1] else None)


@every_rule
@pytest.mark.parametrize("detector", DETECTORS)
def test_with_every_detector(name, detector):
    check_with_detector(name, detector)


@every_rule
def test_neighbours_cut_in_mid_run(name):
    check_cut_mid_run(name)
