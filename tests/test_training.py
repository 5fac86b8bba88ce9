"""What a client's gradient is, against plain SGD loops."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from purifl import Client, Samples, Training
from purifl.randomness import stream
from purifl.training import LocalTrainer

CPU = torch.device("cpu")


def linear():
    return nn.Linear(3, 2).double()


def data(count=10, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng, dtype=torch.float64)
    return Samples(x, torch.randint(2, (count,), generator=rng))


def trainer(**options):
    settings = {"batch_size": 4, "step_size": 0.5} | options
    return LocalTrainer(linear, Training(**settings), 0, CPU, nn.functional.cross_entropy)


def sgd(theta, batches, step):
    """An ordinary torch.optim loop; returns the final parameters."""
    model = linear()
    nn.utils.vector_to_parameters(theta.clone(), model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=step)
    for batch in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        optimiser.step()
    return parameters_to_vector(model.parameters()).detach()


def batches_of(samples, size, orders):
    return [
        samples.at(torch.from_numpy(part))
        for order in orders
        for part in np.split(order, range(size, len(order), size))
    ]


def theta_of(local):
    return local.initial([Client(0, data())])[0]


@pytest.mark.parametrize(("kind", "divisor"), [("epoch-sum", 1), ("epoch-mean", 3)])
def test_an_epoch_is_a_pass_over_all_data_in_batches(kind, divisor):
    local, samples = trainer(gradient=kind), data(10)
    theta = theta_of(local)
    found = local.gradients(theta[None], [Client(3, samples)], 7)[0]
    end = sgd(theta, batches_of(samples, 4, [stream(0, "batches", 3, 7).permutation(10)]), 0.5)
    torch.testing.assert_close(found, (theta - end) / 0.5 / divisor)


def test_fixed_steps_go_around_small_data_again():
    local, samples = trainer(gradient="steps", local_steps=5), data(6)
    theta = theta_of(local)
    rng = stream(0, "batches", 3, 7)
    batches = batches_of(samples, 4, [rng.permutation(6) for _ in range(3)])[:5]
    assert [len(batch.y) for batch in batches] == [4, 2, 4, 2, 4]
    found = local.gradients(theta[None], [Client(3, samples)], 7)[0]
    torch.testing.assert_close(found, (theta - sgd(theta, batches, 0.5)) / 0.5)


def test_one_mini_batch_is_its_gradient():
    local, samples = trainer(gradient="batch"), data(10)
    theta = theta_of(local)
    batch = samples.at(torch.from_numpy(stream(0, "batches", 3, 7).permutation(10)[:4]))
    found = local.gradients(theta[None], [Client(3, samples)], 7)[0]
    torch.testing.assert_close(found, theta - sgd(theta, [batch], 1.0))


def test_the_local_step_may_differ_from_the_common_one():
    local, samples = trainer(gradient="epoch-sum", local_step_size=0.1), data(10)
    theta = theta_of(local)
    found = local.gradients(theta[None], [Client(3, samples)], 7)[0]
    end = sgd(theta, batches_of(samples, 4, [stream(0, "batches", 3, 7).permutation(10)]), 0.1)
    torch.testing.assert_close(found, (theta - end) / 0.1)


def test_a_client_smaller_than_the_batch_uses_all_its_data():
    local, samples = trainer(gradient="batch", batch_size=99), data(5)
    theta = theta_of(local)
    found = local.gradients(theta[None], [Client(0, samples)], 0)[0]
    torch.testing.assert_close(found, theta - sgd(theta, [samples], 1.0))


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_a_malicious_gradient_is_mixed_by_its_level(level):
    local, own, poisoned = trainer(), data(10), Samples(data(10).x, torch.ones(10, dtype=torch.int64))
    theta = theta_of(local)[None]
    honest, evil = (local.gradients(theta, [Client(2, samples)], 1) for samples in (own, poisoned))
    found = local.gradients(theta, [Client(2, own, poisoned, level)], 1)
    torch.testing.assert_close(found, (1 - level) * honest + level * evil)


def test_theta_itself_is_never_changed():
    local = trainer()
    theta = theta_of(local)[None]
    before = theta.clone()
    local.gradients(theta, [Client(0, data())], 0)
    assert torch.equal(theta, before)
