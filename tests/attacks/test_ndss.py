import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl.attacks.ndss import Ndss
from views import messages, view

OBJECTIVES, DIRECTIONS = ["min-max", "min-sum"], ["std", "sign", "unit"]


def direction(kind, benign):
    mean = benign.mean(0)
    if kind == "std":
        return -benign.std(0)
    return -np.sign(mean) if kind == "sign" else -mean / np.linalg.norm(mean)


def excess(objective, message, benign):
    """How far the constraint is broken, relatively; negative where it holds."""
    to = [np.linalg.norm(message - g) for g in benign]
    between = [[np.linalg.norm(g - h) for h in benign] for g in benign]
    if objective == "min-max":
        return max(to) / max(map(max, between)) - 1
    return sum(x**2 for x in to) / max(sum(x**2 for x in row) for row in between) - 1


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", DIRECTIONS)
@given(seed=st.integers(0, 999), k=st.integers(2, 8), f=st.integers(1, 3), scale=st.floats(0.01, 5))
@settings(max_examples=20, deadline=None)
def test_the_largest_deviation_along_the_direction_that_keeps_the_constraint(objective, kind, seed, k, f, scale):
    gamma = scale * messages(k + f, seed=seed)
    benign = gamma[:k].numpy()
    crafted = Ndss(objective=objective, direction=kind).craft(view(gamma, list(range(k, k + f)))).numpy()
    assert crafted.shape == (f, 6)
    assert (crafted == crafted[0]).all()
    p = direction(kind, benign)
    eta = (crafted[0] - benign.mean(0)) @ p / (p @ p)
    np.testing.assert_allclose(crafted[0], benign.mean(0) + eta * p, atol=1e-12)
    assert -1e-12 <= eta < 20
    assert excess(objective, crafted[0], benign) <= 1e-9
    assert eta > 19.99 or excess(objective, benign.mean(0) + (eta + 3e-5) * p, benign) > 0


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_without_spread_or_mean_it_sends_the_mean(objective, kind):
    attack = Ndss(objective=objective, direction=kind)
    for gamma in (torch.zeros(5, 3), torch.ones(5, 3), torch.ones(2, 3)):
        assert torch.equal(attack.craft(view(gamma, [1])), gamma[:1])


def test_a_mean_of_zero_has_no_direction_of_its_own():
    gamma = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [5.0, 5.0]])
    assert torch.equal(Ndss(direction="unit").craft(view(gamma, [2])), torch.zeros(1, 2))
    assert Ndss(direction="std").craft(view(gamma, [2]))[0, 0] == pytest.approx(-1, abs=1e-4)


def test_messages_that_are_not_finite_do_not_stop_the_search():
    gamma = messages(5)
    gamma[0, 0] = torch.inf
    assert Ndss().craft(view(gamma, [4])).shape == (1, 6)
