"""Kin are compared with kin: whose gradients become longer and shorter together, and who claims more."""

import networkx as nx
import numpy as np
import pytest
import torch

from purifl.detection import kin
from purifl.detection.persistence import Persistence
from purifl.topology import neighbourhood
from watching import everyone, first, least_trust, tracked, watch

GRAPH = nx.complete_graph(10)
SIZES = np.array([1, 1, 40, 1, 30, 1, 50, 35, 100, 1.0])
LARGE, SMALL = [2, 4, 6, 7, 8], [0, 1, 3, 5, 9]


def unequal(rounds=12, seed=0):
    """Gradients (T, 10, 50): much the same of the large, and fading as they learn; of the small mostly noise."""
    rng = np.random.default_rng(seed)
    common = np.geomspace(1, 0.1, rounds)[:, None, None] * rng.normal(size=50)
    noise = np.where(SIZES == 1, 1.0, 0.02)[:, None] * rng.normal(size=(10, 50))
    return SIZES[:, None] * (common + noise + 0.01 * rng.normal(size=(rounds, 10, 50)))


def begun(messages, graph=GRAPH):
    """A neighbourhood, and what is known of it after the first messages."""
    clients = list(range(graph.number_of_nodes()))
    hood, detector, gamma = neighbourhood(graph, clients, clients), Persistence(), torch.tensor(messages[0])
    state = detector.begin(hood, first(hood, gamma))
    detector.scores(state, hood, gamma, everyone(hood), gamma)
    return hood, state


def groups(messages):
    return begun(messages)[1]["kin"].view(10, 10)


def to(hood, *clients):
    return torch.isin(hood.cols, torch.tensor(clients)) & hood.to_others


def test_kin_began_alike_and_with_about_as_long_a_message():
    found = groups(tracked(GRAPH, unequal(1)))
    assert (found[:, LARGE] == found[:, LARGE[:1]]).all()
    assert (found[:, LARGE] >= 0).all()
    assert (found[:, SMALL] == -1).all()


@pytest.mark.parametrize(("length", "is_kin"), [(9, True), (7, False), (150, True), (450, False)])
def test_messages_over_four_times_as_long_are_no_kins(length, is_kin):
    """Of clients that begin alike and 30 to 100 long."""
    messages = tracked(GRAPH, unequal(1))
    messages[0, 0] = length / 30 * messages[0, 4]
    assert ((groups(messages)[:, 0] >= 0) == is_kin).all()


def test_of_fewer_than_five_none_could_be_called_an_outlier():
    messages = tracked(GRAPH, unequal(1))
    messages[0, 4] = np.random.default_rng(3).normal(size=50)
    assert (groups(messages) == -1).all()


def test_who_is_missed_at_first_does_not_make_enough_of_too_few():
    messages = tracked(GRAPH, unequal(1))
    messages[0, 4] = np.random.default_rng(3).normal(size=50)
    messages[0, 0] = messages[0, 2]  # to client 2, that is who was missed
    found = groups(messages)
    assert (found[2] == -1).all()
    assert (found[1, [0, 2, 6, 7, 8]] >= 0).all()


def test_a_small_group_counts_for_those_in_it():
    """Five of twelve, who know by their own gradients what to expect."""
    gradients = unequal(1)
    gradients = np.concatenate([gradients, np.random.default_rng(5).normal(size=(1, 2, 50))], axis=1)
    found = begun(gradients, nx.complete_graph(12))[1]["kin"].view(12, 12)
    assert (found[LARGE][:, LARGE] >= 0).all()
    assert (found[[*SMALL, 10, 11]] == -1).all()


@pytest.mark.parametrize("graph", [nx.star_graph(9), nx.cycle_graph(10), nx.complete_multipartite_graph(4, 6)])
def test_only_with_as_many_neighbours_at_both_ends_does_anybody_claim_a_gradient(graph):
    _, state = begun(np.ones((1, 10, 50)) + 0.01 * np.random.default_rng(0).normal(size=(1, 10, 50)), graph)
    assert (state["kin"] == -1).all()
    assert not state["akin_to_self"].any()
    assert not state["far_smaller"].any()


def test_who_is_missed_is_no_kin_whether_at_first_or_later():
    messages = tracked(GRAPH, unequal(2))
    hood, state = begun(messages)
    row, missed = hood.rows == 0, (hood.rows == 0) & (hood.cols == 2)
    messages[1, 2] = messages[1, 0]  # what client 0 takes for who was missed
    Persistence().scores(state, hood, torch.tensor(messages[1]), everyone(hood), torch.tensor(messages[1]))
    assert (state["kin"][missed] == -1).all()
    assert (state["kin"][row & to(hood, *LARGE) & ~missed] >= 0).all()
    messages[0, 2] = messages[0, 0]
    assert (begun(messages)[1]["kin"][missed] == -1).all()


def test_a_few_cannot_make_a_group_of_their_own_for_an_honest_client():
    """They begin as it does and then claim next to nothing, so that to who is no kin of theirs it would stand out."""
    graph, rng = nx.complete_graph(20), np.random.default_rng(4)
    gradients = rng.normal(size=(20, 50)) + 0.05 * rng.normal(size=(12, 20, 50))
    gradients[0, 16:] = gradients[0, 15] + 0.05 * rng.normal(size=(4, 50))
    gradients[1:, 16:] = 0.01 * gradients[0, 16:]
    _, state = begun(tracked(graph, gradients), graph)
    assert (state["kin"].view(20, 20)[:15] == -1).all()
    hood, scores = watch(graph, tracked(graph, gradients), gradients)
    assert (least_trust(hood, scores)[to(hood, 15) & (hood.rows < 15)] > 0.5).all()


def test_gradients_that_fade_together_and_noise_that_stays_are_both_honest():
    gradients = unequal()
    hood, scores = watch(GRAPH, tracked(GRAPH, gradients), gradients)
    assert (least_trust(hood, scores)[hood.to_others] > 0.3).all()


def test_who_claims_more_than_its_kin_is_found_by_everybody(monkeypatch):
    """Pushing by a third of its fading gradient, which is little beside what long first messages allow for."""
    gradients = unequal()
    messages, aside = tracked(GRAPH, gradients), np.random.default_rng(1).normal(size=50)
    messages[1:, 2] += np.linalg.norm(gradients[1:, 2], axis=1)[:, None] * aside / np.linalg.norm(aside) / 3
    hood, scores = watch(GRAPH, messages, gradients)
    least = least_trust(hood, scores)
    assert (least[to(hood, 2)] < 0.1).all()
    assert (least[hood.to_others & ~to(hood, 2) & (hood.rows != 2)] > 0.3).all()
    monkeypatch.setattr(kin, "AKIN", 2.0)
    _, scores = watch(GRAPH, messages, gradients)
    assert (least_trust(hood, scores)[to(hood, 2)] > 0.3).sum() > 5  # most would not know


def beyond(messages, gradients, kept=None):
    """(10, 10) what is claimed beyond kin after all the messages."""
    hood, state = begun(messages)
    state["sum"] = torch.tensor(messages.sum(0))
    kept = everyone(hood) if kept is None else kept.flatten()
    distance = hood.exact_distances(state["sum"])
    return kin.beyond_kin(state, hood, distance, torch.tensor(gradients[-1]), kept, torch.ones(100)).view(10, 10)


def test_nothing_is_taken_for_granted_that_could_be_too_much():
    """Where no angle could make it too much nobody needs to know the angle."""
    gradients = unequal()
    messages = tracked(GRAPH, gradients)
    hood, state = begun(messages)
    state["sum"] = torch.tensor(messages.sum(0))
    distance, own = hood.exact_distances(state["sum"]), torch.tensor(gradients[-1])

    def found(counts):
        return kin.beyond_kin(state, hood, distance, own, everyone(hood), torch.full_like(distance, counts))

    assert found(0.9).max() > 0.9
    assert (found(1e-3) == 0).all()


def test_the_gradient_claimed_is_the_one_that_honest_messages_are_of():
    gradients = unequal()
    lengths = np.linalg.norm(gradients, axis=2)
    claims = lengths[-1] / lengths[0]
    usual = np.full((10, 1), np.median(claims[LARGE]))
    usual[LARGE, 0] = np.maximum(usual[LARGE, 0], claims[LARGE])  # who is kin knows its own
    expected = np.zeros((10, 10))
    expected[:, LARGE] = claims[LARGE] / usual
    np.testing.assert_allclose(beyond(tracked(GRAPH, gradients), gradients), expected, atol=1e-9)


@pytest.mark.parametrize(("silent", "framed"), [([2, 4], False), ([2, 4, 6], True), ([0, 2, 4], False)])
def test_only_most_of_a_group_can_make_the_others_look_as_if_they_claimed_too_much(silent, framed):
    """With client 0 they are six, of which three are no majority; to who is kin itself none can."""
    gradients = unequal()
    if 0 in silent:
        gradients[:, 0] = 35 * gradients[:, 7] / SIZES[7]
    gradients[1:, silent] *= 0.01
    found = beyond(tracked(GRAPH, gradients), gradients)
    assert ((found[1, [7, 8]] > 10) == framed).all()
    assert (found[[7, 8]] < 1.2).all()


def test_who_was_cut_is_no_measure_and_two_are_not_enough():
    gradients = unequal()
    gradients[-1, [2, 4]] *= 10
    kept = torch.ones(10, 10, dtype=torch.bool)
    kept[:, [2, 4]] = False
    assert (beyond(tracked(GRAPH, gradients), gradients, kept)[SMALL][:, [2, 4]] > 8).all()
    kept[:, 6] = False
    assert (beyond(tracked(GRAPH, gradients), gradients, kept)[SMALL] == 0).all()


def test_a_gradient_that_is_no_number_accuses_nobody_nor_does_one_without_end():
    gradients = unequal()
    messages = tracked(GRAPH, gradients)
    gradients[-1, 0] = np.nan
    messages[-1, 2] = 1e200
    found = beyond(messages, gradients)
    assert (found[0] == 0).all()
    assert (found[:, 2] == 0).all()  # that is a push
    assert found.isfinite().all()


def test_gradients_of_kin_are_as_long_as_ones_own_in_the_first_rounds():
    hood, state = begun(tracked(GRAPH, unequal(1)))
    length, own = state["first"], torch.full((10,), 2.0, dtype=torch.float64)
    far = torch.full_like(hood.uniform, 1e6)

    def allowed(theirs, now):
        return (x.view(10, 10) for x in kin.allowed(state, hood, theirs, far, own, now * torch.ones_like(length)))

    state["rounds"].fill_(8)
    theirs, ours = allowed(far, 1)
    assert theirs[6, 2] == ours[6, 2] == pytest.approx(2 * float(length[2] / length[6]))
    assert theirs[6, 0] == theirs[0, 6] == ours[0, 6] == 1e6
    theirs, _ = allowed(far, 7)  # or as long as one's own message
    assert theirs[6, 2] == pytest.approx(7 * float(length[2] / length[6]))
    theirs, ours = allowed(torch.full_like(far, 3), 1e3)
    assert (theirs == 3).all()
    assert ours[6, 0] == 3  # beside who is far smaller one's own gradient is all that counts
    assert ours[0, 6] == 1e6
    state["rounds"].fill_(9)
    theirs, ours = allowed(far, 1)
    assert (theirs == 1e6).all()
    assert ours[6, 2] == 1e6
