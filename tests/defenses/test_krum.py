"""Krum against scores added up pair by pair, and against ByzFL's."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses import rules
from purifl.defenses.krum import Krum
from purifl.defenses.multi_krum import MultiKrum
from turns import (
    in_float64,
    outcome,
    refusal,
    rows_of,
    turn_of,
    turns,
    weights_of,
)


def scores_by_hand(vectors, near):
    """Each vector's squared distances to its ``near`` nearest others, added up."""
    result = []
    for a in range(len(vectors)):
        others = [math.fsum((x - y) ** 2 for x, y in zip(vectors[a], v, strict=True)) for v in np.delete(vectors, a, 0)]
        result.append(sum(sorted(others)[:near]))
    return result


def krum_by_hand(turn, f, many):
    """1/M on the M lowest scores, of equal ones that nearer to all, then the first; all of them if under three."""
    gamma, weights = in_float64(turn.heard.gamma), {}
    for i, _, kept in rows_of(turn):
        left = max(0, f - (int(turn.hood.size[i]) - len(kept)))
        near = len(kept) - left - 2
        chosen = kept
        if near >= 1:
            scores, totals = (scores_by_hand(gamma[kept], count) for count in (near, len(kept) - 1))
            best = sorted(range(len(kept)), key=lambda k: (scores[k], totals[k], k))
            chosen = [kept[k] for k in best[: near if many else 1]]
        weights |= {(i, j): 1 / len(chosen) for j in chosen}
    return weights_of(turn, weights)


@given(turns(largest=8), st.integers(0, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn, f, many):
    defense = MultiKrum(assumed=f) if many else Krum(assumed=f)
    torch.testing.assert_close(defense.weigh({}, turn), krum_by_hand(turn, f, many), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("m", "f"), [(4, 0), (5, 1), (10, 2), (10, 3)])
def test_equals_byzfl(m, f):
    """ByzFL adds up m − f − 1 distances, the printed rule m − f − 2: its f is one more."""
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    _, gamma = outcome(Krum(assumed=f), turn_of(nx.complete_graph(m), x))
    np.testing.assert_allclose(gamma.numpy(), np.tile(byzfl.Krum(f=f + 1)(x), (m, 1)), atol=1e-12)


def test_the_choice_by_gamma_is_used_for_the_models():
    gamma = torch.tensor([[0.0], [0.1], [0.3], [9.0], [9.1]])
    turn = turn_of(nx.complete_graph(5), gamma, theta=torch.arange(5.0)[:, None], step=0.0)
    models, tracked = outcome(Krum(assumed=1), turn)
    assert models.tolist() == [[1.0]] * 5
    torch.testing.assert_close(tracked, torch.full((5, 1), 0.1))


def test_of_two_that_are_nearest_to_each_other_the_one_nearer_to_the_rest_is_chosen():
    for gamma in ([0.0, 1.0, 5.0], [1.0, 0.0, 5.0], [5.0, 0.0, 1.0]):
        turn = turn_of(nx.complete_graph(3), torch.tensor(gamma)[:, None])
        assert outcome(Krum(assumed=0), turn)[1].tolist() == [[1.0]] * 3


def test_distances_do_not_overflow():
    gamma = torch.tensor([[1e38], [-1e38], [1.0], [1.1], [1.2], [1e38], [1.0]])
    chosen = outcome(Krum(assumed=2), turn_of(nx.complete_graph(7), gamma))[1]
    assert chosen.unique().item() == pytest.approx(1.1)
    assert rules.distances(turn_of(nx.path_graph(2), gamma[:2]).hood, gamma[:2]).max().item() == pytest.approx(2e38)


@pytest.mark.parametrize("name", ["krum", "multi-krum"])
def test_says_before_it_begins_what_it_needs(name):
    text = refusal(defense={"name": name, "assumed": 4})
    assert "client 0 hears m = 10" in text
    assert "m ≥ 2f + 3 = 11" in text
    assert "at most f = 3" in text
    assert "it is defined for no f" in refusal(defense=name, topology="line")
