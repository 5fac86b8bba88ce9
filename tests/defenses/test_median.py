"""The median against numpy's, and against ByzFL's."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses.median import Median
from turns import (
    DETECTORS,
    TOPOLOGIES,
    assert_near,
    check_agreement,
    check_cut_mid_run,
    check_deaf_to_the_cut,
    check_sound,
    check_with_detector,
    in_float64,
    outcome,
    refused,
    rows_of,
    turn_of,
    turns,
)


@given(turns())
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn):
    models, gamma = outcome(Median(), turn)
    for i, _, kept in rows_of(turn):
        assert_near(models[i], np.median(in_float64(turn.models[kept]), axis=0), turn.models[kept])
        assert_near(gamma[i], np.median(in_float64(turn.heard.gamma[kept]), axis=0), turn.heard.gamma[kept])


@pytest.mark.parametrize("m", [1, 2, 5, 10])
def test_equals_byzfl(m):
    """ByzFL takes numpy's median of arrays, the mean of two middle values; of tensors it would take the lower."""
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    _, gamma = outcome(Median(), turn_of(nx.complete_graph(m), x))
    np.testing.assert_allclose(gamma.numpy(), np.tile(byzfl.Median()(x), (m, 1)), atol=1e-12)


def test_two_middle_values_near_the_largest_number_do_not_overflow():
    gamma = torch.tensor([[3e38], [2e38]])
    torch.testing.assert_close(outcome(Median(), turn_of(nx.path_graph(2), gamma))[1], torch.full((2, 1), 2.5e38))


# ---------------------------------------------------------------- what holds for every rule


@given(turns())
@settings(max_examples=60, deadline=None)
def test_stays_between_what_is_kept(turn):
    check_sound(Median(), turn)


@given(turns(), st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_what_is_not_kept_has_no_effect(turn, row):
    check_deaf_to_the_cut(Median(), turn, row)


@pytest.mark.parametrize("vector", [[0.0, 0.0], [1e30, -1e30], [1.0, 2.0]])
def test_clients_that_agree_stay(vector):
    check_agreement(Median(), vector)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_runs_or_refuses(topology):
    assert refused("median", topology) is None


@pytest.mark.parametrize("detector", DETECTORS)
def test_with_every_detector(detector):
    check_with_detector("median", detector)


def test_neighbours_cut_in_mid_run():
    check_cut_mid_run("median")
