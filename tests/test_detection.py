"""Scores and trust against the formulas, row by row."""

import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl import waves
from purifl.beginnings import agreement_of
from purifl.defenses import Heard
from purifl.detection import Consistency, History, NoDetection, Persistence, Similarity, lower_trust
from purifl.discord import discord, remember
from purifl.neighbourhood import Neighbourhood
from purifl.topology import neighbourhood
from watching import everyone, first, least_trust, tracked, watch


def setting(n=6, d=4, seed=0, density=0.6):
    graph = nx.compose(nx.path_graph(n), nx.gnp_random_graph(n, density, seed=seed))
    hood = neighbourhood(graph, list(range(n)), list(range(n)))
    gamma = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return hood, gamma, list(zip(hood.rows.tolist(), hood.cols.tolist(), strict=True))


@given(seed=st.integers(0, 999), temperature=st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_consistency(seed, temperature):
    hood, gamma, edges = setting(seed=seed)
    scores = Consistency(temperature=temperature).scores({}, hood, gamma, everyone(hood), gamma)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        assert score == pytest.approx(math.exp(-np.linalg.norm(gamma[j] - gamma[i]) / temperature))


def test_similarity_is_the_positive_cosine_and_one_for_oneself():
    hood, gamma, edges = setting()
    gamma[2] = 0
    scores = Similarity().scores({}, hood, gamma, everyone(hood), gamma)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        both = gamma[i].norm() * gamma[j].norm()
        expected = 1 if i == j else 0 if both == 0 else max(0, (gamma[i] @ gamma[j] / both).item())
        assert score == pytest.approx(expected)


@given(seed=st.integers(0, 999), rounds=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_history_judges_all_rounds_but_the_first_by_the_median_neighbour(seed, rounds):
    hood, gamma, edges = setting(seed=seed)
    detector = History(sharpness=3.0)
    state = detector.begin(hood, first(hood, gamma))
    messages = torch.randn(rounds, *gamma.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for message in messages:
        scores = detector.scores(state, hood, message, everyone(hood), message)
    total = messages[1:].sum(0)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        others = sorted((total[k] - total[i]).norm().item() for r, k in edges if r == i != k)
        median = others[(len(others) - 1) // 2]
        ratio = (total[j] - total[i]).norm().item() / median if median else 1.0
        assert score == pytest.approx(1 if i == j else math.exp(-3 * max(0.0, ratio - 1)))


def test_history_has_no_length_scale():
    hood, gamma, _ = setting()
    found = []
    for scale in (1.0, 1e-6, 1e6):
        detector = History()
        state = detector.begin(hood, first(hood, gamma))
        detector.scores(state, hood, gamma, everyone(hood), gamma)
        found.append(detector.scores(state, hood, scale * gamma, everyone(hood), gamma))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_history_keeps_a_single_neighbour():
    hood, gamma, _ = setting(n=2)
    detector = History()
    state = detector.begin(hood, first(hood, gamma))
    for _ in range(3):
        scores = detector.scores(state, hood, gamma, everyone(hood), gamma)
    assert (scores == 1).all()


# ---------------------------------------------------------------- persistence


def discord_by_hand(theirs, ours, kept):
    """Of messages (rounds, d) in a row of few."""

    def too_long(theirs, ours):
        cosine = (theirs * ours).sum() / np.linalg.norm(theirs) / np.linalg.norm(ours)
        multiple = max(1, 2 + 10 * cosine) if kept else max(1e-100, 10 * cosine)
        return (np.linalg.norm(theirs) / np.linalg.norm(ours) / multiple) ** 2 * (1 - max(0, cosine) ** 2)

    lengths = np.linalg.norm(theirs[0]), np.linalg.norm(ours[0])
    cosine = theirs[0] @ ours[0] / lengths[0] / lengths[1]
    large = lengths[0] > 4 * lengths[1] and cosine >= 0.1
    if len(ours) < 3 or (kept and cosine < 0.85 and (large or len(ours) > 8)):
        return 0
    fading = math.sqrt(1 if kept and cosine < 0.85 else 0.75) ** np.arange(len(ours))[::-1, None]
    return min(too_long(fading * theirs, fading * ours), too_long(theirs[-1], ours[-1]))


def median(values, parts=2):
    values = sorted(values)
    return values[(len(values) - 1) // parts] if values else math.nan


def agreement_by_hand(first, j, around):
    """Of first messages (n, d)."""
    cosines = sorted(
        first[j] @ first[k] / np.linalg.norm(first[j]) / np.linalg.norm(first[k]) for k in around if k != j
    )
    return cosines[len(cosines) // 2]


def alike_by_hand(first, i, j, around):
    """alike_ij, and what j is, large, odd or neither, by first messages (n, d)."""
    length, agreement = np.linalg.norm(first, axis=1), agreement_by_hand(first, j, around)
    usual = median(length[k] for k in around)
    long = length[j] > 4 * usual
    if agreement < -0.1 or (long and agreement < 0.1):
        return 1, "odd"
    return (0, "large") if long else (min(1, (usual + length[i]) / (length[j] + length[i])), "")


def apart_by_hand(distance, first, i, j, around, usual):
    """By distances and first messages (n, d), compared with those ``usual``; of who is odd, for their size."""
    alike, kind = alike_by_hand(first, i, j, around)
    for_size = median(distance[i, k] * alike_by_hand(first, i, k, around)[0] for k in usual)
    compared = for_size if kind == "odd" and for_size > 0 else median(distance[i, k] for k in usual)
    return alike * distance[i, j] / compared


def akin_by_hand(one, other):
    """By first messages (d,)."""
    shorter, longer = sorted(np.linalg.norm(each) for each in (one, other))
    return one @ other >= 0.85 * shorter * longer and longer <= 4 * shorter


def beyond_kin_by_hand(messages, gradient, j, i, heard, neighbours, kept):
    """What j claims beyond its kin to i, of messages (rounds, n, d), with those ``heard`` over level edges."""
    alike = nx.Graph([(k, other) for k in heard for other in heard if akin_by_hand(messages[0, k], messages[0, other])])
    group = nx.node_connected_component(alike, j) if j in alike else ()
    difference = (messages - messages[:, i : i + 1]).sum(0)
    claims = {k: np.linalg.norm(difference[k] + gradient) / np.linalg.norm(messages[0, k]) for k in group}
    usual = sorted(claims[k] for k in group if kept[i, k])
    if len(group) <= 4 or len(usual) < 3 or (i not in group and 2 * len(group) <= neighbours):
        return 0
    return claims[j] / max(usual[len(usual) // 2], claims.get(i, 0))


def persistence_by_hand(hood, edges, messages, kept, own, sharpness, trusted):
    """The class's equations, edge by edge, for clients with the gradients ``own`` (rounds, n, d)."""
    size, lengths, own_lengths = np.bincount(hood.rows), np.linalg.norm(messages, axis=2), np.linalg.norm(own, axis=2)
    distance = {(i, j): np.linalg.norm((messages[:, j] - messages[:, i]).sum(0)) for i, j in edges}

    def suspicion(i, j):
        around = [k for r, k in edges if r == i]
        push = push_in(len(messages), i, j, around)
        push = min(push, 1) if wave(i, j, around) else push
        heard = [k for k in around if k != i and kept[i, k]]
        usual = [k for k in heard if k in trusted] or heard
        if size[i] <= 4 or not usual:
            discord = discord_by_hand(messages[:, j], messages[:, i], kept[i, j]) if size[i] <= 4 else 0
            return max(push, min(1, 4 * push) * discord)
        alike, _ = alike_by_hand(messages[0], i, j, around)
        apart = apart_by_hand(distance, messages[0], i, j, around, usual)
        heard = [k for k in around if level(i, k)]
        apart = max(apart, beyond_kin_by_hand(messages, own[-1, i], j, i, heard, size[i] - 1, kept))
        lasting = [persistence(i, k, around) for k in usual]
        ratio = persistence(i, j, around) * median(lasting, parts=4) / median(lasting) ** 2
        unusual = min(2, max(1, ratio)) if kept[i, j] and alike else 1
        return max(push, unusual * min(1, push), apart * min(1, (2 if slow(i, j) else 4) * push))

    def slow(i, j):
        return min(size[i], size[j]) <= 4 or min(size[i], size[j]) < len(size)

    def level(i, j):
        return size[i] == size[j] > 4

    def mixed(i, j, around):
        return sum(kept[i, k] for k in around) / size[i] if kept[i, j] else 1

    def push_in(rounds, i, j, around):
        openness = (min(size[i], size[j]) - 1) / max(size[i], size[j])
        mean = np.mean(lengths[:rounds] ** 4, axis=0) ** 0.25
        ours = mean[i] if size[i] > 2 else min(mean[i], max(lengths[0, i], mean[j]))
        large = size[i] > 4 and alike_by_hand(messages[0], i, j, around)[1] == "large"
        theirs, first, gradient = mean[j], lengths[0], own_lengths[rounds - 1, i]
        kin = akin_by_hand(messages[0, i], messages[0, j]) and rounds <= 8
        if level(i, j) and kin:
            theirs = min(theirs, first[j] / first[i] * max(gradient, lengths[rounds - 1, i]))
        if level(i, j) and (kin or first[i] > 4 * first[j]):
            ours = min(ours, theirs)
        ours = max(ours, min(gradient, first[i]), large * first[j] / rounds**0.25)
        more = mixed(i, j, around) * beyond_less(rounds, i, j)
        return openness * more**3 / squares(rounds, i, j) / (ours + theirs)

    def beyond_less(rounds, i, j):
        theirs, ours = messages[:rounds, j].sum(0), messages[:rounds, i].sum(0)
        same = theirs @ ours > np.linalg.norm(theirs) * np.linalg.norm(ours) / 2
        catches_up = rounds * (1 - theirs @ ours / (ours @ ours)) <= 2 * max(size[i], size[j])
        behind = slow(i, j) and kept[i, j] and same and catches_up
        return np.linalg.norm(theirs - (min(1, theirs @ ours / (ours @ ours)) if behind else 1) * ours)

    def wave(i, j, around):
        growth = (lengths[:, i].max() + lengths[:, j].max()) / (lengths[0, i] + lengths[0, j])
        lasting = (mixed(i, j, around) * beyond_less(len(messages), i, j)) ** 2 / squares(len(messages), i, j)
        dots, bounds = np.sum(messages[:, j] * own[:, i], axis=1), lengths[:, j] * own_lengths[:, i]
        pushing = [t for t in range(len(messages)) if push_in(t + 1, i, j, around) > 1]
        cosine, average = dots[-1] / bounds[-1], dots[pushing].sum() / max(bounds[pushing].sum(), 1e-9)
        along = average > 0.1 and (cosine > 0.1 or average > 0.3) and own_lengths[-1, i] <= 3 * lengths[0, i]
        return slow(i, j) and kept[i, j] and along and lasting <= 1.5 * min(growth, 3) ** 1.5

    def squares(rounds, i, j):
        return ((messages[:rounds, j] - messages[:rounds, i]) ** 2).sum()

    def persistence(i, j, around):
        return (mixed(i, j, around) * distance[i, j]) ** 2 / squares(len(messages), i, j)

    found = {(i, j): 0 if i == j or j in trusted else suspicion(i, j) for i, j in edges}
    farthest = {i: max([distance[e] for e in edges if e[0] == i and kept[e] and found[e] > 1] + [0]) for i, _ in edges}
    return [
        1
        if i == j or (kept[i, j] and distance[i, j] < farthest[i] / 2)
        else math.exp(-sharpness * max(0, found[i, j] - 1))
        for i, j in edges
    ]


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


GRAPHS = {
    "complete": nx.complete_graph(10), "ring": nx.cycle_graph(10), "star": nx.star_graph(9), "line": nx.path_graph(10),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(2, 5)),
}  # fmt: skip


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
    alone = Neighbourhood.of([range(m)], [0], range(m), len(clients))
    gamma, present = torch.ones(m, 3), torch.ones(m, dtype=torch.bool)
    state = Persistence().begin(alone, Heard(gamma, gamma, torch.full((m,), 1 / m), present))
    assert (state["slow"] == (alone.to_others & slow)).all()


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
    state, to_it = remember(hood, enough=4), (hood.cols == 4) & hood.to_others
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


@pytest.mark.parametrize("claim", [0.5, 0.1, 1e-6])
def test_what_neighbours_claim_does_not_change_what_a_checkpoint_looks_like(claim):
    """A peer that restarts begins without a word from them, and then loads what it had."""
    hood = Neighbourhood.of([list(range(10))], [0], list(range(10)))
    gamma, present = torch.ones(10, 5), torch.ones(10, dtype=torch.bool)
    told = Persistence().begin(hood, Heard(gamma, gamma, torch.full((10,), claim), present))
    untold = Persistence().begin(hood, Heard(gamma, gamma, hood.uniform.float(), present))
    assert {k: (v.shape, v.dtype) for k, v in told.items()} == {k: (v.shape, v.dtype) for k, v in untold.items()}


def test_who_is_missed_is_not_along():
    """It counts as having sent the client's own message, which is along with its gradient whoever is missed."""
    hood = Neighbourhood.of([[0, 1, 2]], [0], [0, 1, 2])
    detector, way = Persistence(), torch.eye(2, 50, dtype=torch.float64)
    honest, own = 0.1 * way[0].repeat(3, 1), 0.1 * way[:1]
    state = detector.begin(hood, Heard(honest, honest, torch.full((3,), 1 / 3), torch.ones(3, dtype=torch.bool)))
    for t in range(36):
        pushes = t % 6 == 5
        message = honest + pushes * torch.stack([0 * way[1], way[1], 0 * way[1]])
        scores = detector.scores(state, hood, message, everyone(hood), own)
        assert t < 6 or not pushes or scores[1] < 0.01


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_message_that_is_no_number_is_no_wave(broken):
    messages = np.random.default_rng(17).normal(1, 0.1, size=(6, 10, 50))
    gradients = messages.copy()
    messages[3, 4, 0] = broken
    hood, scores = watch(nx.cycle_graph(10), messages, gradients)
    to_it = (hood.cols == 4) & hood.to_others
    assert all((each[to_it].nan_to_num(0) == 0).all() for each in scores[3:])


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


def test_a_client_with_far_more_data_is_far_from_everyone_and_not_suspected():
    rng = np.random.default_rng(2)
    sizes = np.array([1, 1, 1, 2, 1, 50, 1, 3, 1, 1.0])[None, :, None]
    gradients = sizes * (rng.normal(size=50) + 0.2 * rng.normal(size=(20, 10, 50)))
    graph = nx.complete_graph(10)
    hood, scores = watch(graph, tracked(graph, gradients), gradients)
    assert all((each[hood.cols == 5] > 0.5).all() for each in scores)


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


@pytest.mark.parametrize(("claimed", "counts"), [(1.0, 2), (5.0, 2), (1 / 7, 7), (0.0, 1e9), (-1.0, 1e9)])
def test_however_few_neighbours_one_claims_to_have_it_can_be_suspected(claimed, counts):
    """Its word is the trust in its first message, 1/m_j; with m_j = 1 its push would always be 0."""
    hood, gamma, _ = setting(density=1)
    state = Persistence().begin(hood, Heard(gamma, gamma, torch.full_like(hood.uniform, claimed), everyone(hood)))
    expected = (min(6, counts) - 1) / max(6, counts)
    assert state["openness"].tolist() == pytest.approx([expected] * len(hood.rows))


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


def test_no_detection_has_no_scores():
    assert NoDetection().scores({}, *setting()[:2], None, None) is None


@given(seed=st.integers(0, 999), patient=st.booleans())
@settings(max_examples=30, deadline=None)
def test_trust_is_algorithm_2_over_the_edges_kept(seed, patient):
    hood, _, edges = setting(seed=seed)
    rng = np.random.default_rng(seed)
    trust, scores, n = (rng.uniform(0.01, 1, len(edges)) for _ in range(3))
    kept = np.array([i == j or rng.random() < 0.7 for i, j in edges])
    n = np.ones(len(edges)) if patient else n
    found = lower_trust(
        hood, torch.tensor(trust), torch.tensor(scores), torch.tensor(kept), None if patient else torch.tensor(n)
    )
    for e, (i, _) in enumerate(edges):
        row = [k for k, (r, _) in enumerate(edges) if r == i and kept[k]]
        share = {k: scores[k] / sum(scores[m] for m in row) for k in row}
        new = {k: (n[k] * trust[k] + share[k]) / (n[k] + 1) for k in row}
        assert found[e].item() == pytest.approx(new[e] / sum(new.values()) if e in row else 0)


def test_a_neighbour_without_any_score_is_under_the_threshold_after_four_rounds():
    """w ← ½ w: 2⁻⁴ < 0.1."""
    hood, _, _ = setting(n=10, density=1.0)
    trust, scores = torch.full((100,), 0.1, dtype=torch.float64), torch.ones(100, dtype=torch.float64)
    scores[hood.cols == 3] = 0
    scores[hood.to_self] = 1
    below = []
    for _ in range(5):
        trust = lower_trust(hood, trust, scores, torch.ones(100, dtype=torch.bool))
        below.append(bool((trust[(hood.cols == 3) & ~hood.to_self] <= 0.01).all()))
    assert below == [False, False, False, True, True]
