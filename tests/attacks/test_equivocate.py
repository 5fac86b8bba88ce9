import networkx as nx
import pytest
import torch

from purifl.attacks.equivocate import Equivocate
from quadratics import federation, steps
from views import honest_problem, messages, view


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_neighbours_hear_lie_and_truth_in_turn(scale):
    gamma = messages(6)
    seen = view(gamma, [2, 5], private=True)
    crafted, mean = Equivocate(scale=scale).craft(seen), gamma[[0, 1, 3, 4]].mean(0)
    for attacker in (2, 5):
        told = crafted[seen.hood.owner[seen.columns] == attacker]
        assert len(told) == 4
        torch.testing.assert_close(told, torch.stack([-scale * mean, mean, -scale * mean, mean]))


def test_a_single_neighbour_is_lied_to():
    gamma = messages(4)
    crafted = Equivocate(scale=2.0).craft(view(gamma, [0], nx.path_graph(4), private=True))
    torch.testing.assert_close(crafted, -2 * gamma[1:].mean(0)[None])


def test_two_victims_in_a_federation_hear_different_things_from_one_sender():
    fed = steps(federation(honest_problem(malicious=(4,)), nx.cycle_graph(10), attack=Equivocate()), 2)
    told = [fed.gamma[j] for j, sender in zip(fed.hood.cols, fed.hood.senders, strict=True) if sender == 4]
    mean = fed.gamma[fed.benign].mean(0)
    assert len(told) == 2
    torch.testing.assert_close(told[0], -3 * mean)
    torch.testing.assert_close(told[1], mean)
