"""What the stacked engine does in a round, counted; what it shares between runs; what it refuses."""

import networkx as nx
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from purifl import Experiment, Federation, Samples, Training
from purifl.defenses import defenses
from purifl.engines.gradients import StackedGradients
from purifl.errors import ConfigError
from purifl.simulation import Simulation

SETTINGS = {"attack": "backdoor-9", "model": {"name": "mlp", "hidden": 16}, "partition": "label-dir", "clients": 6}
WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal", "aten::masked_select"}


def simulation(**settings):
    return Simulation(Experiment(**SETTINGS | settings, engine="stacked"))


class Waiting(TorchDispatchMode):
    """Counts the calls for whose result the host has to wait."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name() in WAITING:
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("defense", "teams"), [("gpd", 1), ("ldp", 2)])
def test_a_step_is_one_call_however_many_clients_take_it(defense, teams, monkeypatch):
    """Clients with a local rule of their own and those without are two teams."""
    engine = simulation(defense=defense).federation.engine
    assert len(engine._teams) == teams
    calls = []
    compute = StackedGradients.__call__
    monkeypatch.setattr(StackedGradients, "__call__", lambda self, *sizes: calls.append(sizes) or compute(self, *sizes))
    engine.gradients(engine.initial(), 1)
    steps = [max(len(engine.bounds(len(job.data.y))) for job in team.jobs) for team in engine._teams]
    assert len(calls) == sum(steps)
    work = sum(len(engine.bounds(len(job.data.y))) for job in engine.jobs)
    assert sum(active for active, _ in calls) == work  # and nobody's step is computed who has none left


def test_the_host_waits_for_nothing_within_a_round_of_training():
    engine = simulation().federation.engine
    theta = engine.initial()
    with Waiting() as waiting:
        engine.gradients(theta, 1)
    assert waiting.found == []


def test_the_orders_of_the_next_round_are_drawn_ahead_and_are_the_same(monkeypatch):
    engine = simulation().federation.engine
    theta = engine.initial()
    engine.gradients(theta, 1)
    expected = engine.gradients(theta, 2)
    fresh = simulation().federation.engine
    assert torch.equal(fresh.gradients(theta, 2), expected)
    drawn = []
    order = type(engine).order
    monkeypatch.setattr(type(engine), "order", lambda self, *who: drawn.append(who[-1]) or order(self, *who))
    engine.gradients(theta, 3)
    assert set(drawn) == {4}


def test_runs_of_the_same_model_share_a_recording_and_nothing_else():
    alone = simulation(seed=1)
    for _ in range(2):
        alone.step()
    first, second = simulation(seed=0), simulation(seed=1)
    assert first.federation.engine._gradients is second.federation.engine._gradients
    for _ in range(2):
        first.step()
        second.step()
    assert torch.equal(second.federation.theta, alone.federation.theta)
    other = simulation(model={"name": "mlp", "hidden": 17})
    assert other.federation.engine._gradients is not first.federation.engine._gradients


def federation(model, label=0, **options):
    draw = torch.Generator().manual_seed(0)
    clients = [Samples(torch.randn(5, 4, generator=draw), torch.randint(2, (5,), generator=draw)) for _ in range(3)]
    clients[1].y[2] = label
    training = Training(batch_size=2, step_size=0.1)
    return Federation(model, clients, nx.complete_graph(3), training=training, **options)


class Shifted(nn.Module):
    """Has more than what is trained: a drawn buffer and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.randn(4))
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.second(self.first(x + self.shift).tanh())


class Centred(nn.Module):
    """Takes off the mini-batch's mean, in which samples that fill it up would count."""

    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.functional.multi_margin_loss])
def test_buffers_frozen_layers_and_other_losses(loss):
    loop, fast = (federation(Shifted, engine=engine, loss=loss, seed=3) for engine in ("loop", "stacked"))
    for fed in (loop, fast):
        fed.step()
    torch.testing.assert_close(fast.theta, loop.theta)
    torch.testing.assert_close(fast.gamma, loop.gamma)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Dropout(0.5), "random"),
        (nn.BatchNorm1d(3, track_running_stats=False), "more than 1 value"),
        (Centred(), "depends on the others"),
    ],
)
def test_a_model_that_cannot_be_stacked_says_why(layer, reason):
    with pytest.raises(ConfigError, match=reason):
        federation(lambda: nn.Sequential(nn.Linear(4, 3), layer, nn.Linear(3, 2)), engine="stacked")


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])), "not the mean"),
        (nn.CrossEntropyLoss(reduction="sum"), "not the mean"),
    ],
)
def test_a_loss_that_cannot_be_stacked_says_why(loss, reason):
    with pytest.raises(ConfigError, match=reason):
        federation(lambda: nn.Linear(4, 2), loss=loss, engine="stacked")


@pytest.mark.parametrize("label", [-100, -1])
def test_labels_with_a_meaning_of_their_own_are_left_to_the_loop(label):
    with pytest.raises(ConfigError, match="client 1 has labels"):
        federation(lambda: nn.Linear(4, 2), engine="stacked", label=label)


def test_a_recording_does_not_keep_a_runs_data():
    engine = simulation().federation.engine
    assert len(engine._gradients._work.clients) == 0


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"engine.*fast.*auto, loop, stacked"):
        federation(lambda: nn.Linear(4, 2), engine="fast")
    with pytest.raises(ConfigError, match=r"precision.*fp16"):
        federation(lambda: nn.Linear(4, 2), precision="fp16")
    with pytest.raises(ConfigError, match=r"precision.*tf32.*CUDA"):
        federation(lambda: nn.Linear(4, 2), precision="tf32")


def test_a_rule_with_gradients_of_its_own_says_so():
    pytest.importorskip("opacus", reason="opacus is not installed")
    private = defenses.resolve({"name": "ldp", "mechanism": "dp-sgd"})
    with pytest.raises(ConfigError, match="PrivateGradients computes gradients of its own"):
        federation(lambda: nn.Linear(4, 2), defense=private, engine="stacked")


def test_lower_precision_needs_a_gpu():
    with pytest.raises(ConfigError, match=r"precision.*bf16.*CUDA"):
        Experiment.parse({"precision": "bf16"})
