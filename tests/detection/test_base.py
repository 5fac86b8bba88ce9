"""Trust against Algorithm 2, row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.detection import lower_trust
from watching import everyone, setting


@given(seed=st.integers(0, 999), patient=st.booleans())
@settings(max_examples=30, deadline=None)
def test_trust_is_algorithm_2_over_the_edges_kept(seed, patient):
    hood, _, edges = setting(seed=seed)
    rng = np.random.default_rng(seed)
    trust, scores, n = (rng.uniform(0.01, 1, len(edges)) for _ in range(3))
    kept = np.array([i == j or rng.random() < 0.7 for i, j in edges])
    n = np.ones(len(edges)) if patient else n
    found = lower_trust(
        hood, torch.tensor(trust), torch.tensor(scores), torch.tensor(kept), None if patient else torch.tensor(n)
    )
    for e, (i, _) in enumerate(edges):
        row = [k for k, (r, _) in enumerate(edges) if r == i and kept[k]]
        share = {k: scores[k] / sum(scores[m] for m in row) for k in row}
        new = {k: (n[k] * trust[k] + share[k]) / (n[k] + 1) for k in row}
        assert found[e].item() == pytest.approx(new[e] / sum(new.values()) if e in row else 0)


def test_a_neighbour_without_any_score_is_under_the_threshold_after_four_rounds():
    """w ← ½ w: 2⁻⁴ < 0.1."""
    hood, _, _ = setting(n=10, density=1.0)
    trust, scores = torch.full((100,), 0.1, dtype=torch.float64), torch.ones(100, dtype=torch.float64)
    scores[hood.cols == 3] = 0
    scores[hood.to_self] = 1
    below = []
    for _ in range(5):
        trust = lower_trust(hood, trust, scores, torch.ones(100, dtype=torch.bool))
        below.append(bool((trust[(hood.cols == 3) & ~hood.to_self] <= 0.01).all()))
    assert below == [False, False, False, True, True]


def test_a_row_without_any_score_or_trust_has_none_and_no_number_that_is_none():
    hood, _, _ = setting(density=1)
    nothing = torch.zeros_like(hood.uniform)
    assert torch.equal(lower_trust(hood, nothing, nothing), nothing)
    assert torch.equal(lower_trust(hood, nothing, nothing, everyone(hood), nothing), nothing)
