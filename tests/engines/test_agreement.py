"""The fast engine against the loop: same gradients, to rounding, for every model, attack, defence and kind of gradient.

On a machine with a GPU both compute there, which is what the stacked engine is for; elsewhere on the CPU, where it
takes the same steps without recording them.
"""

import pytest
import torch

from purifl import Experiment
from purifl.attacks import attacks
from purifl.data.partitions import partitions
from purifl.defenses import defenses
from purifl.engines import Stacked
from purifl.models import models
from purifl.simulation import Simulation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 2e-4
"""Of ‖difference‖ / ‖value‖ after two rounds: steps differ by rounding, and a kink crossed differs by more."""

SETTINGS = {"attack": "backdoor-9", "model": {"name": "mlp", "hidden": 16}, "partition": "label-dir", "clients": 8}


def after_two_rounds(engine, **settings):
    simulation = Simulation(Experiment(**SETTINGS | settings, device=DEVICE, engine=engine))
    for _ in range(2):
        simulation.step()
    return simulation


def assert_agree(**settings):
    loop, fast = (
        after_two_rounds(engine, **settings) for engine in ("loop", "auto" if DEVICE == "cuda" else "stacked")
    )
    for name in ("theta", "gradient", "gamma"):
        expected, found = (getattr(each.federation, name) for each in (loop, fast))
        error = (found - expected).norm() / expected.norm()
        assert error < TOLERANCE, f"{name} differs by {error:.1e}"
    assert torch.equal(loop.federation.cut, fast.federation.cut)
    return fast.federation.engine


@pytest.mark.parametrize("model", list(models))
def test_every_model(model):
    one = {"gradient": "batch", "batch_size": 8}  # over many steps a deep model makes much of rounding
    assert isinstance(assert_agree(model=model, clients=3, attack="none", training=one), Stacked)


@pytest.mark.parametrize("attack", list(attacks))
def test_every_attack(attack):
    assert isinstance(assert_agree(attack=attack), Stacked)


def possible(name):
    """Settings in which the defence can work at all: Bulyan wants many neighbours and few of them malicious."""
    return (
        {"attack": {"name": "backdoor-9", "malicious_clients": [1]}} if name in ("bulyan", "krum", "multi-krum") else {}
    )


@pytest.mark.parametrize("defense", list(defenses))
def test_every_defense(defense):
    assert isinstance(assert_agree(defense=defense, **possible(defense)), Stacked)


@pytest.mark.parametrize("partition", list(partitions))
def test_every_partition(partition):
    assert_agree(partition=partition)


@pytest.mark.parametrize("kind", ["epoch-sum", "epoch-mean", "steps", "batch"])
@pytest.mark.parametrize("level", [0.3, 1.0])
def test_every_kind_of_gradient(kind, level):
    assert_agree(training={"gradient": kind, "local_steps": 7}, attack={"name": "backdoor-9", "malicious_level": level})


def test_more_clients_than_fit_in_a_step(monkeypatch):
    monkeypatch.setattr("purifl.engines.stacked._AT_ONCE", 3 * 16)
    monkeypatch.setattr("purifl.engines.stacked._TESTED_AT_ONCE", 100)
    engine = assert_agree(partition="iid")
    assert [len(team.jobs) for team in engine._teams] == [3, 3, 2]


def test_accuracies_agree():
    rows = [after_two_rounds(engine).step()[0] for engine in ("loop", "stacked")]
    for key in ("test_accuracy", "attack_accuracy"):
        assert rows[0][key] == pytest.approx(rows[1][key], abs=0.01)


def test_a_lost_client_loses_nobody_else():
    lost = after_two_rounds("stacked")
    theta = lost.federation.theta.clone()
    expected = lost.federation.engine.gradients(theta, 3)
    theta[2] = torch.nan
    found = lost.federation.engine.gradients(theta, 3)
    assert found[2].isnan().all()
    others = [k for k in range(len(theta)) if k != 2]
    torch.testing.assert_close(found[others], expected[others], rtol=0, atol=0)
