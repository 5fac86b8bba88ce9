"""Laplace noise and DP-SGD against loops written by hand, ε against the accountant itself."""

import sys

import pytest
import scipy.stats
import torch
from torch import nn

from local_training import BATCH, CLIENT, ROUND, STEP, by_hand, data, generator, gradient, is_weight, net, work
from purifl import Client, Experiment, Samples, Training, run
from purifl.defenses import defenses, ldp
from purifl.defenses.ldp import LDP, laplace
from purifl.engines import Loop
from purifl.errors import ConfigError
from purifl.models import models
from purifl.randomness import stream

NOISY = LDP(scale=0.1)


def private(**options):
    return LDP(mechanism="dp-sgd", **options)


# ---------------------------------------------------------------- Laplace


def test_laplace_equals_a_loop_by_hand():
    draws = generator()

    def shake(model, optimiser, k, memory):
        for name, p in model.named_parameters():
            if "weight" in name and k > 0:
                pair = torch.empty(2, *p.shape, dtype=p.dtype).exponential_(generator=draws)
                p.data += STEP * 0.1 * (pair[0] - pair[1])

    torch.testing.assert_close(gradient(NOISY), by_hand(shake))


def test_the_noise_is_laplacian():
    drawn = laplace(torch.empty(1, 20_000), 0.3, [torch.Generator().manual_seed(0)])[0]
    assert scipy.stats.kstest(drawn.numpy(), scipy.stats.laplace(0, 0.3).cdf).pvalue > 0.01


def test_the_first_mini_batch_is_left_alone():
    alone = data(BATCH)
    torch.testing.assert_close(gradient(NOISY, alone), gradient(samples=alone), rtol=0, atol=0)


def test_only_weights_are_shaken():
    """With two mini-batches the noise comes last, and no bias sees it."""
    two = data(2 * BATCH)
    touched = gradient(NOISY, two) != gradient(samples=two)
    assert torch.equal(touched, is_weight())


def test_a_single_mini_batch_is_shaken_too():
    """g̃ = g − ξ."""
    noise = torch.zeros(len(is_weight()), dtype=torch.float64)
    draws = generator()
    noise[is_weight()] = torch.cat(
        [laplace(p[None], 0.1, [draws]).flatten() for name, p in net().named_parameters() if "weight" in name]
    )
    torch.testing.assert_close(gradient(NOISY, gradient="batch"), gradient(gradient="batch") - noise)


@pytest.mark.parametrize("kind", ["epoch-sum", "epoch-mean", "steps", "batch"])
@pytest.mark.parametrize("defense", [LDP(scale=0), private(clip=1e9, noise=0)])
def test_without_noise_it_is_plain_training(defense, kind):
    torch.testing.assert_close(gradient(defense, gradient=kind), gradient(gradient=kind))


@pytest.mark.parametrize("defense", [NOISY, private()])
def test_draws_depend_on_client_and_round_alone(defense):
    first = gradient(defense)
    assert torch.equal(gradient(defense), first)
    assert not torch.equal(gradient(defense, round_=8) - gradient(round_=8), first - gradient())
    assert not torch.equal(gradient(defense, client=4) - gradient(client=4), first - gradient())


@pytest.mark.parametrize("defense", [NOISY, private()])
def test_malicious_clients_train_as_they_like(defense):
    assert torch.equal(gradient(defense, malicious=True), gradient())


# ---------------------------------------------------------------- DP-SGD


def per_example_by_hand(clip, noise):
    """One mini-batch, example by example."""
    samples = data()
    local = Loop(work([Client(CLIENT, samples)]))
    model = local.use(local.initial()[0])
    total = [torch.zeros_like(p) for p in model.parameters()]
    for k in stream(0, "batches", CLIENT, ROUND).permutation(len(samples.y))[:BATCH]:
        loss = nn.functional.cross_entropy(model(samples.x[k][None]), samples.y[k][None])
        each = torch.autograd.grad(loss, list(model.parameters()))
        length = torch.cat([g.flatten() for g in each]).norm()
        total = [t + g * min(1, clip / length) for t, g in zip(total, each, strict=True)]
    draws = generator()
    noisy = [t + noise * clip * torch.randn(t.shape, dtype=t.dtype, generator=draws) for t in total]
    return torch.cat([t.flatten() for t in noisy]) / BATCH


@pytest.mark.parametrize("clip", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("noise", [0.0, 1.5])
@pytest.mark.parametrize("chunk", [1, 1 << 24])
def test_dp_sgd_equals_a_loop_over_examples(clip, noise, chunk, monkeypatch):
    monkeypatch.setattr(ldp, "_CHUNK", chunk)
    found = gradient(private(clip=clip, noise=noise), gradient="batch")
    torch.testing.assert_close(found, per_example_by_hand(clip, noise))


@pytest.mark.parametrize("name", list(models))
def test_per_example_gradients_of_every_model(name):
    """Unclipped and noiseless they average to the mini-batch's gradient."""
    shape = (3, 16, 16)
    batch = Samples(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3]))
    local = Loop(work([Client(0, batch)], factory=lambda: models.resolve(name).build(shape, 4)))
    local.model.eval()
    rule = private(clip=1e9, noise=0).local_rule()
    found, expected = rule.gradient(local, batch, torch.Generator()), local.batch_gradient(batch)
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-5)


def test_dropout_is_drawn_for_each_example_and_fixed_by_the_seed():
    def dropping():
        return nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)).double()

    def found(samples):
        engine = Loop(work([Client(0, samples)], private(noise=0), dropping))
        return engine.gradients(engine.initial(), 0)

    samples = Samples(data().x[:1].repeat(4, 1), data().y[:1].repeat(4))
    assert torch.equal(found(samples), found(samples))
    assert not torch.equal(found(samples), found(samples.at([0])))


# ---------------------------------------------------------------- ε


def test_epsilon_is_the_accountants():
    accountants = pytest.importorskip("opacus.accountants")
    accountant = accountants.RDPAccountant()
    for _ in range(40):
        accountant.step(noise_multiplier=1.3, sample_rate=0.1)
    assert private(noise=1.3, delta=1e-6).epsilon(40, 0.1) == pytest.approx(accountant.get_epsilon(1e-6))


def test_more_noise_or_fewer_steps_spend_less():
    pytest.importorskip("opacus")
    base = private().epsilon(100, 0.1)
    assert 0 < private().epsilon(10, 0.1) < base
    assert private(noise=2).epsilon(100, 0.1) < base < private().epsilon(100, 0.2)


def test_without_a_mechanism_or_noise_nothing_is_guaranteed():
    assert LDP().epsilon(10, 0.1) == private(noise=0).epsilon(10, 0.1) == float("inf")


def test_a_missing_accountant_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(ConfigError, match=r"install purifl\[privacy\]"):
        private().epsilon(10, 0.1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gradient": "epoch-sum"}, {(30, 0.4), (10, 1.0)}),
        ({"gradient": "epoch-mean", "batch_size": 100}, {(10, 1.0)}),
        ({"gradient": "steps", "local_steps": 7}, {(70, 0.4), (70, 1.0)}),
        ({"gradient": "batch"}, {(10, 0.4), (10, 1.0)}),
    ],
)
def test_privacy_is_spent_by_every_mini_batch_sent(options, expected, monkeypatch):
    """Ten rounds, clients with 10 and 3 examples, mini-batches of 4; the worst client counts."""
    asked = set()
    monkeypatch.setattr(LDP, "epsilon", lambda self, steps, rate: asked.add((steps, rate)) or float(steps))
    training = Training(**{"batch_size": 4, "step_size": 0.1} | options)
    assert private().privacy_spent(training, [10, 3, 10], 10) == max(steps for steps, _ in expected)
    assert asked == expected


def test_other_defences_promise_nothing():
    training = Experiment().training
    assert LDP().privacy_spent(training, [10], 5) is None
    assert defenses.resolve("lower").privacy_spent(training, [10], 5) is None


def test_epsilon_is_told_in_the_summary():
    pytest.importorskip("opacus", reason="the accountant comes with purifl[privacy]")
    settings = {"model": "mlp", "rounds": 2, "eval_every": 2, "attack": "backdoor-9"}
    result = run(Experiment(defense={"name": "ldp", "mechanism": "dp-sgd"}, **settings))
    sizes = [sum(h) for k, h in enumerate(result.histograms) if k not in result.malicious]
    assert result.summary()["epsilon"] == private().privacy_spent(result.experiment.training, sizes, 2) > 0
    assert run(Experiment(defense="ldp", **settings)).summary()["epsilon"] is None
