"""Clients with few neighbours compare these with themselves."""

import math

import numpy as np
import pytest
import torch

from purifl.detection.discord import discord, remember
from purifl.topology import neighbourhood
from watching import GRAPHS, tracked, watch


def noisy(graph, rounds=12, begins=0):
    """Messages and gradients of tracking on a graph; client 4 sends noise, ten times as long, from a round on."""
    rng = np.random.default_rng(23)
    gradients = rng.normal(size=1000) + 0.3 * rng.normal(size=(rounds, 10, 1000))
    messages = tracked(GRAPHS[graph], gradients)
    messages[begins:, 4] = 10 * rng.normal(size=(rounds - begins, 1000))
    return messages, gradients


@pytest.mark.parametrize("graph", ["ring", "grid", "line", "star"])
def test_noise_is_discord_to_clients_with_few_neighbours_from_the_third_message_on(graph):
    """Client 4 sends noise of ten times the others' length; on the star it is a leaf, and its hub compares leaves."""
    messages, gradients = noisy(graph)
    hood, scores = watch(GRAPHS[graph], messages, gradients)
    to_it = (hood.cols == 4) & hood.to_others
    few = (hood.size <= 4)[hood.rows]
    assert (to_it & few).any() == (graph != "star")
    assert (scores[1][few] == 1).all()
    for each in scores[2:8]:
        assert (each[to_it & few] < 0.2).all()
        assert (each[~to_it & few] == 1).all()


def discords(messages, kept):
    """Discord on a ring, round by round, at the two edges to client 4, to which ``kept`` says in what rounds it is."""
    hood = neighbourhood(GRAPHS["ring"], list(range(10)), list(range(10)))
    state, to_it = remember(hood), (hood.cols == 4) & hood.to_others
    for round_, message in enumerate(torch.tensor(messages)):
        (distance,), (lengths,) = hood.geometry(message)
        found = discord(state, hood, distance, lengths, ~to_it | (round_ in kept))
        assert (found[hood.to_self] == 0).all()
        yield found[to_it]


@pytest.mark.parametrize(
    ("length", "cosine", "too_long"),
    [
        (2.1, 0, True),
        (1.9, 0, False),
        (3.7, 0.15, True),
        (3.5, 0.15, False),
        (99, 1, False),
        (1.1, -0.5, True),
        (0.9, -1, False),
    ],
)
def test_how_long_a_message_may_be_depends_on_how_far_it_is_along(length, cosine, too_long):
    """Twice as long as one's own where it has nothing to do with it, as long where it is against it."""
    messages = np.tile(np.eye(1, 5), (8, 10, 1))
    messages[:, 4] = length * np.array([cosine, math.sqrt(1 - cosine**2), 0, 0, 0])
    found = list(discords(messages, range(8)))
    assert all((each == 0).all() for each in found[:2])
    assert all(((each > 1) == too_long).all() for each in found[2:])


def test_a_first_message_that_is_long_and_along_is_a_large_clients():
    messages = np.tile(np.eye(1, 5), (8, 10, 1))
    messages[:, 4] = 9 * np.eye(2, 5)[1]
    messages[0, 4] += 2 * np.eye(1, 5)[0]
    assert all((each == 0).all() for each in discords(messages, range(8)))


def test_discord_is_asked_until_the_eighth_message_and_of_those_who_were_ever_cut_for_good():
    """Who has been cut is judged by what it sent since, and so may be heard again; noise that follows is found."""
    messages, _ = noisy("ring", rounds=20, begins=12)
    messages[:4, 4] *= -5
    never, once = list(discords(messages, range(20))), list(discords(messages, {*range(4), *range(12, 20)}))
    assert all((each > 1).all() for each in never[2:4] + once[2:4])
    assert all((each == 0).all() for each in never[8:])
    assert all((each < 0.1).all() for each in once[4:12])
    assert all((each > 1).all() for each in once[14:])


@pytest.mark.parametrize(("cosine", "asked"), [(0.9, True), (0.8, False)])
def test_who_began_alike_is_asked_for_good(cosine, asked):
    """Messages become a third as long, and client 4's are then against the others' for a while."""
    messages = np.tile(np.eye(1, 5), (30, 10, 1))
    messages[10:] /= 3
    messages[:, 4] *= 1.5
    messages[0, 4] = [cosine, math.sqrt(1 - cosine**2), 0, 0, 0]
    messages[12:24, 4] *= -1
    found = list(discords(messages, range(30)))
    assert all((each == 0).all() for each in found[:12] + found[24:])
    assert ((found[23] > 1) == asked).all()
    assert asked or all((each == 0).all() for each in found)


def test_recent_messages_count_for_more():
    """Noise no longer than the others' messages, after much that was along, over an edge that is cut."""
    messages, _ = noisy("ring", rounds=24, begins=12)
    messages[12:, 4] /= 9
    found = list(discords(messages, range(2)))
    assert all((each < 1).all() for each in found[2:14])
    assert all((each > 1).all() for each in found[21:])


@pytest.mark.parametrize("missed", [{0}, {0, 1, 2}, {1, 3}, set(range(10))])
def test_who_is_missed_has_said_nothing_and_is_asked_by_the_messages_it_sent(missed):
    """What was missed counts as the client's own message; the third that was not is the first to be asked."""
    messages, _ = noisy("ring", rounds=16)
    messages[:, 4] /= 3
    for round_ in missed:
        messages[round_, 4] = messages[round_, 3]
    found = [each[0].item() for each in discords(messages, range(16))]
    heard = [found[k] for k in range(16) if k not in missed]
    assert all(found[k] == 0 for k in missed)
    assert all((each > 1) == (3 <= k <= 8) for k, each in enumerate(heard, 1))


def test_a_large_client_that_has_been_cut_is_asked_as_well():
    messages = np.tile(np.eye(1, 5), (12, 10, 1))
    messages[:, 4] = 9 * np.eye(2, 5)[1]
    messages[0, 4] += 2 * np.eye(1, 5)[0]
    found = list(discords(messages, {*range(3), *range(5, 12)}))
    assert all((each > 1).all() for each in found[3:])


def test_noise_that_has_been_cut_stays_cut_however_short_it_becomes():
    messages, _ = noisy("ring", rounds=8)
    messages[3:, 4] /= 9
    kept, cut = list(discords(messages, range(8))), list(discords(messages, range(3)))
    assert all((each < 1).all() for each in kept[3:])
    assert all((each > 1).all() for each in cut[2:])
