"""BALANCE against its formula, neighbour by neighbour."""

import math

import networkx as nx
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.defenses.byz import Byz
from quadratics import federation, problem
from turns import (
    in_float64,
    rows_of,
    turn_of,
    turns,
    weights_of,
)


def by_hand(turn, defense):
    x = in_float64(turn.heard.gamma if defense.on == "gamma" else turn.models)
    weights = {}
    for i, own, kept in rows_of(turn):
        length = math.sqrt(math.fsum(x[own] ** 2))
        reach = defense.radius * math.exp(-defense.kappa * turn.round / (defense.horizon or 50)) * length
        near = [j for j in kept if j != own and math.sqrt(math.fsum((x[own] - x[j]) ** 2)) <= reach]
        weights |= {(i, j): (1 - defense.own_share) / len(near) for j in near}
        weights[i, own] = defense.own_share if near else 1.0
    return weights_of(turn, weights)


@given(
    turns(),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["gamma", "model"]),
)
@settings(max_examples=150, deadline=None)
def test_equals_the_formula(turn, radius, kappa, own_share, on):
    defense = Byz(radius=radius, kappa=kappa, own_share=own_share, on=on)
    torch.testing.assert_close(defense.weigh({}, turn), by_hand(turn, defense), rtol=1e-6, atol=0)


def test_the_radius_shrinks():
    gamma = torch.tensor([[1.0], [1.2]])
    accepted = [Byz().weigh({}, turn_of(nx.path_graph(2), gamma, round_=t))[1].item() > 0 for t in (0, 20, 21, 50, 500)]
    assert accepted == [True, True, False, False, False]  # 0.3 exp(−t/50) falls under 0.2 at t = 20.3


def test_on_models_it_does_not_see_what_gamma_does():
    """In the paper's attack models are honest: a γ of norm 10 hardly moves a half-step."""
    gamma, theta = torch.tensor([[1.0], [-10.0]]), torch.tensor([[5.0], [5.0]])
    turn = turn_of(nx.path_graph(2), gamma, theta=theta, step=0.01)
    assert Byz(on="model").weigh({}, turn).tolist() == [0.5] * 4
    assert Byz(on="gamma").weigh({}, turn).tolist()[:2] == [1.0, 0.0]


def test_runs_with_the_papers_detector_and_weights_unless_told_otherwise():
    fed = federation(problem(), defense=Byz())
    assert fed.detector.name == "consistency"
    assert fed.mixing == "uniform"
