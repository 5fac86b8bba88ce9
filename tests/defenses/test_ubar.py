"""UBAR against its two stages by hand."""

import math
from fractions import Fraction

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses.ubar import UBAR
from quadratics import federation, problem, steps
from turns import (
    graph_of,
    in_float64,
    outcome,
    rows_of,
    turn_of,
    turns,
    weights_of,
)


def by_hand(turn, share, own_share):
    x, weights = in_float64(turn.models), {}
    edges = zip(turn.hood.rows.tolist(), turn.hood.cols.tolist(), strict=True)
    loss = {e: math.inf if math.isnan(v) else v for e, v in zip(edges, turn.losses(turn.models).tolist(), strict=True)}
    for i, own, kept in rows_of(turn):
        count = max(1, math.floor(share * (int(turn.hood.size[i]) - 1)))
        gap = {j: math.sqrt(math.fsum((x[j] - x[own]) ** 2)) for j in kept if j != own}
        near = sorted(gap, key=lambda j: (gap[j], j))[:count]
        good = [j for j in near if loss[i, j] <= loss[i, own]]
        good = good or [j for j in near if loss[i, j] == min(loss[i, k] for k in near)][:1]
        weights |= {(i, j): (1 - own_share) / len(good) for j in good}
        weights[i, own] = own_share if good else 1.0
    return weights_of(turn, weights)


@given(turns(), st.fractions(0, 1, max_denominator=9), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn, share, own_share):
    defense = UBAR(share=float(share), own_share=own_share)
    torch.testing.assert_close(defense.weigh({}, turn), by_hand(turn, share, own_share), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("topology", "malicious", "share"),
    [("complete", 2, Fraction(7, 9)), ("complete", 0, 1), ("ring", 2, Fraction(1, 2)), ("star", 2, Fraction(7, 9))],
)
def test_looks_at_the_benign_share_unless_told(topology, malicious, share):
    """On the ring, clients beside an attacker have one benign neighbour of two; on the star the hub has 7 of 9."""
    fed = federation(problem(malicious=malicious), graph_of(topology, 10), defense=UBAR())
    assert fed.defense.share == pytest.approx(float(share))
    assert federation(problem(), defense=UBAR(share=0.4)).defense.share == 0.4


def test_only_malicious_neighbours_still_leave_the_best_of_them():
    """Leaf clients of a malicious hub have a benign share of 0 and hear the hub nevertheless."""
    quad = problem(n=5, malicious=1)
    graph = nx.relabel_nodes(nx.star_graph(4), {0: 4, 4: 0})
    assert steps(federation(quad, graph, defense=UBAR()), 5).theta.isfinite().all()


def test_losses_decide_among_the_near():
    models = torch.tensor([[0.0], [1.0], [2.0], [50.0]])
    losses = torch.tensor([1.0, 0.5, 2.0, 0.0] + [1.0] * 12)
    turn = turn_of(nx.complete_graph(4), torch.zeros(4, 1), theta=models, losses=losses)
    assert UBAR(share=2 / 3).weigh({}, turn).tolist()[:4] == [0.5, 0.5, 0.0, 0.0]
    assert outcome(UBAR(share=2 / 3), turn)[0][0].item() == 0.5
