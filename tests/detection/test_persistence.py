"""What adds up, against its equations and in cases that each part is there for."""

import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence_by_hand import persistence_by_hand
from purifl.defenses import Heard
from purifl.detection import lower_trust
from purifl.detection.persistence import Persistence
from purifl.topology import neighbourhood
from watching import GRAPHS, everyone, first, least_trust, setting, tracked, watch


@given(
    seed=st.integers(0, 999),
    rounds=st.integers(1, 12),
    behind=st.floats(0.05, 1),
    density=st.floats(0, 1),
    loud=st.floats(0.1, 20),
    trusted=st.sets(st.integers(0, 7), max_size=2),
    kin=st.integers(0, 6),
)
@settings(max_examples=120, deadline=None)
def test_persistence_is_its_equations(seed, rounds, behind, density, loud, trusted, kin):
    hood, gamma, edges = setting(n=8, seed=seed, density=density)
    rng = np.random.default_rng(seed)
    messages = rng.normal(size=(rounds, *gamma.shape))
    messages[:, 0] = loud * (messages[:, 0] + 1)
    messages[:, 1:3] = 3 * rng.normal(size=gamma.shape[1]) + behind * messages[:, 1:3]
    messages[:, 2] *= behind
    messages[0, 1 : 1 + kin] = rng.exponential(3, size=(kin, 1)) * (messages[0, 1] + 0.3 * messages[0, 1 : 1 + kin])
    own = rng.exponential(3, size=(rounds, len(gamma), 1)) * (rng.normal(size=messages.shape) + 2 * messages[:, :1])
    kept = {edge: edge[0] == edge[1] or rng.random() < 0.8 for edge in edges}
    detector = Persistence(sharpness=2.0, trusted=tuple(trusted))
    state = detector.begin(hood, first(hood, gamma))
    still = torch.tensor([kept[e] for e in edges])
    for message, each in zip(messages, own, strict=True):
        scores = detector.scores(state, hood, torch.tensor(message), still, torch.tensor(each))
    expected = persistence_by_hand(hood, edges, messages, kept, own, 2.0, trusted)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("graph", "noise"), [(graph, noise) for graph in GRAPHS for noise in (0.1, 1.0) if (graph, noise) != ("star", 0.1)]
)
def test_nobody_honest_is_suspected_however_different(graph, noise):
    """Gradients that differ from client to client and from round to round, and fade."""
    rng = np.random.default_rng(0)
    own, fading = rng.normal(size=(1, 10, 50)), np.linspace(1, 0.3, 40)[:, None, None]
    gradients = fading * (2 * rng.normal(size=50) + own + noise * rng.normal(size=(40, 10, 50)))
    hood, scores = watch(GRAPHS[graph], tracked(GRAPHS[graph], gradients))
    assert (least_trust(hood, scores) > 0.1).all()


def test_gradients_that_stay_long_while_messages_become_short_are_no_push():
    """Clients that share nothing: what they send becomes the mean, which is next to nothing."""
    rng = np.random.default_rng(7)
    own = np.eye(10, 50) - np.eye(10, 50).mean(0)
    gradients = own * np.linspace(1, 1.2, 60)[:, None, None] + 0.01 * rng.normal(size=(60, 10, 50))
    messages = tracked(nx.complete_graph(10), gradients)
    hood, scores = watch(nx.complete_graph(10), messages, gradients)
    assert (least_trust(hood, scores) > 0.5).all()
    _, scores = watch(nx.complete_graph(10), messages)
    assert (least_trust(hood, scores) < 0.2)[hood.to_others].all()


def test_a_gradient_that_grows_with_the_harm_done_does_not_excuse_who_does_it():
    """On a ring, where nobody asks who is apart; what had always been that long would be an excuse."""
    rng, ring = np.random.default_rng(9), nx.cycle_graph(10)
    gradients = rng.normal(size=50) + 0.3 * rng.normal(size=(12, 10, 50))
    messages = tracked(ring, gradients)
    messages[:, 4] = messages[:, 4] + 1.5 * rng.normal(size=50)
    hood, scores = watch(ring, messages, gradients * np.linspace(1, 100, 12)[:, None, None])
    to_attacker = (hood.cols == 4) & hood.to_others
    assert (scores[-1][to_attacker] < 0.01).all()
    messages[0] *= 100
    _, scores = watch(ring, messages, gradients * 100)
    assert (scores[-1][to_attacker] > 0.9).all()


def test_what_an_only_neighbour_has_made_of_a_clients_messages_is_no_excuse_for_it():
    """A leaf whose messages have become long by what the hub sends, and a client that hears somebody else as well."""
    rng = np.random.default_rng(24)
    messages = rng.normal(size=50) + 0.05 * rng.normal(size=(30, 10, 50))
    messages[:, 0] += 0.6 * rng.normal(size=50)
    messages[1:, 1] *= 4
    pushes = []
    for graph in (nx.star_graph(9), nx.compose(nx.star_graph(9), nx.Graph([(1, 2)]))):
        hood, scores = watch(graph, messages)
        pushes.append(1 - np.log(scores[-1][(hood.listeners == 1) & (hood.cols == 0)].item()) / 4)
    alone, accompanied = pushes
    assert accompanied > 1
    assert alone > 1.5 * accompanied * (1 / 10) / (2 / 10)


@pytest.mark.parametrize("own", [math.nan, 1e-3])
def test_a_gradient_that_tells_nothing_leaves_it_to_the_messages(own):
    graph, rng = nx.complete_graph(6), np.random.default_rng(10)
    messages = rng.normal(size=(5, 6, 20)) + np.eye(6)[:, :1]
    gradients = np.full_like(messages, own)
    torch.testing.assert_close(watch(graph, messages, gradients)[1], watch(graph, messages)[1])


def test_a_gradient_without_end_counts_as_the_first_message():
    graph, rng = nx.complete_graph(6), np.random.default_rng(11)
    messages = rng.normal(size=(5, 6, 20)) + np.eye(6)[:, :1]
    endless, first_ones = np.full_like(messages, math.inf), np.broadcast_to(messages[0], messages.shape)
    torch.testing.assert_close(watch(graph, messages, endless)[1], watch(graph, messages, first_ones)[1])


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_push_in_one_direction_is_suspected_by_everyone_who_hears_it(graph):
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=50) + 0.3 * rng.normal(size=(25, 10, 50))
    messages = tracked(GRAPHS[graph], gradients)
    messages[:, 4] = messages[:, 4] + 1.5 * rng.normal(size=50)
    hood, scores = watch(GRAPHS[graph], messages)
    to_attacker = (hood.cols == 4) & ~hood.to_self
    assert (scores[-1][to_attacker] < 0.01).all()
    assert (scores[-1][~to_attacker & (hood.own_cols[hood.rows] != 4)] == 1).all()


def outlasted():
    """Messages of ten clients whose data differ: back and forth after the first, but for the last one's slight push."""
    messages = np.einsum("t,ik->tik", np.r_[1, 0.4 * np.resize([1, -1], 10)], np.eye(10, 20))
    messages[1:, 9] = 0.05 * messages[0, 9]
    return messages


@pytest.mark.parametrize(("restless", "found"), [(1, True), (4, False)])
def test_a_push_that_gradients_could_explain_is_found_by_its_lasting_longer_than_the_others(restless, found):
    """Not where a third of the honest differ from the rest as much."""
    messages = outlasted()
    messages[1:, :3] *= restless
    hood, scores = watch(nx.complete_graph(10), messages, np.broadcast_to(messages[0], messages.shape))
    by_calm = (hood.rows >= 3) & (hood.rows < 9)
    assert ((scores[-1][by_calm & (hood.cols == 9)] < 0.1) == found).all()
    assert (scores[-1][by_calm & (hood.cols != 9)] == 1).all()


@pytest.mark.parametrize("silent", [4, 5])
def test_who_says_nothing_is_no_measure_of_what_is_usual(silent):
    """In the place of messages that did not come stand one's own."""
    messages = outlasted()
    messages[:, 1 : 1 + silent] = messages[:, :1]
    hood, scores = watch(nx.complete_graph(10), messages, np.broadcast_to(messages[0], messages.shape))
    assert (scores[-1][(hood.rows == 0) & (hood.cols == 9)] < 0.1).all()


def test_with_somebody_to_trust_no_majority_is_needed_to_find_who_is_apart():
    """Six of ten push, by less than their push alone would tell."""
    rng, graph = np.random.default_rng(12), nx.complete_graph(10)
    messages = tracked(graph, rng.normal(size=50) + 0.3 * rng.normal(size=(8, 10, 50)))
    messages[:, 4:] += 0.15 * rng.normal(size=50)
    hood, scores = watch(graph, messages, trusted=(0, 1))
    benign = hood.rows < 4
    assert (scores[-1][benign & (hood.cols >= 4)] < 0.1).all()
    assert (scores[-1][benign & (hood.cols < 4)] > 0.5).all()
    _, scores = watch(graph, messages)
    assert (scores[-1][benign & (hood.cols >= 4)] > 0.5).all()


def test_who_is_trusted_is_never_suspect_and_shields_nobody():
    rng, graph = np.random.default_rng(13), nx.complete_graph(10)
    messages = tracked(graph, rng.normal(size=50) + 0.3 * rng.normal(size=(25, 10, 50)))
    messages[:, 4] += 1.5 * rng.normal(size=50)
    messages[:, 5] += 0.6 * rng.normal(size=50)
    hood, scores = watch(graph, messages, trusted=(4,))
    by_others = (hood.rows != 4) & (hood.rows != 5)
    assert (scores[-1][hood.cols == 4] == 1).all()
    assert (scores[-1][by_others & (hood.cols == 5)] < 0.1).all()
    _, scores = watch(graph, messages)
    assert (scores[-1][by_others & (hood.cols == 5)] == 1).all()


@pytest.mark.parametrize("size", [1, 20])
def test_a_large_clients_gradient_may_grow_as_that_of_one_of_like_size(size):
    """By 15 %, of two clients of like size. Next to a large one's, one's own gradient is nothing to allow for that."""
    rng, grows = np.random.default_rng(9), np.linspace(1, 1.15, 15)[:, None]
    gradients = np.ones(50) + 0.2 * rng.normal(size=(15, 10, 50))
    gradients[:, 5] = size * grows * (1 + 0.02 * rng.normal(size=(15, 50)))
    hood, scores = watch(nx.complete_graph(10), tracked(nx.complete_graph(10), gradients))
    assert (least_trust(hood, scores)[hood.cols == 5] > 0.1).all()


def test_a_large_client_is_allowed_for_by_its_first_message_and_not_by_longer_ones_that_follow():
    """A long push is as plain as one next to which one's own gradient is nothing; as long again would be allowed."""
    rng, graph = np.random.default_rng(14), nx.complete_graph(10)
    gradients = np.ones(50) + 0.2 * rng.normal(size=(3, 10, 50))
    gradients[:, 5] *= 5
    messages = tracked(graph, gradients)
    messages[1:, 5] += 8 * rng.normal(size=50)
    hood, scores = watch(graph, messages)
    assert (scores[-1][(hood.cols == 5) & ~hood.to_self] < 0.01).all()


def test_cutting_some_makes_the_rest_no_more_suspect_than_they_were():
    """With ρ of the weight left, honest neighbours end up 1/ρ times as far apart."""
    graph, rng = nx.complete_graph(10), np.random.default_rng(5)
    hood = neighbourhood(graph, range(10), range(10))
    kept = (hood.rows < 5) == (hood.cols < 5)
    weights = np.where(np.equal.outer(np.arange(10) < 5, np.arange(10) < 5), 0.1, 0.0)
    weights += np.diag(1 - weights.sum(1))
    gradients = rng.normal(size=(1, 10, 50)) + 0.1 * rng.normal(size=(60, 10, 50))
    gamma = [gradients[0]]
    for before, now in pairwise(gradients):
        gamma.append(weights @ gamma[-1] + now - before)
    detector = Persistence()
    state = detector.begin(hood, first(hood, torch.tensor(gamma[0])))
    trust = 1 / hood.size.double()[hood.rows]
    for message in gamma:
        scores = detector.scores(state, hood, torch.tensor(message), kept, torch.zeros(10, 50))
        trust = lower_trust(hood, trust, scores, kept)
        assert (trust[kept] > 0.1 / 10).all()


@pytest.mark.parametrize("claim", [1.0, 1 / 7, 1e-9, 0.0])
def test_what_a_neighbour_says_first_does_not_decide_how_it_is_judged(claim):
    """m_j is the graph's: who said that it trusts a client next to nothing had m_j = 1e9, and was never suspected."""
    hood, gamma, _ = setting(density=0.5)
    told = Persistence().begin(hood, Heard(gamma, gamma, torch.full_like(hood.uniform, claim), everyone(hood)))
    sizes, theirs = hood.size[hood.rows], hood.size[hood.cols]
    assert torch.equal(told["openness"], (torch.minimum(sizes, theirs).double() - 1) / torch.maximum(sizes, theirs))
    assert all(torch.equal(told[key], x) for key, x in Persistence().begin(hood, first(hood, gamma)).items())


@pytest.mark.parametrize("huge", [1e76, 1e78, 1e100, 1e104])
def test_a_message_of_which_the_fourth_power_is_no_number_is_suspect_as_well(huge):
    graph, rng = nx.complete_graph(6), np.random.default_rng(4)
    messages = rng.normal(size=(6, 6, 20))
    messages[2:, 1] = huge
    hood, scores = watch(graph, messages)
    assert (scores[-1][(hood.cols == 1) & hood.to_others] < 0.1).all()


def test_persistence_has_no_length_scale():
    graph, rng = nx.complete_graph(6), np.random.default_rng(3)
    messages = rng.normal(size=(5, 6, 20)) + np.eye(6)[:, :1]
    found = [watch(graph, scale * messages)[1][-1] for scale in (1.0, 1e-8, 1e8)]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_a_message_too_large_for_its_square_does_not_hide_behind_it():
    graph, rng = nx.complete_graph(6), np.random.default_rng(4)
    messages = rng.normal(size=(4, 6, 20)).astype(np.float32)
    for huge in (1e30, 3e38):
        messages[2, 1] = huge
        hood, scores = watch(graph, messages)
        assert (scores[-1][(hood.cols == 1) & ~hood.to_self] < 0.1).all()
        assert scores[-1].isfinite().all()


def test_sums_too_large_for_their_type_accuse_nobody_who_says_the_same():
    _, scores = watch(nx.complete_graph(6), np.full((4, 6, 20), 2e38, dtype=np.float32))
    assert (scores[-1] == 1).all()
