"""Bulyan against Krum repeated by hand, and its second half against ByzFL's mean around the median."""

import math
import statistics

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses import rules
from purifl.defenses.bulyan import Bulyan
from turns import (
    assert_near,
    in_float64,
    outcome,
    refusal,
    rows_of,
    turn_of,
    turns,
)

DENSE = turns(smallest=7, largest=12, densities=(1.0,))


def chosen_by_hand(gamma, kept, f):
    """The best by Krum, m − 2f times; the pool shrinks, and with it the number of neighbours."""
    left, chosen = list(kept), []
    while len(chosen) < len(kept) - 2 * f:
        scores = []
        for a in left:
            gaps = sorted(math.fsum((gamma[a] - gamma[b]) ** 2) for b in left if b != a)
            scores.append((sum(gaps[: max(1, len(left) - f - 2)]), sum(gaps)))
        chosen.append(left.pop(scores.index(min(scores))))
    return chosen


def around_the_median(values, count):
    middle = statistics.median(values)
    return statistics.fmean(sorted(values, key=lambda v: (abs(v - middle), v))[:count])


@given(turns(smallest=3) | DENSE, st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn, assumed):
    f = max(0, min(assumed, (int(turn.hood.size.min()) - 3) // 4))
    models, gamma = outcome(Bulyan(assumed=f), turn)
    for i, _, kept in rows_of(turn):
        left = max(0, f - (int(turn.hood.size[i]) - len(kept)))
        chosen = chosen_by_hand(in_float64(turn.heard.gamma), kept, left)
        for found, x in ((models[i], turn.models[chosen]), (gamma[i], turn.heard.gamma[chosen])):
            expected = [around_the_median(column, len(chosen) - 2 * left) for column in in_float64(x).T.tolist()]
            assert_near(found, expected, x)


@pytest.mark.parametrize(("m", "count"), [(7, 5), (8, 6), (9, 9)])
def test_the_second_half_equals_byzfl(m, count):
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    found = rules.mean_around_median(torch.tensor(x), count)
    np.testing.assert_allclose(found, byzfl.Meamed(f=m - count)(x), atol=1e-12)


@given(st.integers(3, 15), st.integers(0, 9999))
@settings(max_examples=40, deadline=None)
def test_the_order_of_messages_is_of_no_matter(m, seed):
    rng = np.random.default_rng(seed)
    squared = torch.cdist(*[torch.tensor(rng.normal(size=(m, 3)))] * 2).square()
    squared = (squared + squared.T) / 2
    order = rng.permutation(m).tolist()
    found = rules.bulyan_choice(squared[order][:, order], (m - 3) // 4).tolist()
    assert sorted(order[k] for k in found) == rules.bulyan_choice(squared, (m - 3) // 4).tolist()


def test_of_eleven_two_outliers_leave_no_trace():
    gamma = torch.cat([torch.linspace(0, 1, 9), torch.tensor([1e30, -1e30])])[:, None]
    assert 0.2 < outcome(Bulyan(assumed=2), turn_of(nx.complete_graph(11), gamma))[1][0].item() < 0.8


def test_says_that_the_papers_setting_is_one_client_short():
    text = refusal(defense="bulyan", attack="backdoor-9")
    assert "m ≥ 4f + 3 = 11" in text
    assert "11 clients" in text
    assert "at most f = 1" in text
    assert "it is defined for no f" in refusal(defense="bulyan", topology="star")
