"""Scores and trust against the formulas, row by row."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.detection import Consistency, History, NoDetection, Similarity, lower_trust
from purifl.topology import neighbourhood


def setting(n=6, d=4, seed=0, density=0.6):
    graph = nx.compose(nx.path_graph(n), nx.gnp_random_graph(n, density, seed=seed))
    hood = neighbourhood(graph, list(range(n)), list(range(n)))
    gamma = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return hood, gamma, list(zip(hood.rows.tolist(), hood.cols.tolist(), strict=True))


@given(seed=st.integers(0, 999), temperature=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_consistency(seed, temperature):
    hood, gamma, edges = setting(seed=seed)
    scores = Consistency(temperature=temperature).scores({}, hood, gamma)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        assert score == pytest.approx(math.exp(-np.linalg.norm(gamma[j] - gamma[i]) / temperature))


def test_similarity_is_the_positive_cosine_and_one_for_oneself():
    hood, gamma, edges = setting()
    gamma[2] = 0
    scores = Similarity().scores({}, hood, gamma)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        lengths = gamma[i].norm() * gamma[j].norm()
        expected = 1 if i == j else 0 if lengths == 0 else max(0, (gamma[i] @ gamma[j] / lengths).item())
        assert score == pytest.approx(expected)


@given(seed=st.integers(0, 999), rounds=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_history_judges_all_rounds_but_the_first_by_the_median_neighbour(seed, rounds):
    hood, gamma, edges = setting(seed=seed)
    detector = History(sharpness=3.0)
    state = detector.begin(hood, gamma)
    messages = torch.randn(rounds, *gamma.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for message in messages:
        scores = detector.scores(state, hood, message)
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
        state = detector.begin(hood, gamma)
        detector.scores(state, hood, gamma)
        found.append(detector.scores(state, hood, scale * gamma))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_history_keeps_a_single_neighbour():
    hood, gamma, _ = setting(n=2)
    detector = History()
    state = detector.begin(hood, gamma)
    for _ in range(3):
        scores = detector.scores(state, hood, gamma)
    assert (scores == 1).all()


def test_no_detection_has_no_scores():
    assert NoDetection().scores({}, *setting()[:2]) is None


@given(seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_trust_is_algorithm_2_over_the_edges_kept(seed):
    hood, _, edges = setting(seed=seed)
    rng = np.random.default_rng(seed)
    trust, scores = rng.uniform(0.01, 1, len(edges)), rng.uniform(0.01, 1, len(edges))
    kept = np.array([i == j or rng.random() < 0.7 for i, j in edges])
    found = lower_trust(hood, torch.tensor(trust), torch.tensor(scores), torch.tensor(kept))
    for e, (i, _) in enumerate(edges):
        row = [k for k, (r, _) in enumerate(edges) if r == i and kept[k]]
        share = {k: scores[k] / sum(scores[m] for m in row) for k in row}
        expected = (trust[e] + share[e]) / sum(trust[k] + share[k] for k in row) if e in row else 0
        assert found[e].item() == pytest.approx(expected)


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
