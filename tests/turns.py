"""Rounds to try a rule on: ragged random graphs, with ties and extremes, and what holds for every rule."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from purifl.defenses import Heard, Turn, defenses
from purifl.detection import detectors
from purifl.detection.none import NoDetection
from purifl.errors import ConfigError
from purifl.experiment import Experiment
from purifl.simulation import Simulation
from purifl.topology import mixing_weights, neighbourhood, topologies
from quadratics import federation, problem, steps

HUGE = 2.0**100  # about 1e30, and a power of two: what is exact stays exact
TOPOLOGIES = ["complete", "line", "ring", "star", "grid"]
DETECTORS = list(detectors)


def turn_of(graph, gamma, *, theta=None, rows=None, kept=None, losses=None, round_=0, step=0.5):
    """A round on ``graph`` in which everybody sends ``gamma``, and Metropolis weights of full trust."""
    n = graph.number_of_nodes()
    hood = neighbourhood(graph, list(range(n)), list(range(n)) if rows is None else rows)
    gamma = torch.as_tensor(gamma)
    theta = torch.zeros_like(gamma) if theta is None else torch.as_tensor(theta)
    kept = torch.ones_like(hood.to_self) if kept is None else kept | hood.to_self
    trust = 1 / hood.size.to(gamma.dtype)[hood.rows]
    offered = torch.tensor([1 / (graph.degree(int(j)) + 1) for j in hood.cols], dtype=gamma.dtype)
    heard = Heard(theta, gamma, offered, kept)
    weights = mixing_weights("metropolis", hood, trust, offered, kept)
    table = torch.zeros(len(hood.rows), dtype=gamma.dtype) if losses is None else losses
    return Turn(round_, hood, heard, ~kept, kept, weights, step, lambda _: table)


def _vectors(rng, kind, n, d):
    """Small integers, so that there are ties and sums are exact; some of them huge; or arbitrary numbers."""
    if kind == "arbitrary":
        return rng.normal(size=(n, d)) * rng.choice([1e-3, 1, 1e3], size=(n, 1))
    whole = rng.integers(-3, 4, size=(n, d)).astype(float)
    return whole * rng.choice([1, HUGE], size=(n, 1), p=[0.7, 0.3]) if kind == "huge" else whole


@st.composite
def turns(draw, smallest=1, largest=9, densities=(0.0, 0.3, 0.7, 1.0)):
    """A random round: some rows of a random graph, some edges not kept, float32 or float64."""
    n, seed = draw(st.integers(smallest, largest)), draw(st.integers(0, 99_999))
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, draw(st.sampled_from(densities)), seed=seed)
    kinds, d = st.sampled_from(["whole", "huge", "arbitrary"]), draw(st.integers(1, 4))
    gamma, theta = (_vectors(rng, draw(kinds), n, d) for _ in range(2))
    rows = sorted(rng.choice(n, size=rng.integers(1, n + 1), replace=False).tolist())
    edges = sum(graph.degree(i) + 1 for i in rows)
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return turn_of(
        graph,
        torch.tensor(gamma, dtype=dtype),
        theta=torch.tensor(theta, dtype=dtype),
        rows=rows,
        kept=torch.tensor(rng.random(edges) < draw(st.sampled_from([0.5, 0.9, 1.0]))),
        losses=torch.tensor(rng.choice([0.0, 1, 2, 3, np.inf, np.nan], size=edges), dtype=dtype),
        round_=draw(st.integers(0, 60)),
    )


def rows_of(turn):
    """Each row's number, own column and kept columns."""
    hood = turn.hood
    for i, own in enumerate(hood.own_cols.tolist()):
        yield i, own, [j for r, j, k in zip(*_edges(turn), strict=True) if r == i and (k or j == own)]


def _edges(turn):
    return turn.hood.rows.tolist(), turn.hood.cols.tolist(), turn.kept.tolist()


def weights_of(turn, chosen):
    """(E,) from a dictionary of (row, column) to weight."""
    ends = zip(turn.hood.rows.tolist(), turn.hood.cols.tolist(), strict=True)
    return torch.tensor([chosen.get(end, 0.0) for end in ends], dtype=turn.weights.dtype)


def in_float64(x):
    return x.double().numpy()


def assert_near(found, expected, vectors):
    """Equal up to rounding of the largest number involved."""
    dtype = found.dtype
    expected = torch.as_tensor(np.asarray(expected)).to(dtype)
    scale = float(vectors.abs().max()) if vectors.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0, atol=32 * torch.finfo(dtype).eps * max(scale, 1e-30))


def outcome(defense, turn):
    """The new models and γ of a round, with a gradient that does not change."""
    turn = replace(turn, weights=defense.weigh({}, turn))
    nothing = torch.zeros_like(turn.heard.gamma[turn.hood.own_cols])
    return defense.mix({}, turn), defense.track({}, turn, nothing, nothing)


def check_sound(defense, turn):
    """Between the smallest and the largest kept value, and one's own where nobody else is kept."""
    for found, x in zip(outcome(defense, turn), (turn.models, turn.heard.gamma), strict=True):
        assert found.isfinite().all()
        assert found.dtype == x.dtype
        for i, own, kept in rows_of(turn):
            low, high = x[kept].min(0).values, x[kept].max(0).values
            room = 32 * torch.finfo(x.dtype).eps * x[kept].abs().max()
            assert (found[i] >= low - room).all()
            assert (found[i] <= high + room).all()
            if kept == [own]:
                torch.testing.assert_close(found[i], x[own])


def check_deaf_to_the_cut(defense, turn, row):
    """What a row does not keep has no effect on it, not in a single bit."""
    i, _, kept = list(rows_of(turn))[row % len(turn.hood.own)]
    others = torch.tensor([j not in kept for j in range(turn.hood.columns)])[:, None]
    heard = turn.heard
    other = Heard(
        torch.where(others, 7 - heard.theta, heard.theta),
        torch.where(others, -HUGE, heard.gamma),
        heard.trust,
        turn.kept,
    )
    changed = replace(turn, heard=other)
    for a, b in zip(outcome(defense, turn), outcome(defense, changed), strict=True):
        assert torch.equal(a[i], b[i])


def check_agreement(defense, vector):
    """Clients that agree stay where they are."""
    gamma = torch.tensor(vector).expand(5, -1)
    turn = turn_of(nx.wheel_graph(5), gamma, theta=2 * gamma)
    models, tracked = outcome(defense, turn)
    torch.testing.assert_close(models, turn.models)
    torch.testing.assert_close(tracked, gamma)


def graph_of(topology, n):
    return topologies.resolve(topology).build(n, np.random.default_rng(0))


def refused(name, topology, n=11, malicious=2):
    """The setting for which a federation on that graph is refused before it begins; if it is not, it must run."""
    try:
        fed = federation(problem(n=n, malicious=malicious), graph_of(topology, n), defense=defenses.resolve(name))
    except ConfigError as error:
        return error.field
    steps(fed, 5)
    assert fed.theta.isfinite().all()
    assert fed.gamma.isfinite().all()
    return None


def check_with_detector(name, detector):
    """A few rounds with any detector, on a graph where every rule is defined."""
    fed = federation(problem(n=11), defense=defenses.resolve(name), detector=detectors.resolve(detector))
    steps(fed, 8)
    assert fed.round == 8
    assert fed.theta.isfinite().all()
    assert fed.gamma.isfinite().all()


def check_cut_mid_run(name):
    """Once malicious clients are cut nothing they send arrives; even when everybody is, a client goes on alone."""
    ends = []
    for shout in (0.0, 1e30):
        fed = steps(federation(problem(n=11), defense=defenses.resolve(name), detector=NoDetection()), 3)
        distrust(fed, fed.malicious)
        for _ in range(3):
            fed.gamma[fed.malicious] = fed.theta[fed.malicious] = shout
            fed.step()
        ends.append(fed.theta[fed.benign])
        distrust(fed, fed.benign[2:])
        steps(fed, 2)
        distrust(fed, fed.benign)
        steps(fed, 2)
        assert fed.theta[fed.benign].isfinite().all()
    assert torch.equal(*ends)


def distrust(fed, whom):
    """Every benign client withdraws its trust in ``whom``."""
    fed.trust[fed.defended & torch.isin(fed.everyone.cols, torch.tensor(whom))] = 0


def refusal(**settings):
    """What an experiment that cannot work is told before it begins."""
    with pytest.raises(ConfigError) as caught:
        Simulation(Experiment.parse({"rounds": 1, **settings}))
    assert caught.value.field == "defense.assumed"
    return str(caught.value)
