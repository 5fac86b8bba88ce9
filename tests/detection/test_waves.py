"""What large clients send passes over slow edges, and what only looks like it does not."""

import math

import networkx as nx
import numpy as np
import pytest
import torch

from purifl.defenses import Heard
from purifl.detection import discord, waves
from purifl.detection.persistence import Persistence
from purifl.neighbourhood import Neighbourhood
from purifl.topology import neighbourhood
from watching import GRAPHS, everyone, first, least_trust, tracked, watch


def from_large_client(graph, noise):
    """Messages and gradients where all have the same kind of data, client 0 a hundred times as much as the others."""
    rng = np.random.default_rng(15)
    sizes = 0.97 ** np.arange(30)[:, None, None] * np.where(np.arange(10) == 0, 100, 1)[:, None]
    gradients = sizes * (rng.normal(size=50) + noise * rng.normal(size=(30, 10, 50)))
    return tracked(GRAPHS[graph], gradients), gradients


SPARSE = [("ring", 1), ("grid", 1), ("line", 2)]


@pytest.mark.parametrize(("graph", "noise"), [*SPARSE, ("star", 1)])
def test_what_a_large_client_sends_passes_through_a_sparse_graph_without_a_cut(graph, noise):
    messages, gradients = from_large_client(graph, noise)
    hood, scores = watch(GRAPHS[graph], messages, gradients)
    assert (least_trust(hood, scores) > 0.1).all()


@pytest.mark.parametrize("seed", [0, 2])
def test_on_a_graph_that_is_not_complete_what_a_large_client_sends_takes_its_time(seed, monkeypatch):
    """Though everybody has five neighbours. If its edges were not slow it would be a push."""
    monkeypatch.setitem(GRAPHS, "regular", nx.random_regular_graph(5, 10, seed=seed))
    messages, gradients = from_large_client("regular", 0.3)
    hood, scores = watch(GRAPHS["regular"], messages, gradients)
    assert (least_trust(hood, scores) > 0.1).all()
    remember = waves.remember
    quick = {"slow": torch.zeros_like(hood.to_self)}
    monkeypatch.setattr(waves, "remember", lambda *known: remember(*known) | quick)
    _, scores = watch(GRAPHS["regular"], messages, gradients)
    assert (least_trust(hood, scores) <= 0.1).any()


@pytest.mark.parametrize(
    ("graph", "slow"),
    [(nx.complete_graph(6), False), (nx.complete_graph(4), True), (nx.circulant_graph(8, [1, 2]), True)],
)
def test_edges_are_slow_but_on_complete_graphs_of_five_or_more_and_a_peer_knows_it(graph, slow):
    clients = list(graph)
    whole = neighbourhood(graph, clients, clients)
    state = Persistence().begin(whole, first(whole, torch.ones(len(clients), 3)))
    assert (state["slow"] == (whole.to_others & slow)).all()
    m = len(graph[0]) + 1
    sizes = [1 + graph.degree[j] for j in (0, *graph[0])]
    alone = Neighbourhood.of([range(m)], [0], range(m), sizes, len(clients))
    gamma, present = torch.ones(m, 3), torch.ones(m, dtype=torch.bool)
    state = Persistence().begin(alone, Heard(gamma, gamma, torch.full((m,), 1 / m), present))
    assert (state["slow"] == (alone.to_others & slow)).all()


def test_on_a_graph_that_is_nearly_complete_the_edges_of_those_who_do_not_hear_all_are_slow():
    graph = nx.complete_graph(7)
    graph.remove_edge(0, 1)
    hood = neighbourhood(graph, list(graph), list(graph))
    state = Persistence().begin(hood, first(hood, torch.ones(7, 3)))
    halfway = (hood.listeners < 2) | (hood.cols < 2)
    assert (state["slow"] == (hood.to_others & halfway)).all()


@pytest.mark.parametrize(("graph", "noise"), SPARSE[:2])
def test_a_wave_is_no_wave_to_who_is_against_it_and_less_of_the_same_to_who_has_it(graph, noise):
    """Clients whose own gradients are the opposite of what comes cut those it comes from, and nobody else.

    Along a line it takes so long that those behind are too far behind as well.
    """
    messages, gradients = from_large_client(graph, noise)
    hood, scores = watch(GRAPHS[graph], messages, -gradients)
    away = torch.tensor([nx.shortest_path_length(GRAPHS[graph], 0, k) for k in range(10)])
    cut = least_trust(hood, scores) <= 0.1
    assert cut.sum() == {"ring": 4, "grid": 5}[graph]
    assert (away[hood.listeners] > away[hood.cols])[cut].all()


@pytest.mark.parametrize(("sends", "noticed"), [("little", False), ("next to nothing", True), ("something else", True)])
def test_who_sends_less_of_the_same_is_no_push_for_as_long_as_it_catches_up(sends, noticed):
    """A leaf behind the hub of a star, that comes nearer by a seventh a round, or does not, or leads elsewhere."""
    rng, star = np.random.default_rng(19), nx.star_graph(9)
    messages = rng.normal(size=50) + 0.05 * rng.normal(size=(40, 10, 50))
    few = np.full(40, 0.05)
    share = {"little": 1 - (6 / 7) ** np.arange(40), "next to nothing": few, "something else": few}[sends]
    other = rng.normal(size=50) if sends == "something else" else 0
    messages[:, 4] = share[:, None] * messages[:, 4] + other + 0.01 * rng.normal(size=(40, 50))
    hood, scores = watch(star, messages, messages)
    to_it = (hood.listeners == 0) & (hood.cols == 4)
    assert ((least_trust(hood, scores) <= 0.1)[to_it] == noticed).all()
    assert (least_trust(hood, scores)[(hood.listeners == 0) & ~to_it] > 0.5).all()


@pytest.mark.parametrize("cut", [False, True])
def test_good_behaviour_after_a_cut_is_not_less_of_the_same(cut):
    """Or who was cut for the opposite of what all send would only have to fall in with them to be heard again."""
    rng, ring = np.random.default_rng(20), nx.cycle_graph(10)
    messages = rng.normal(size=50) + 0.05 * rng.normal(size=(24, 10, 50))
    messages[:2, 4] *= -1
    hood, detector = neighbourhood(ring, list(range(10)), list(range(10))), Persistence()
    state, to_it = detector.begin(hood, first(hood, torch.tensor(messages[0]))), (hood.cols == 4) & hood.to_others
    for message in messages:
        scores = detector.scores(state, hood, torch.tensor(message), ~to_it | (not cut), torch.tensor(message))
    assert (scores[to_it] < 0.01).all() if cut else (scores[to_it] == 1).all()


@pytest.mark.parametrize("changed", ["against", "lasting"])
def test_a_wave_is_along_with_ones_own_gradient_and_does_not_last(changed):
    """A neighbour whose messages grow, but lead elsewhere, or for longer than the growth of three allows."""
    rng, ring = np.random.default_rng(16), nx.cycle_graph(10)
    messages = np.full((24, 10, 50), 0.1) * rng.normal(1, 0.1, size=(24, 10, 50))
    own = messages.copy()
    messages[2:, 4] += 2.0 if changed == "lasting" else np.where(np.arange(50) % 2, 1.5, -1.5)
    hood, scores = watch(ring, messages, own)
    to_it = (hood.cols == 4) & hood.to_others
    assert ((scores[6][to_it] < 0.5) == (changed == "against")).all()
    assert (scores[-1][to_it] < 0.01).all()


@pytest.mark.parametrize(("before", "passes"), [(1.0, True), (0.2, False)])
def test_a_wave_that_has_clearly_been_along_may_turn_aside_for_a_round(before, passes):
    """Along with the client's own gradient by a cosine of about ``before``, and by none in the last round."""
    rng, ring = np.random.default_rng(21), nx.cycle_graph(10)
    way, aside = np.eye(2, 50)
    messages = np.full((16, 10, 50), 0.02) * way + 0.001 * rng.normal(size=(16, 10, 50))
    own = messages.copy()
    messages[0, 4] += 0.02 * aside
    messages[9:, 4] += 0.2 * (before * way + math.sqrt(1 - before**2) * aside)
    messages[-1, 4] = 0.2 * aside
    hood, scores = watch(ring, messages, own)
    to_it = (hood.cols == 4) & hood.to_others
    assert (scores[-2][to_it] == 1).all()
    assert ((scores[-1][to_it] == 1) == passes).all()


@pytest.mark.parametrize(("longer", "passes"), [(2.9, True), (3.1, False)])
def test_a_wave_comes_to_nobody_whose_own_gradient_has_grown(longer, passes):
    """Of a neighbour whose messages grow along with that gradient, which is now that many times as long as at first."""
    rng, ring = np.random.default_rng(16), nx.cycle_graph(10)
    messages = np.full((7, 10, 50), 0.1) * rng.normal(1, 0.1, size=(7, 10, 50))
    own = messages.copy()
    messages[2:, 4] += 2.0
    own[-1] *= (
        longer * np.linalg.norm(messages[0], axis=1, keepdims=True) / np.linalg.norm(own[-1], axis=1, keepdims=True)
    )
    hood, scores = watch(ring, messages, own)
    to_it = (hood.cols == 4) & hood.to_others
    assert (scores[-2][to_it] == 1).all()
    assert ((scores[-1][to_it] == 1) == passes).all()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_message_that_is_no_number_is_no_wave(broken):
    messages = np.random.default_rng(17).normal(1, 0.1, size=(6, 10, 50))
    gradients = messages.copy()
    messages[3, 4, 0] = broken
    hood, scores = watch(nx.cycle_graph(10), messages, gradients)
    to_it = (hood.cols == 4) & hood.to_others
    assert all((each[to_it].nan_to_num(0) == 0).all() for each in scores[3:])


def test_who_is_missed_is_not_along(monkeypatch):
    """It counts as having sent the client's own message, which is along with its gradient whoever is missed."""
    monkeypatch.setattr(discord, "discord", lambda state, hood, distance, *_: torch.zeros_like(distance))
    hood = Neighbourhood.of([[0, 1, 2]], [0], [0, 1, 2], [3, 3, 3])
    detector, way = Persistence(), torch.eye(2, 50, dtype=torch.float64)
    honest, own = 0.1 * way[0].repeat(3, 1), 0.1 * way[:1]
    state = detector.begin(hood, Heard(honest, honest, torch.full((3,), 1 / 3), torch.ones(3, dtype=torch.bool)))
    for t in range(36):
        pushes = t % 6 == 5
        message = honest + pushes * torch.stack([0 * way[1], way[1], 0 * way[1]])
        scores = detector.scores(state, hood, message, everyone(hood), own)
        assert t < 6 or not pushes or scores[1] < 0.01
