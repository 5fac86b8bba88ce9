"""The trimmed mean against sorting each coordinate by hand, and against ByzFL's."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses.trimmed_mean import TrimmedMean
from quadratics import federation, problem
from turns import (
    assert_near,
    in_float64,
    outcome,
    refusal,
    rows_of,
    turn_of,
    turns,
)


def by_hand(vectors, k):
    """Remove the largest and the smallest k times, then average."""
    k = min(k, (len(vectors) - 1) // 2)
    result = []
    for coordinate in vectors.T:
        left = list(coordinate)
        for _ in range(k):
            left.remove(max(left))
            left.remove(min(left))
        result.append(sum(left) / len(left))
    return result


@given(turns(), st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn, k):
    models, gamma = outcome(TrimmedMean(assumed=k), turn)
    for i, _, kept in rows_of(turn):
        assert_near(models[i], by_hand(in_float64(turn.models[kept]), k), turn.models[kept])
        assert_near(gamma[i], by_hand(in_float64(turn.heard.gamma[kept]), k), turn.heard.gamma[kept])


@pytest.mark.parametrize(("m", "k"), [(3, 1), (5, 2), (10, 2), (9, 0)])
def test_equals_byzfl(m, k):
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    _, gamma = outcome(TrimmedMean(assumed=k), turn_of(nx.complete_graph(m), x))
    np.testing.assert_allclose(gamma.numpy(), np.tile(byzfl.TrMean(f=k)(x), (m, 1)), atol=1e-12)


def test_extremes_are_left_out():
    gamma = torch.tensor([[1.0], [2.0], [3.0], [1e38], [-1e38]])
    assert outcome(TrimmedMean(assumed=1), turn_of(nx.complete_graph(5), gamma))[1].tolist() == [[2.0]] * 5


def test_assumes_the_most_malicious_neighbours_that_anyone_has():
    assert federation(problem(), defense=TrimmedMean()).defense.assumed == 2
    assert federation(problem(), defense=TrimmedMean(assumed=4)).defense.assumed == 4
    assert federation(problem(malicious=0), defense=TrimmedMean()).defense.assumed == 0


def test_says_before_it_begins_what_it_needs():
    text = refusal(defense={"name": "trimmed-mean", "assumed": 5})
    assert "client 0 hears m = 10" in text
    assert "m ≥ 2f + 1 = 11" in text
    assert "at most f = 4" in text
    assert "client 0 hears m = 2" in refusal(defense={"name": "trimmed-mean", "assumed": 1}, topology="line")
