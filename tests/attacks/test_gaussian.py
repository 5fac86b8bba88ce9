import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.attacks.gaussian import Gaussian
from views import messages, view


@given(seed=st.integers(0, 999), scale=st.floats(0.1, 100), f=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_random_vectors_of_a_given_length(seed, scale, f):
    gamma = messages(5 + f, seed=seed)
    crafted = Gaussian(scale=scale).craft(view(gamma, list(range(f)), seed=seed))
    expected = scale * gamma[f:].mean(0).norm().item()
    assert crafted.norm(dim=1).tolist() == pytest.approx([expected] * f)


def test_directions_are_spread_evenly_and_drawn_by_each_attacker():
    gamma = messages(402, d=50)
    crafted = Gaussian(scale=1.0).craft(view(gamma, list(range(400))))
    unit = crafted / crafted.norm(dim=1, keepdim=True)
    assert unit.mean(0).norm() < 0.1
    assert (unit @ unit.T).fill_diagonal_(0).abs().max() < 0.75
    assert unit.square().mean(0).tolist() == pytest.approx([1 / 50] * 50, rel=0.4)


def test_nothing_to_hide_behind_a_mean_of_zero():
    assert torch.equal(Gaussian().craft(view(torch.zeros(4, 3), [0])), torch.zeros(1, 3))
