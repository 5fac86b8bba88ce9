"""Multi-Krum: the rule itself is compared with its formula in test_krum.py."""

import networkx as nx
import numpy as np
import pytest
import torch

from purifl.defenses import rules
from purifl.defenses.multi_krum import MultiKrum
from turns import (
    outcome,
    turn_of,
)


@pytest.mark.parametrize(("m", "f"), [(5, 1), (10, 2), (10, 3)])
def test_equals_byzfl_given_its_counts(m, f):
    """ByzFL adds up m − f − 1 distances and averages m − f vectors; the printed rule has m − f − 2 for both."""
    byzfl = pytest.importorskip("byzfl", reason="the independent implementation is not installed")
    x = np.random.default_rng(m).normal(size=(m, 50))
    squared = rules.pairwise(turn_of(nx.complete_graph(m), x), torch.tensor(x))[0]
    chosen = rules.krum_order(squared, m - f - 1)[: m - f]
    np.testing.assert_allclose(x[chosen].mean(0), byzfl.MultiKrum(f=f)(x), atol=1e-12)


def test_averages_as_many_as_a_score_looks_at():
    gamma = torch.tensor([[0.0], [1.0], [2.0], [3.0], [50.0], [60.0], [1.5]])
    _, tracked = outcome(MultiKrum(assumed=2), turn_of(nx.complete_graph(7), gamma))
    torch.testing.assert_close(tracked, torch.full((7, 1), 1.5))
