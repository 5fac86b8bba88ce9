"""The score against the formula, edge by edge."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.detection.consistency import Consistency
from watching import everyone, setting


@given(seed=st.integers(0, 999), temperature=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_consistency(seed, temperature):
    hood, gamma, edges = setting(seed=seed)
    scores = Consistency(temperature=temperature).scores({}, hood, gamma, everyone(hood), gamma)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        assert score == pytest.approx(math.exp(-np.linalg.norm(gamma[j] - gamma[i]) / temperature))
