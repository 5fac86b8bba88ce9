"""The arithmetic over edges equals the obvious dense version."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.neighbourhood import Neighbourhood, chunks
from purifl.topology import mixing_weights, neighbourhood


@st.composite
def hoods(draw):
    n = draw(st.integers(2, 9))
    graph = nx.gnp_random_graph(n, draw(st.floats(0, 1)), seed=draw(st.integers(0, 999)))
    rows = draw(st.lists(st.sampled_from(range(n)), min_size=1, max_size=n, unique=True))
    return graph, rows, neighbourhood(graph, list(range(n)), rows)


def dense(hood: Neighbourhood, values: torch.Tensor) -> torch.Tensor:
    matrix = torch.zeros(len(hood.own), hood.columns, dtype=values.dtype)
    matrix[hood.rows, hood.cols] = values
    return matrix


@given(hoods(), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_edges_are_the_neighbours_and_oneself(case, seed):
    graph, rows, hood = case
    for i, client in enumerate(rows):
        assert hood.cols[hood.rows == i].tolist() == sorted([client, *graph.neighbors(client)])
        assert hood.cols[hood.own[i]] == client
    assert hood.size.tolist() == [graph.degree(c) + 1 for c in rows]


@given(hoods(), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_sums_products_and_distances_equal_dense_ones(case, seed):
    _, rows, hood = case
    rng = torch.Generator().manual_seed(seed)
    values = torch.rand(len(hood.rows), dtype=torch.float64, generator=rng)
    x = torch.randn(hood.columns, 5, dtype=torch.float64, generator=rng)
    matrix = dense(hood, values)
    torch.testing.assert_close(hood.combine(values, x), matrix @ x)
    shuffled = torch.randperm(len(values), generator=rng)
    torch.testing.assert_close(hood.fold(values, shuffled.argsort(), x[hood.cols][shuffled]), matrix @ x)
    torch.testing.assert_close(hood.sums(values), matrix.sum(1))
    torch.testing.assert_close(dense(hood, hood.normalise(values)).sum(1), torch.ones(len(rows), dtype=torch.float64))
    expected = torch.cdist(x[rows], x)[hood.rows, hood.cols]
    torch.testing.assert_close(hood.distances(x), expected, atol=1e-6, rtol=0)


@given(hoods(), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_quantiles_equal_numpy(case, seed):
    _, _, hood = case
    rng = torch.Generator().manual_seed(seed)
    values = torch.rand(len(hood.rows), dtype=torch.float64, generator=rng).mul(4).round()  # with ties
    among = torch.rand(len(hood.rows), generator=rng) < 0.7
    torch.testing.assert_close(hood.medians(values, among), hood.quantiles(values, among, 0.5), equal_nan=True)
    for share in (0.25, 0.5):
        for i, found in enumerate(hood.quantiles(values, among, share).tolist()):
            chosen = values[(hood.rows == i) & among].numpy()
            expected = np.quantile(chosen, share, method="lower") if len(chosen) else np.nan
            assert found == pytest.approx(expected, nan_ok=True)


def test_chunks_cover_every_edge_once_and_change_nothing(monkeypatch):
    hood = neighbourhood(nx.complete_graph(7), list(range(7)), list(range(7)))
    x = torch.randn(7, 11, dtype=torch.float64)
    whole = hood.distances(x)
    monkeypatch.setattr("purifl.neighbourhood._CHUNK", 25)
    pieces = list(chunks(49, 11))
    assert len(pieces) > 1
    assert [e for piece in pieces for e in range(piece.start, piece.stop)] == list(range(49))
    torch.testing.assert_close(hood.distances(x), whole)
    torch.testing.assert_close(hood.distances(x.float()), whole.float())


def either_way(monkeypatch, call):
    """What ``call`` gives on dense products, and edge by edge."""
    found = []
    for share in (0, 2):
        monkeypatch.setattr("purifl.neighbourhood._DENSE", share)
        found.append(call(neighbourhood(nx.gnp_random_graph(12, 0.5, seed=1), list(range(12)), list(range(1, 12)))))
    return found


def test_dense_products_are_for_dense_graphs():
    everyone = list(range(40))
    assert neighbourhood(nx.complete_graph(40), everyone, everyone).dense
    assert neighbourhood(nx.complete_graph(40), everyone, [3]).dense
    assert not neighbourhood(nx.cycle_graph(40), everyone, everyone).dense


@pytest.mark.parametrize("closeness", [1, 1e-2, 1e-4])
def test_products_and_distances_are_the_same_on_dense_products_and_edge_by_edge(monkeypatch, closeness):
    x = torch.randn(1, 3000) + closeness * torch.randn(12, 3000)
    x[4] = 1e30 * torch.randn(3000)
    x[7] = 0
    products = either_way(monkeypatch, lambda hood: hood.combine(torch.linspace(0, 1, len(hood.rows)), x))
    torch.testing.assert_close(*products, rtol=1e-5, atol=1e-5 * float(x.abs().max()))
    by_products, by_edges = either_way(monkeypatch, lambda hood: hood.distances(x))
    torch.testing.assert_close(by_products, by_edges, rtol=1e-5, atol=0)
    exact = torch.cdist(x[1:].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    hood = neighbourhood(nx.gnp_random_graph(12, 0.5, seed=1), list(range(12)), list(range(1, 12)))
    torch.testing.assert_close(by_products.double(), exact[hood.rows, hood.cols], rtol=1e-5, atol=0)


def test_equal_vectors_have_no_distance(monkeypatch):
    x = torch.randn(1, 100_003).expand(12, -1).contiguous()
    for found in either_way(monkeypatch, lambda hood: hood.distances(x)):
        assert not found.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_infinitely_far(monkeypatch, bad):
    x = torch.randn(12, 50)
    clean = either_way(monkeypatch, lambda hood: hood.distances(x))[0]
    x[5, 3] = bad
    for hood, distance in either_way(monkeypatch, lambda hood: (hood, hood.distances(x))):
        touched = (hood.cols == 5) | (hood.own_cols[hood.rows] == 5)
        assert distance[touched].isposinf().all()
        torch.testing.assert_close(distance[~touched], clean[~touched])


def test_inner_products_are_the_same_either_way(monkeypatch):
    x = torch.randn(12, 300)
    torch.testing.assert_close(*either_way(monkeypatch, lambda hood: hood.dots(x)))


def test_sums_too_large_for_a_sparse_product_are_the_same(monkeypatch):
    hood = neighbourhood(nx.cycle_graph(9), list(range(9)), [8, 0, 4])
    values, vectors = torch.randn(9), torch.randn(20, 5)
    place = torch.tensor([19, 3, 0, 7, 7, 2, 1, 18, 5])
    whole = hood.fold(values, place, vectors)
    monkeypatch.setattr("purifl.neighbourhood._COUNTABLE", 99)
    torch.testing.assert_close(hood.fold(values, place, vectors), whole)


@given(hoods())
@settings(max_examples=60, deadline=None)
def test_reverse_edges_pairs_and_parts(case):
    _, rows, hood = case
    ends = list(zip(hood.own_cols[hood.rows].tolist(), hood.cols.tolist(), strict=True))
    assert hood.reverse.tolist() == [ends.index((j, i)) if (j, i) in ends else -1 for i, j in ends]
    assert hood.opposite.tolist() == [ends.index((j, i) if (j, i) in ends else (i, j)) for i, j in ends]
    kept = [ends[e] for e in hood.pairs.tolist()]
    assert {frozenset(end) for end in kept} == {frozenset(end) for end in ends if end[0] != end[1]}
    assert len({frozenset(end) for end in kept}) == len(kept)
    chosen = torch.arange(len(rows)) % 2 == 0
    edges = chosen[hood.rows] & (hood.to_self | (hood.cols % 3 > 0))
    part = hood.part(edges)
    assert part.own_cols.tolist() == hood.own_cols[chosen].tolist()
    found = zip(part.own_cols[part.rows].tolist(), part.cols.tolist(), strict=True)
    assert list(found) == [end for end, wanted in zip(ends, edges.tolist(), strict=True) if wanted]


@given(hoods())
@settings(max_examples=40, deadline=None)
def test_metropolis_weights_without_suspicion(case):
    graph, _, _ = case
    n = graph.number_of_nodes()
    hood = neighbourhood(graph, list(range(n)), list(range(n)))
    trust = (1 / hood.size.double())[hood.rows]
    offered = dense(hood, trust).T[hood.rows, hood.cols]
    weights = dense(hood, mixing_weights("metropolis", hood, trust, offered, torch.ones_like(hood.to_self)))
    for i, j in graph.edges:
        assert weights[i, j] == pytest.approx(1 / (1 + max(graph.degree(i), graph.degree(j))))
    torch.testing.assert_close(weights, weights.T)
    torch.testing.assert_close(weights.sum(0), torch.ones(n, dtype=torch.float64))


@given(hoods(), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_metropolis_weights_stay_symmetric_whatever_the_trust(case, seed):
    graph, _, _ = case
    n = graph.number_of_nodes()
    hood = neighbourhood(graph, list(range(n)), list(range(n)))
    rng = torch.Generator().manual_seed(seed)
    trust = hood.normalise(torch.rand(len(hood.rows), dtype=torch.float64, generator=rng))
    offered = dense(hood, trust).T[hood.rows, hood.cols]
    weights = dense(hood, mixing_weights("metropolis", hood, trust, offered, torch.ones_like(hood.to_self)))
    torch.testing.assert_close(weights, weights.T)
    assert (weights >= 0).all()


def test_a_dropped_weight_returns_to_oneself_or_is_shared_out():
    hood = neighbourhood(nx.complete_graph(4), list(range(4)), [0])
    trust = torch.full((4,), 0.25)
    kept = torch.tensor([True, True, True, False])
    metropolis = mixing_weights("metropolis", hood, trust, trust, kept)
    uniform = mixing_weights("uniform", hood, trust, trust, kept)
    torch.testing.assert_close(metropolis, torch.tensor([0.5, 0.25, 0.25, 0.0]))
    torch.testing.assert_close(uniform, torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.0]))


def test_a_neighbour_that_claims_full_trust_gains_nothing():
    hood = neighbourhood(nx.complete_graph(3), list(range(3)), [0])
    trust, boast = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.6, 1e9, 1e9])
    weights = mixing_weights("metropolis", hood, trust, boast, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(weights, trust)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's sparse product is what is tested")
def test_sums_over_long_vectors_on_a_gpu():
    hood = neighbourhood(nx.cycle_graph(30), list(range(30)), list(range(30))).to("cuda")
    values, x = torch.rand(len(hood.rows), device="cuda"), torch.rand(30, 3_000_001, device="cuda")
    expected = torch.zeros_like(x).index_add_(0, hood.rows, values[:, None] * x[hood.cols])
    torch.testing.assert_close(hood.combine(values, x), expected)
