"""Clipped gossip against its formula, against ByzFL's centred clipping, and what it conserves."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses.clipped_gossip import ClippedGossip
from quadratics import federation, problem, steps, tracking_error
from turns import (
    TOPOLOGIES,
    assert_near,
    graph_of,
    in_float64,
    outcome,
    rows_of,
    turn_of,
    turns,
)


def by_hand(turn, radius):
    """x_i + Σ_j w_ij clip(x_j − x_i, τ_i) for γ."""
    x, result = in_float64(turn.heard.gamma), []
    weight = dict(
        zip(zip(turn.hood.rows.tolist(), turn.hood.cols.tolist(), strict=True), turn.weights.tolist(), strict=True)
    )
    for i, own, kept in rows_of(turn):
        gaps = {j: x[j] - x[own] for j in kept if j != own}
        lengths = sorted(np.linalg.norm(gap) for gap in gaps.values())
        tau = radius if radius is not None else (lengths[-2:] or [0.0])[0]
        total = x[own].copy()
        for j, gap in gaps.items():
            length = np.linalg.norm(gap)
            total += weight[i, j] * gap * (1 if length <= tau else tau / length)
        result.append(total)
    return np.array(result)


@given(turns(), st.sampled_from([None, 0.5, 2.0, 1e20]))
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn, radius):
    _, gamma = outcome(ClippedGossip(radius=radius), turn)
    expected = by_hand(turn, radius)
    for i, _, kept in rows_of(turn):
        assert_near(gamma[i], expected[i], turn.heard.gamma[kept])


@pytest.mark.parametrize(("m", "tau"), [(2, 1.0), (5, 0.5), (10, 8.0), (10, 100.0)])
def test_equals_byzfl(m, tau):
    """One step of centred clipping around one's own vector, on a complete graph where all weights are 1/m."""
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    _, gamma = outcome(ClippedGossip(radius=tau), turn_of(nx.complete_graph(m), x))
    with np.errstate(divide="ignore"):
        expected = [own + byzfl.CenteredClipping(L=1, tau=tau)(x - own) for own in x]
    np.testing.assert_allclose(gamma.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_radius_for_all_conserves_tracking(topology):
    quad, graph = problem(malicious=0, heterogeneity=3), graph_of(topology, 10)
    assert tracking_error(steps(federation(quad, graph, defense=ClippedGossip(radius=0.5)), 60)) < 1e-12
    assert tracking_error(steps(federation(quad, graph_of("star", 10), defense=ClippedGossip()), 60)) > 1e-6


@pytest.mark.parametrize("shout", [1e3, 1e30])
def test_a_neighbour_pulls_no_further_than_the_radius(shout):
    gamma = torch.tensor([[0.0], [0.2], [shout]])
    _, tracked = outcome(ClippedGossip(radius=0.5), turn_of(nx.complete_graph(3), gamma))
    torch.testing.assert_close(tracked[0], torch.tensor([(0.2 + 0.5) / 3]))


def test_second_largest_distance():
    gamma = torch.tensor([[0.0], [1.0], [-2.0], [1e30]])
    _, tracked = outcome(ClippedGossip(), turn_of(nx.complete_graph(4), gamma))
    torch.testing.assert_close(tracked[0], torch.tensor([(1.0 - 2.0 + 2.0) / 4]))
    _, alone = outcome(ClippedGossip(), turn_of(nx.path_graph(2), gamma[:2]))
    assert alone.tolist() == [[0.5], [0.5]]
