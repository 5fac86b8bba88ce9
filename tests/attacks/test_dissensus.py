import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.attacks.dissensus import Dissensus
from purifl.defenses.bounds import Lower
from quadratics import federation, steps
from views import benign_spread, honest_problem, messages, view


@given(seed=st.integers(0, 999), f=st.integers(1, 3), strength=st.floats(0.1, 5))
@settings(max_examples=30, deadline=None)
def test_each_victim_is_pushed_from_its_benign_neighbours(seed, f, strength):
    n, rng = 8, torch.Generator().manual_seed(seed)
    graph = nx.compose(nx.path_graph(n), nx.gnp_random_graph(n, 0.4, seed=seed))
    gamma, malicious = messages(n, seed=seed), list(range(0, 2 * f, 2))
    blank = view(gamma, malicious, graph, private=True)
    trust = torch.rand(len(blank.trust), generator=rng, dtype=torch.float64)
    cut = (torch.rand(len(trust), generator=rng) < 0.3) & ~blank.hood.to_self
    crafted = Dissensus(strength=strength).craft(view(gamma, malicious, graph, private=True, trust=trust, cut=cut))

    hood, benign = blank.hood, [k for k in range(n) if k not in malicious]
    weight = {
        (benign[i], j): 0.0 if c else w
        for i, j, w, c in zip(hood.rows.tolist(), hood.senders.tolist(), trust.tolist(), cut.tolist(), strict=True)
    }
    victim = {int(j): benign[int(i)] for i, j in zip(hood.rows, hood.cols, strict=True)}
    for message, column in zip(crafted, blank.columns.tolist(), strict=True):
        i = victim[column]
        bad = sum(weight[i, j] for j in malicious if (i, j) in weight)
        push = sum((weight[i, j] * (gamma[j] - gamma[i]) for j in benign if (i, j) in weight), torch.zeros(6))
        expected = gamma[i] - strength * push / bad if bad else gamma[i]
        torch.testing.assert_close(message, expected.double())


def test_strength_one_cancels_the_benign_pull():
    gamma = messages(6)
    seen = view(gamma, [4, 5], private=True)
    heard = seen.gamma.index_copy(0, seen.columns, Dissensus(strength=1.0).craft(seen))
    torch.testing.assert_close(seen.hood.combine(seen.trust, heard), gamma[:4])


def test_benign_clients_drift_apart_on_a_ring():
    quad, ring = honest_problem(malicious=(3, 7)), nx.cycle_graph(10)
    runs = {
        name: steps(federation(quad, ring, defense=Lower(), attack=attack), 25)
        for name, attack in {"none": Dissensus(malicious_level=0.0), "some": Dissensus()}.items()
    }
    spread = {name: benign_spread(fed.theta[fed.benign]) for name, fed in runs.items()}
    assert spread["some"] > 3 * spread["none"]


def test_partial_knowledge_leaves_out_whom_no_attacker_hears():
    gamma, graph = messages(4), nx.Graph([(0, 1), (1, 2), (1, 3), (0, 2)])  # 0 is malicious; 3 talks to 1 alone
    seen = view(gamma, [0], graph, private=True, partial=True)
    known = Dissensus(strength=1.0, knowledge="partial").craft(seen)
    torch.testing.assert_close(known[0], gamma[1] - (gamma[2] - gamma[1]))
    every = Dissensus(strength=1.0).craft(seen)
    torch.testing.assert_close(every[0], gamma[1] - (gamma[2] - gamma[1]) - (gamma[3] - gamma[1]))
    torch.testing.assert_close(known[1], every[1])


def test_a_client_with_malicious_neighbours_only_is_told_its_own():
    gamma = messages(3)
    crafted = Dissensus().craft(view(gamma, [0, 2], nx.path_graph(3), private=True))
    torch.testing.assert_close(crafted, gamma[[1, 1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_malicious_weight_at_all(dtype):
    gamma = messages(4, dtype=dtype)
    seen = view(gamma, [3], private=True)
    cut = torch.isin(seen.hood.cols, seen.columns)
    assert torch.equal(Dissensus().craft(view(gamma, [3], private=True, cut=cut)), gamma[:3])
