"""What first messages tell."""

import networkx as nx
import numpy as np
import pytest
import torch

from purifl.detection.beginnings import agreement_of
from purifl.detection.persistence import Persistence
from purifl.topology import neighbourhood
from watching import everyone, first, setting, tracked, watch


def test_a_client_with_far_more_data_is_far_from_everyone_and_not_suspected():
    rng = np.random.default_rng(2)
    sizes = np.array([1, 1, 1, 2, 1, 50, 1, 3, 1, 1.0])[None, :, None]
    gradients = sizes * (rng.normal(size=50) + 0.2 * rng.normal(size=(20, 10, 50)))
    graph = nx.complete_graph(10)
    hood, scores = watch(graph, tracked(graph, gradients), gradients)
    assert all((each[hood.cols == 5] > 0.5).all() for each in scores)


def test_far_more_data_is_no_excuse_for_pointing_against_everyone_from_the_start():
    rng = np.random.default_rng(2)
    gradients = rng.normal(size=50) + 0.2 * rng.normal(size=(8, 10, 50))
    messages = tracked(nx.complete_graph(10), gradients)
    messages[:, 5] = -20 * messages[:, 4] * np.array([1, -1] * 4)[:, None]  # back and forth: it does not add up
    hood, scores = watch(nx.complete_graph(10), messages)
    assert (scores[-1][(hood.cols == 5) & ~hood.to_self] < 0.01).all()
    messages[0, 5] *= -1
    hood, scores = watch(nx.complete_graph(10), messages)
    assert (scores[-1][(hood.cols == 5) & ~hood.to_self] > 0.5).all()


def test_who_points_against_everyone_does_not_hide_behind_a_client_with_far_more_data():
    """Four of ten send the opposite of the mean, as far away as the largest of the others is."""
    rng = np.random.default_rng(3)
    sizes = np.array([1, 0.5, 1, 1, 0.5, 40, *[1] * 4])[None, :, None]
    gradients = sizes * (rng.normal(size=50) + 0.2 * rng.normal(size=(1, 10, 50)))
    messages = tracked(nx.complete_graph(10), gradients)
    messages[:, 6:] = -8 * messages[:, :6].mean(1, keepdims=True) + 0.01 * rng.normal(size=(1, 4, 50))
    hood, scores = watch(nx.complete_graph(10), messages)
    benign, to_them = hood.rows < 6, hood.cols > 5
    assert (scores[0][benign & to_them] < 0.1).all()
    assert (scores[0][benign & ~to_them] == 1).all()


def test_a_minority_cannot_make_it_look_as_if_somebody_pointed_against_everyone():
    """Two send the opposite of a large client's first message, and are honest from then on."""
    rng = np.random.default_rng(6)
    sizes = np.array([1, 1, 1, 1, 1, 5, 1, 1, 1, 1.0])[None, :, None]
    gradients = sizes * (rng.normal(size=50) + rng.normal(size=(40, 10, 50)))
    messages = tracked(nx.complete_graph(10), gradients)
    messages[0, :2] = -messages[0, 5]
    hood, scores = watch(nx.complete_graph(10), messages)
    by_others = (hood.cols == 5) & (hood.rows > 1) & ~hood.to_self
    assert all((each[by_others] > 0.5).all() for each in scores)


@pytest.mark.parametrize("dense", [True, False])
def test_first_messages_without_a_direction_point_against_nobody(dense):
    """Of length 0 or next to it, or at right angles to all the others: none of them hides one that is against all."""
    graph = nx.complete_graph(8)
    if not dense:
        graph.add_nodes_from(range(8, 40))
    hood = neighbourhood(graph, list(graph), list(graph))
    assert hood.dense == dense
    gamma = torch.zeros(len(graph), 20)
    gamma[range(8), range(8)] = 1
    among = (hood.rows < 8) & hood.to_others
    assert (agreement_of(hood, gamma, hood.exact_distances(gamma)).abs() < 1e-6)[among].all()
    gamma[:, 10] = 1
    gamma[0], gamma[1], gamma[2] = 0, 1e-40, -3 * gamma[3]
    against = agreement_of(hood, gamma, hood.exact_distances(gamma)) < -0.1
    assert against.tolist() == ((hood.cols == 2) & among).tolist()


@pytest.mark.parametrize("n", [5, 6, 7, 9, 10])
def test_only_a_majority_is_against_anybody(n):
    """Of the others, that is: attackers who send the opposite of a client's message are against it themselves."""
    hood = neighbourhood(nx.complete_graph(n), list(range(n)), list(range(n)))
    rng = torch.Generator().manual_seed(n)
    gamma = torch.ones(n, 20) + 0.1 * torch.randn(n, 20, generator=rng)
    to_first = (hood.cols == 0) & hood.to_others
    for attackers in range(1, n):
        gamma[n - attackers] *= -1
        agreement = agreement_of(hood, gamma, hood.exact_distances(gamma))
        assert (agreement[to_first] < -0.1).all() == (2 * attackers > n - 1)


def test_who_says_nothing_of_its_own_has_no_vote_on_the_others():
    """Three of nine neighbours echo a client that differs from all the rest."""
    hood = neighbourhood(nx.complete_graph(10), list(range(10)), list(range(10)))
    gamma = torch.ones(10, 20)
    gamma[:, :10] += 0.1 * torch.eye(10)
    gamma[:5] *= -1
    gamma[1:4] = gamma[0]
    agreement = agreement_of(hood, gamma, hood.exact_distances(gamma))
    of_first = (hood.rows == 0) & hood.to_others
    assert agreement[of_first & (hood.cols < 4)].isinf().all()
    assert (agreement[of_first & (hood.cols > 4)] > 0.9).all()


def test_who_was_not_heard_at_first_is_neither_compared_nor_marked():
    """It counts as having sent the client's own message, which tells nothing of its own."""
    hood, gamma, _ = setting(n=8, density=1.0)
    gamma = torch.ones_like(gamma) + 0.1 * gamma
    gamma[0] = gamma[5] = -gamma[1]
    detector = Persistence()
    state = detector.begin(hood, first(hood, gamma))
    detector.scores(state, hood, gamma, everyone(hood), gamma)
    to_both = (hood.cols == 0) | (hood.cols == 5)
    same = to_both & ((hood.rows == 0) | (hood.rows == 5))
    assert (state["alike"][same | hood.to_self] == 0).all()
    assert (state["alike"][~same & hood.to_others] > 0).all()
    assert detector.marked(state).tolist() == (to_both & ~same).tolist()


def test_who_is_against_the_others_is_opposed_only_to_those_it_is_against():
    """Client 7 differs from the rest, and what points against them points along with it."""
    hood, gamma, _ = setting(n=8, density=1.0)
    gamma = torch.ones_like(gamma) + 0.1 * gamma
    gamma[0], gamma[7] = -2 * gamma[1], -gamma[2]
    detector = Persistence()
    state = detector.begin(hood, first(hood, gamma))
    detector.scores(state, hood, gamma, everyone(hood), gamma)
    unlike = (hood.cols == 0) | (hood.cols == 7)
    assert detector.marked(state).tolist() == (unlike & hood.to_others).tolist()
    assert detector.opposed(state).tolist() == (unlike & (hood.rows != 0) & (hood.rows != 7)).tolist()


def test_a_long_message_has_to_point_along_with_the_others_to_be_excused():
    """Noise of ten times their length, in a new direction each round, is no client with ten times the data."""
    rng = np.random.default_rng(8)
    gradients = rng.normal(size=500) + 0.2 * rng.normal(size=(4, 10, 500))
    messages = tracked(nx.complete_graph(10), gradients)
    messages[:, 5] *= 10
    hood, scores = watch(nx.complete_graph(10), messages[:1])
    to_long = (hood.cols == 5) & hood.to_others
    assert (scores[-1][to_long] == 1).all()
    noise = rng.normal(size=(4, 500))
    messages[:, 5] = 10 * noise * (np.linalg.norm(messages[:, 4], axis=1) / np.linalg.norm(noise, axis=1))[:, None]
    hood, scores = watch(nx.complete_graph(10), messages)
    assert (scores[-1][to_long] < 0.01).all()
    assert (scores[-1][~to_long & (hood.rows != 5)] == 1).all()
