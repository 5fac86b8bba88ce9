"""After the restart, the run is one without attackers."""

import networkx as nx
import pytest
import torch

from purifl.defenses import defenses
from purifl.defenses.restart import Restart
from purifl.detection.consistency import Consistency
from purifl.detection.none import NoDetection
from quadratics import Problem, federation, problem, steps, tracking_error


def benign_only(quad):
    return Problem([quad.clients[k] for k in quad.benign], quad.start, quad.benign)


def among_benign(fed):
    """Edges of all clients that join two benign ones."""
    benign = torch.tensor(fed.benign)
    return torch.isin(fed.everyone.rows, benign) & torch.isin(fed.everyone.cols, benign)


@pytest.mark.parametrize("seed", range(2))
def test_after_the_cut_the_run_is_upper_from_the_start(seed):
    """All attackers are cut in the fifth round; the trust that was learnt stays."""
    quad = problem(seed)
    fed = steps(federation(quad, defense=Restart(), detector=Consistency()), 5)
    assert torch.equal(fed.cut, fed.to_malicious)
    torch.testing.assert_close(fed.theta[fed.benign], quad.start.expand(8, -1), rtol=0, atol=0)
    torch.testing.assert_close(fed.gamma[fed.benign], fed.gradient[fed.benign], rtol=0, atol=0)

    upper = federation(benign_only(quad), defense=defenses.resolve("upper"), detector=Consistency())
    upper.trust.copy_(fed.trust[among_benign(fed)])
    for _ in range(40):
        steps(fed, 1), steps(upper, 1)
        torch.testing.assert_close(fed.theta[fed.benign], upper.theta, rtol=0, atol=1e-10)
        torch.testing.assert_close(fed.gamma[fed.benign], upper.gamma, rtol=0, atol=1e-10)
    assert torch.equal(fed.cut, fed.to_malicious)
    assert tracking_error(fed) < 1e-12
    assert quad.distance(steps(fed, 80)) < 1e-3


def test_one_clients_cut_restarts_everyone_once():
    quad = problem()
    fed = steps(federation(quad, nx.cycle_graph(10), defense=Restart(), detector=NoDetection()), 3)
    fed.trust[(fed.everyone.rows == 0) & (fed.everyone.cols == 9)] = 0
    steps(fed, 1)
    torch.testing.assert_close(fed.theta[fed.benign], quad.start.expand(8, -1), rtol=0, atol=0)
    assert int(fed.cut.sum()) == 1
    fed.trust[:] = 1 / 3
    steps(fed, 1)
    assert (fed.theta[fed.benign] != quad.start).any(1).all()
    assert int(fed.cut.sum()) == 1, "cuts are final"


def test_nobody_cut_is_plain_tracking():
    quad = problem(malicious=0)
    options = {"detector": Consistency(), "mixing": "metropolis"}
    plain = steps(federation(quad, defense=defenses.resolve("lower"), **options), 20)
    torch.testing.assert_close(steps(federation(quad, defense=Restart(), **options), 20).theta, plain.theta)


@pytest.mark.parametrize("saved_at", [4, 5, 6])
def test_a_run_resumed_around_the_restart_is_the_same(saved_at):
    quad = problem()
    whole, half, resumed = (federation(quad, defense=Restart()) for _ in range(3))
    steps(whole, 9), steps(half, saved_at)
    resumed.load_state_dict({key: tensor.clone() for key, tensor in half.state_dict().items()})
    assert torch.equal(steps(resumed, 9 - saved_at).theta, whole.theta)
