"""What neighbours say of each other, counted edge by edge, and when it is believed."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.hearsay import accusers, believed
from purifl.topology import neighbourhood


@given(n=st.integers(2, 9), density=st.floats(0, 1), seed=st.integers(0, 999), liar=st.booleans())
@settings(max_examples=100, deadline=None)
def test_who_is_told_of_whom_by_how_many(n, density, seed, liar):
    """Also of a client that has a private message, and so a column, for each of its neighbours."""
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, density, seed=seed)
    rows = sorted(rng.choice(n, size=rng.integers(1, n + 1), replace=False).tolist())
    private = frozenset(range(n)) - set(rows) if liar else frozenset()
    hood = neighbourhood(graph, range(n), rows, private)
    said = torch.tensor(rng.random((n, n)) < 0.5).float().fill_diagonal_(0)
    counts = accusers(hood, said)
    found = believed(hood, counts)
    for edge, (i, j) in enumerate(zip(hood.owner[hood.listeners].tolist(), hood.senders.tolist(), strict=True)):
        others = set(graph[i]) - {j}
        told = [k for k in others if said[k, j]]
        if i != j:
            assert counts[edge] == len(told)
        assert found[edge] == (i != j and len(graph[i]) >= 4 and len(told) > len(others) / 2)


@pytest.mark.parametrize("attackers", [2, 4])
def test_up_to_four_of_ten_frame_nobody_and_protect_nobody(attackers):
    hood, benign = neighbourhood(nx.complete_graph(10), range(10), range(10)), slice(attackers, 10)
    slander, truth = torch.zeros(10, 10), torch.zeros(10, 10)
    slander[:attackers, benign] = 1
    truth[benign, :attackers] = 1
    assert not believed(hood, accusers(hood, slander)).any()
    to_attackers = (hood.rows >= attackers) & (hood.cols < attackers)
    assert torch.equal(believed(hood, accusers(hood, truth)) & (hood.rows >= attackers), to_attackers)
