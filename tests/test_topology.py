"""Graphs are what their names say, connected, and the same for the same seed."""

import networkx as nx
import pytest

from purifl.errors import ConfigError
from purifl.randomness import stream
from purifl.topology import topologies


def build(spec, clients=10, seed=0):
    return topologies.resolve(spec).build(clients, stream(seed, "topology"))


@pytest.mark.parametrize("n", [2, 3, 5, 10, 12, 13])
def test_fixed_shapes(n):
    assert nx.is_isomorphic(build("complete", n), nx.complete_graph(n))
    assert nx.is_isomorphic(build("line", n), nx.path_graph(n))
    assert nx.is_isomorphic(build("star", n), nx.star_graph(n - 1))
    ring = build("ring", n)
    assert nx.is_isomorphic(ring, nx.cycle_graph(n) if n > 2 else nx.path_graph(2))


@pytest.mark.parametrize(("n", "shape"), [(10, (2, 5)), (12, (3, 4)), (16, (4, 4)), (20, (4, 5)), (4, (2, 2))])
def test_grid_is_the_rectangle_nearest_to_a_square(n, shape):
    assert nx.is_isomorphic(build("grid", n), nx.grid_2d_graph(*shape))


@pytest.mark.parametrize("n", [7, 11, 13, 17])
def test_grid_of_a_prime_number_is_no_line(n):
    graph = build("grid", n)
    assert max(dict(graph.degree).values()) > 2
    assert nx.is_connected(graph)


def test_k_regular_is_regular_and_drawn_by_the_seed():
    graph = build({"name": "k-regular", "degree": 3}, 20)
    assert set(dict(graph.degree).values()) == {3}
    assert set(graph.edges) == set(build({"name": "k-regular", "degree": 3}, 20).edges)
    assert set(graph.edges) != set(build({"name": "k-regular", "degree": 3}, 20, seed=1).edges)


def test_random_graphs_are_connected_whenever_they_can_be():
    for seed in range(20):
        assert nx.is_connected(build({"name": "erdos-renyi", "probability": 0.3}, 12, seed))
        assert nx.is_connected(build({"name": "small-world", "degree": 2, "probability": 0.3}, 12, seed))


def test_a_graph_that_cannot_be_connected_is_refused():
    with pytest.raises(ConfigError, match="connected"):
        build({"name": "erdos-renyi", "probability": 1e-9}, 12)


@pytest.mark.parametrize(("degree", "clients"), [(10, 10), (3, 9)])
def test_an_impossible_degree_is_refused(degree, clients):
    with pytest.raises(ConfigError, match="degree"):
        build({"name": "k-regular", "degree": degree}, clients)


def test_edge_list_and_graphml_files(tmp_path):
    wanted = nx.cycle_graph(12)
    nx.write_edgelist(wanted, tmp_path / "ring.txt", data=False)
    nx.write_graphml(wanted, tmp_path / "ring.graphml")
    for name in ("ring.txt", "ring.graphml"):
        graph = build({"name": "file", "path": str(tmp_path / name)}, 12)
        assert {frozenset(e) for e in graph.edges} == {frozenset(e) for e in wanted.edges}


@pytest.mark.parametrize(
    ("text", "clients", "words"),
    [("0 1\n2 3\n", 4, "connected"), ("0 1\n1 2\n", 4, "3 nodes"), ("0\n", 2, "nodes"), ("", 2, "0 nodes")],
)
def test_unusable_files_are_refused(tmp_path, text, clients, words):
    (tmp_path / "graph.txt").write_text(text)
    with pytest.raises(ConfigError, match=words):
        build({"name": "file", "path": str(tmp_path / "graph.txt")}, clients)


def test_a_missing_or_malformed_file_is_refused(tmp_path):
    (tmp_path / "bad.graphml").write_text("<not graphml")
    for name in ("absent.txt", "bad.graphml"):
        with pytest.raises(ConfigError, match="cannot read a graph"):
            build({"name": "file", "path": str(tmp_path / name)}, 3)


def test_self_loops_in_a_file_are_dropped(tmp_path):
    (tmp_path / "graph.txt").write_text("0 0\n0 1\n")
    assert list(build({"name": "file", "path": str(tmp_path / "graph.txt")}, 2).edges) == [(0, 1)]
