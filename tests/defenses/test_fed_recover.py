"""The Hessian's estimate against dense BFGS, the replay against what it should reproduce."""

import networkx as nx
import pytest
import torch
from torch import Tensor

from purifl import Experiment, Federation, Training
from purifl.defenses import Heard, defenses
from purifl.defenses.fed_recover import FedRecover, hessian_product
from purifl.detection.consistency import Consistency
from purifl.detection.none import NoDetection
from purifl.errors import ConfigError, RunError
from purifl.topology import neighbourhood
from quadratics import Point, federation, problem, steps, tracking_error


def curved(d=6, seed=0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(d, d, generator=rng, dtype=torch.float64)
    return root @ root.T + torch.eye(d, dtype=torch.float64)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_bfgs(s, y):
    """The textbook update, pair by pair, from the newest pair's σI."""
    matrix = torch.eye(s.shape[1], dtype=s.dtype) * (s[-1] @ y[-1]) / (s[-1] @ s[-1])
    for a, b in zip(s, y, strict=True):
        step = matrix @ a
        matrix = matrix - torch.outer(step, step) / (a @ step) + torch.outer(b, b) / (a @ b)
    return matrix


# ---------------------------------------------------------------- H̃ v


@pytest.mark.parametrize("pairs", [1, 2, 3, 5])
def test_the_product_is_that_of_dense_bfgs(pairs):
    s, v = 1e-3 * normal(4, pairs, 6), normal(4, 6, seed=2)
    y = torch.stack([each @ curved(seed=k) for k, each in enumerate(s)])
    expected = torch.stack([dense_bfgs(a, b) @ w for a, b, w in zip(s, y, v, strict=True)])
    torch.testing.assert_close(hessian_product(s, y, v), expected)


def test_it_maps_the_newest_step_to_the_newest_change():
    s = normal(3, 2, 6)
    y = s @ curved()
    torch.testing.assert_close(hessian_product(s, y, s[:, -1]), y[:, -1])


def test_it_is_the_exact_hessian_after_steps_in_all_conjugate_directions():
    hessian = curved()
    directions = torch.linalg.eigh(hessian).eigenvectors.T[None]
    v = normal(1, 6, seed=3)
    torch.testing.assert_close(hessian_product(directions, directions @ hessian, v), v @ hessian)


def test_pairs_without_clear_curvature_are_left_out():
    s, v = normal(1, 4, 6), normal(1, 6, seed=4)
    y = s @ curved()
    y[0, 1] *= -1
    s[0, 3] = 0
    good = [0, 2]
    torch.testing.assert_close(hessian_product(s, y, v), hessian_product(s[:, good], y[:, good], v))
    torch.testing.assert_close(hessian_product(s, -y * 0, v), 0 * v)
    torch.testing.assert_close(hessian_product(s[:, :0], y[:, :0], v), 0 * v)


def test_parallel_steps_do_no_harm():
    s = normal(1, 1, 6).repeat(1, 3, 1).float()
    y = s @ curved().float()
    torch.testing.assert_close(hessian_product(s, y, s[:, 0]), y[:, 0], rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- the replay


def replayed(fed, row=0):
    edges = ((fed.hood.rows == row) & ~fed.cut).nonzero().flatten()
    return fed.defense.replay(fed.rows.defense_state, fed.hood, edges, fed.step_size)


def test_a_replay_with_nobody_cut_is_what_happened():
    """Where everybody hears everybody, all models are the same and θ moves by the mean of all γ."""
    fed = federation(problem(malicious=0), defense=FedRecover(), detector=NoDetection())
    for _ in range(8):
        steps(fed, 1)
        torch.testing.assert_close(replayed(fed), fed.theta[0], rtol=0, atol=1e-12)


def with_plain_gradients(quad, clients, name):
    return Federation(
        lambda: Point(quad.start),
        clients,
        nx.complete_graph(len(clients)),
        training=Training(algorithm="dsgd", gradient="batch", batch_size=1, step_size=0.1),
        loss=lambda output, _: output.mean(),
        defense=defenses.resolve(name),
        detector=Consistency(),
        mixing="metropolis",
    )


@pytest.mark.parametrize("seed", range(3))
def test_from_plain_gradients_it_recovers_the_model_without_attackers(seed):
    """Within a twentieth of what dropping them leaves, in the round of the cut."""
    quad = problem(seed)
    honest = steps(with_plain_gradients(quad, quad.clients[:8], "upper"), 5).theta.mean(0)
    recovered, dropped = (
        steps(with_plain_gradients(quad, quad.clients, name), 5).theta[:8].mean(0) for name in ("fed-recover", "lower")
    )
    assert (recovered - honest).norm() < (dropped - honest).norm() / 20


@pytest.mark.parametrize("seed", range(2))
def test_after_a_cut_it_ends_nearer_to_the_benign_optimum_than_dropping(seed):
    quad, options = problem(seed), {"detector": Consistency(), "mixing": "metropolis"}
    fed = steps(federation(quad, defense=FedRecover(horizon=120), **options), 120)
    dropped = steps(federation(quad, defense=defenses.resolve("lower"), **options), 120)
    assert torch.equal(fed.cut, fed.to_malicious)
    assert tracking_error(fed) < 1e-12
    assert quad.distance(fed) < 1e-3
    assert quad.distance(dropped) > 1


def test_only_who_cuts_replays():
    fed = steps(federation(problem(), nx.cycle_graph(10), defense=FedRecover(), detector=NoDetection()), 3)
    plain = steps(federation(problem(), nx.cycle_graph(10), defense=defenses.resolve("lower")), 4)
    fed.trust[(fed.everyone.rows == 0) & (fed.everyone.cols == 9)] = 0
    steps(fed, 1)
    assert torch.equal(fed.theta[1:8], plain.theta[1:8])
    torch.testing.assert_close(fed.theta[0], replayed(fed))
    torch.testing.assert_close(fed.gamma[0], fed.gradient[0], rtol=0, atol=0)


# ---------------------------------------------------------------- guards


def two_clients(defense, messages):
    """A log of ``messages``, (T, 2, d) θ and γ, and the edges of client 0."""
    hood = neighbourhood(nx.path_graph(2), [0, 1], [0, 1])
    trust, edges = torch.full((4,), 0.5), torch.tensor([0, 1])
    state = None
    for theta, gamma, present in messages:
        heard = Heard(theta, gamma, trust, torch.tensor([True, present, True, True]))
        state = state or defense.begin(hood, heard)
        defense.cut(state, hood, trust, heard)
    return defense.replay(state, hood, edges, 0.1)


def test_an_estimate_stays_within_what_was_ever_sent():
    """Steps of a thousandth with changes of 1 make a Hessian of a thousand, 5 away from θ̂."""
    steep = [(torch.tensor([[0.0], [5 + 1e-3 * t]]), torch.tensor([[0.0], [float(t)]]), True) for t in range(3)]
    found = two_clients(FedRecover(), steep)
    assert found.abs() <= 0.1 * 2 * 3 / 2


def test_a_message_that_did_not_come_is_left_out():
    silent = [(torch.zeros(2, 1), torch.tensor([[1.0], [3.0 * (t != 1)]]), t != 1) for t in range(3)]
    torch.testing.assert_close(two_clients(FedRecover(), silent), torch.tensor([-0.1 * (2 + 1 + 2)]))


def test_a_message_that_did_not_come_says_nothing_about_curvature():
    """From (θ, γ) = (1, 1) to none, which is logged as (0, 0), and back."""
    gap = [(torch.tensor([[0.8], [float(t != 1)]]), torch.tensor([[0.0], [float(t != 1)]]), t != 1) for t in range(3)]
    torch.testing.assert_close(two_clients(FedRecover(buffer=1), gap), torch.tensor([0.8 - 0.1 * (0.5 + 0 + 0.5)]))


def test_a_full_log_says_what_to_set():
    fed = steps(federation(problem(), defense=FedRecover(horizon=3)), 3)
    with pytest.raises(RunError, match=r"defense\.horizon"):
        fed.step()


@pytest.mark.parametrize("saved_at", [4, 5, 6])
def test_a_run_resumed_around_the_replay_is_the_same(saved_at):
    quad = problem()
    whole, half, resumed = (federation(quad, defense=FedRecover(horizon=9)) for _ in range(3))
    steps(whole, 9), steps(half, saved_at)
    resumed.load_state_dict({key: tensor.clone() for key, tensor in half.state_dict().items()})
    assert torch.equal(steps(resumed, 9 - saved_at).theta, whole.theta)


def test_a_run_longer_than_the_log_is_refused_before_it_starts():
    with pytest.raises(ConfigError, match=r"defense.horizon: 50 .* all 51 rounds"):
        Experiment(defense={"name": "fed-recover", "horizon": 50}, rounds=51)
