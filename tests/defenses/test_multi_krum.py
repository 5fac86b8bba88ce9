"""Multi-Krum: the rule itself is compared with its formula in test_krum.py."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses import rules
from purifl.defenses.multi_krum import MultiKrum
from turns import (
    DETECTORS,
    TOPOLOGIES,
    check_agreement,
    check_cut_mid_run,
    check_deaf_to_the_cut,
    check_sound,
    check_with_detector,
    outcome,
    refused,
    turn_of,
    turns,
)


@pytest.mark.parametrize(("m", "f"), [(5, 1), (10, 2), (10, 3)])
def test_equals_byzfl_given_its_counts(m, f):
    """ByzFL adds up m − f − 1 distances and averages m − f vectors; the printed rule has m − f − 2 for both."""
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    squared = rules.pairwise(turn_of(nx.complete_graph(m), x), torch.tensor(x))[0]
    chosen = rules.krum_order(squared, m - f - 1)[: m - f]
    np.testing.assert_allclose(x[chosen].mean(0), byzfl.MultiKrum(f=f)(x), atol=1e-12)


def test_averages_as_many_as_a_score_looks_at():
    gamma = torch.tensor([[0.0], [1.0], [2.0], [3.0], [50.0], [60.0], [1.5]])
    _, tracked = outcome(MultiKrum(assumed=2), turn_of(nx.complete_graph(7), gamma))
    torch.testing.assert_close(tracked, torch.full((7, 1), 1.5))


# ---------------------------------------------------------------- what holds for every rule


@given(turns())
@settings(max_examples=60, deadline=None)
def test_stays_between_what_is_kept(turn):
    check_sound(MultiKrum(assumed=2), turn)


@given(turns(), st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_what_is_not_kept_has_no_effect(turn, row):
    check_deaf_to_the_cut(MultiKrum(assumed=2), turn, row)


@pytest.mark.parametrize("vector", [[0.0, 0.0], [1e30, -1e30], [1.0, 2.0]])
def test_clients_that_agree_stay(vector):
    check_agreement(MultiKrum(assumed=2), vector)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_runs_or_refuses(topology):
    assert refused("multi-krum", topology) == (
        "defense.assumed" if topology in {"line", "ring", "star", "grid"} else None
    )


@pytest.mark.parametrize("detector", DETECTORS)
def test_with_every_detector(detector):
    check_with_detector("multi-krum", detector)


def test_neighbours_cut_in_mid_run():
    check_cut_mid_run("multi-krum")
