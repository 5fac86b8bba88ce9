"""The median against numpy's, and against ByzFL's."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from purifl.defenses.median import Median
from turns import (
    assert_near,
    in_float64,
    outcome,
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
