"""The score against the formula, edge by edge."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.detection.history import History
from watching import everyone, first, setting


@given(seed=st.integers(0, 999), rounds=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_history_judges_all_rounds_but_the_first_by_the_median_neighbour(seed, rounds):
    hood, gamma, edges = setting(seed=seed)
    detector = History(sharpness=3.0)
    state = detector.begin(hood, first(hood, gamma))
    messages = torch.randn(rounds, *gamma.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for message in messages:
        scores = detector.scores(state, hood, message, everyone(hood), message)
    total = messages[1:].sum(0)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        others = sorted((total[k] - total[i]).norm().item() for r, k in edges if r == i != k)
        median = others[(len(others) - 1) // 2]
        ratio = (total[j] - total[i]).norm().item() / median if median else 1.0
        assert score == pytest.approx(1 if i == j else math.exp(-3 * max(0.0, ratio - 1)))


def test_history_has_no_length_scale():
    hood, gamma, _ = setting()
    found = []
    for scale in (1.0, 1e-6, 1e6):
        detector = History()
        state = detector.begin(hood, first(hood, gamma))
        detector.scores(state, hood, gamma, everyone(hood), gamma)
        found.append(detector.scores(state, hood, scale * gamma, everyone(hood), gamma))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_history_keeps_a_single_neighbour():
    hood, gamma, _ = setting(n=2)
    detector = History()
    state = detector.begin(hood, first(hood, gamma))
    for _ in range(3):
        scores = detector.scores(state, hood, gamma, everyone(hood), gamma)
    assert (scores == 1).all()
