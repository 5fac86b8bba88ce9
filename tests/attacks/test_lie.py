import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purifl import Experiment
from purifl.attacks import attacks
from purifl.attacks.lie import Lie
from purifl.errors import ConfigError
from purifl.randomness import stream
from purifl.simulation import Simulation
from quadratics import federation
from views import honest_problem, messages, view


@given(seed=st.integers(0, 999), n=st.integers(2, 9), f=st.integers(1, 3), z=st.floats(0.1, 5))
@settings(max_examples=30, deadline=None)
def test_mean_minus_z_standard_deviations(seed, n, f, z):
    f = min(f, n - 1)
    gamma = messages(n, seed=seed)
    crafted = Lie(z=z).craft(view(gamma, list(range(n - f, n)))).numpy()
    assert crafted.shape == (f, 6)
    for k in range(6):
        benign = [float(gamma[i, k]) for i in range(n - f)]
        mean = sum(benign) / len(benign)
        std = (sum((x - mean) ** 2 for x in benign) / len(benign)) ** 0.5
        assert crafted[:, k] == pytest.approx(mean - z * std, abs=1e-12)


def test_without_spread_it_is_the_mean():
    gamma = torch.ones(5, 3) * torch.tensor([1.0, 0.0, -2.0])
    assert torch.equal(Lie().craft(view(gamma, [0])), gamma[:1])


@pytest.mark.parametrize(("n", "f", "z"), [(10, 3, 0.18), (10, 4, 0.43), (20, 4, 0.16), (50, 24, 1.43)])
def test_z_max_as_tabulated_from_the_paper(n, f, z):
    gamma = messages(n)
    crafted = Lie(z="max").craft(view(gamma, list(range(f))))
    benign = gamma[f:].numpy()
    spread = benign.std(0) > 1e-9
    found = ((benign.mean(0) - crafted[0].numpy())[spread] / benign.std(0)[spread]).mean()
    assert found == pytest.approx(z, abs=0.006)


@pytest.mark.parametrize(
    ("n", "f", "words"), [(10, 2, "gives 0 for n=10, f=2"), (10, 1, "gives -0.14"), (10, 6, "majority"), (2, 1, "-inf")]
)
def test_z_max_that_is_no_attack_is_refused_before_training(n, f, words):
    with pytest.raises(ConfigError, match=f"{words}.*give a number"):
        Lie(z="max", malicious_clients=tuple(range(f))).place(n, stream(0, "malicious clients"))


def test_the_refusal_reaches_simulation_and_federation():
    with pytest.raises(ConfigError, match=r"attack\.z"):
        Simulation(Experiment(attack={"name": "lie", "z": "max"}))
    with pytest.raises(ConfigError, match=r"attack\.z"):
        federation(honest_problem(), attack=Lie(z="max"))
    assert Lie(z="max", malicious_ratio=0.0).place(10, np.random.default_rng(0)) == []


@pytest.mark.parametrize("z", [0, -1, "most", float("nan")])
def test_other_z_are_refused(z):
    with pytest.raises(ConfigError, match=r"attack\.z"):
        attacks.resolve({"name": "lie", "z": z})
