"""Draws lie in the published intervals, and the Krum form is what a slow Krum selects."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl import Experiment
from purifl.attacks.fang import Fang
from purifl.errors import ConfigError
from purifl.simulation import Simulation
from quadratics import federation
from views import honest_problem, messages, view


def interval(benign, knowledge):
    """The ends of the interval for one coordinate, case by case from the paper."""
    mean, std, low, high = np.mean(benign), np.std(benign), min(benign), max(benign)
    if mean == 0:
        return 0, 0
    if knowledge == "partial":
        return (mean - 4 * std, mean - 3 * std) if mean > 0 else (mean + 3 * std, mean + 4 * std)
    if mean > 0:
        return (low / 2, low) if low > 0 else (2 * low, low)
    return (high, 2 * high) if high > 0 else (high, high / 2)


CASES = torch.tensor(
    [
        [1.0, 2.0, 3.0],  # s > 0, a > 0
        [-1.0, 2.0, 3.0],  # s > 0, a < 0
        [0.0, 2.0, 3.0],  # s > 0, a = 0
        [-3.0, -2.0, 1.0],  # s < 0, c > 0
        [-3.0, -2.0, -1.0],  # s < 0, c < 0
        [-3.0, -2.0, 0.0],  # s < 0, c = 0
        [-1.0, 0.0, 1.0],  # s = 0
        [2.0, 2.0, 2.0],  # no spread
        [0.0, 0.0, 0.0],
    ],
    dtype=torch.float64,
).T


@pytest.mark.parametrize("knowledge", ["full", "partial"])
@given(seed=st.integers(0, 999), f=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_draws_lie_in_the_interval_of_their_case(knowledge, seed, f):
    rng = np.random.default_rng(seed)
    benign = torch.cat([CASES, torch.tensor(rng.normal(rng.normal(size=20), size=(3, 20)))], 1)
    gamma = torch.cat([benign, torch.zeros(f, benign.shape[1])])
    crafted = Fang(knowledge=knowledge).craft(view(gamma, list(range(3, 3 + f)), seed=seed))
    assert crafted.shape == (f, 29)
    for k in range(29):
        low, high = interval(benign[:, k].tolist(), knowledge)
        assert (crafted[:, k] >= low - 1e-12).all()
        assert (crafted[:, k] <= high + 1e-12).all()


def test_draws_fill_the_interval_and_differ_between_attackers():
    gamma = torch.ones(9, 2000, dtype=torch.float64)
    gamma[0] = 2.0
    crafted = Fang(knowledge="full").craft(view(gamma, [7, 8]))
    assert crafted.min() == pytest.approx(0.5, abs=0.01)
    assert crafted.max() == pytest.approx(1.0, abs=0.01)
    assert not torch.equal(crafted[0], crafted[1])


def test_partial_knowledge_is_the_default_and_uses_neighbours_alone():
    gamma = messages(6)
    attack = Fang()
    assert attack.knowledge == "partial"
    graph = nx.path_graph(6)
    known = Fang().craft(view(gamma, [0], graph, partial=True))
    torch.testing.assert_close(known, gamma[1:2])  # one neighbour, no spread


def krum(vectors, f):
    """Krum as printed: the least sum of squared distances to the m − f − 2 nearest others."""
    m = len(vectors)
    scores = []
    for i in range(m):
        others = sorted(float(np.sum((vectors[i] - vectors[j]) ** 2)) for j in range(m) if j != i)
        scores.append(sum(others[: m - f - 2]))
    return scores


def upper_bound(benign, f):
    k, d = benign.shape
    sums = []
    for i in range(k):
        others = sorted(float(np.linalg.norm(benign[i] - benign[j])) for j in range(k) if j != i)
        sums.append(sum(others[: k - 2]))
    return min(sums) / (max(k - f - 1, 1) * d**0.5) + max(float(np.linalg.norm(v)) for v in benign) / d**0.5


@given(seed=st.integers(0, 999), k=st.integers(3, 8), f=st.integers(1, 4), centre=st.floats(0, 3))
@settings(max_examples=40, deadline=None)
def test_krum_form_is_the_largest_halving_that_krum_selects(seed, k, f, centre):
    rng = np.random.default_rng(seed)
    benign = rng.normal(size=(k, 12)) + centre
    gamma = torch.tensor(np.concatenate([benign, np.zeros((f, 12))]))
    crafted = Fang(form="krum").craft(view(gamma, list(range(k, k + f)), seed=seed)).numpy()
    sign = np.sign(benign.mean(0))
    eta = float(-(crafted[0] * sign).mean())
    np.testing.assert_allclose(crafted[0], -eta * sign)

    halvings = np.log2(upper_bound(benign, f) / eta)
    assert halvings == pytest.approx(round(halvings), abs=1e-6)

    def chosen(eta):
        scores = krum([*benign, *[-eta * sign] * f], f)
        return min(scores[k:]) < min(scores[:k])

    assert chosen(eta) or eta < 1e-5
    assert round(halvings) == 0 or not chosen(2 * eta)
    offsets = np.linalg.norm(crafted - crafted[0], axis=1)
    assert (offsets <= 0.01 + 1e-12).all()
    assert (offsets[1:] > 0).all()


def test_krum_form_of_messages_that_agree_or_vanish():
    same = torch.ones(5, 4)
    crafted = Fang(form="krum").craft(view(same, [4]))
    assert (crafted <= 0).all()
    assert crafted.abs().max() < 1e-5  # Krum would see anything that is not the common message
    assert torch.equal(Fang(form="krum").craft(view(torch.zeros(5, 4), [4])), torch.zeros(1, 4))
    huge = Fang(form="krum").craft(view(torch.full((5, 4), 1e30), [4]))
    assert huge.isfinite().all()


def test_too_few_messages_for_krum_are_refused_before_training():
    with pytest.raises(ConfigError, match=r"attack\.form.*know of 2; use 'trim'"):
        Simulation(Experiment(clients=4, attack={"name": "fang", "form": "krum", "malicious_ratio": 0.5}))


def test_attackers_who_see_too_few_for_krum_behave_honestly():
    quad = honest_problem(malicious=(3,))
    blinkered = federation(quad, nx.cycle_graph(10), attack=Fang(form="krum"))
    knowing = federation(quad, nx.cycle_graph(10), attack=Fang(form="krum", knowledge="full"))
    assert torch.equal(blinkered.gamma[3], blinkered.gradient[3])
    assert not torch.equal(knowing.gamma[3], knowing.gradient[3])
