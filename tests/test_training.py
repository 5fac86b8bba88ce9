"""What a client's gradient is, against plain SGD loops."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from purifl import Client, Samples, Training
from purifl.engines import Loop, Stacked, Work
from purifl.engines.base import PLAIN
from purifl.models import models
from purifl.randomness import stream
from purifl.training import LocalRule

CPU = torch.device("cpu")


def linear():
    return nn.Linear(3, 2).double()


def data(count=10, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng, dtype=torch.float64)
    return Samples(x, torch.randint(2, (count,), generator=rng))


@pytest.fixture(params=[Loop, Stacked], ids=lambda engine: engine.__name__)
def train(request):
    """g of each client at the common initial model, and that model."""

    def gradients(clients, round_=7, **options):
        training = Training(**{"batch_size": 4, "step_size": 0.5} | options)
        engine = request.param(Work(linear, clients, training, 0, CPU, nn.functional.cross_entropy, LocalRule()))
        theta = engine.initial()
        before = theta.clone()
        found = engine.gradients(theta, round_)
        assert torch.equal(theta, before)  # a walk never changes where it starts
        return found, theta[0]

    return gradients


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


@pytest.mark.parametrize(("kind", "divisor"), [("epoch-sum", 1), ("epoch-mean", 3)])
def test_an_epoch_is_a_pass_over_all_data_in_batches(train, kind, divisor):
    samples = data(10)
    found, theta = train([Client(3, samples)], gradient=kind)
    end = sgd(theta, batches_of(samples, 4, [stream(0, "batches", 3, 7).permutation(10)]), 0.5)
    torch.testing.assert_close(found[0], (theta - end) / 0.5 / divisor)


@pytest.mark.parametrize("kind", ["epoch-sum", "epoch-mean"])
def test_clients_of_all_sizes_train_side_by_side(train, kind):
    sizes = [3, 11, 1, 8, 4]
    found, theta = train([Client(k, data(size, k)) for k, size in enumerate(sizes)], gradient=kind)
    for k, size in enumerate(sizes):
        batches = batches_of(data(size, k), 4, [stream(0, "batches", k, 7).permutation(size)])
        divisor = len(batches) if kind == "epoch-mean" else 1
        torch.testing.assert_close(found[k], (theta - sgd(theta, batches, 0.5)) / 0.5 / divisor)


def test_fixed_steps_go_around_small_data_again(train):
    samples = data(6)
    found, theta = train([Client(3, samples)], gradient="steps", local_steps=5)
    rng = stream(0, "batches", 3, 7)
    batches = batches_of(samples, 4, [rng.permutation(6) for _ in range(3)])[:5]
    assert [len(batch.y) for batch in batches] == [4, 2, 4, 2, 4]
    torch.testing.assert_close(found[0], (theta - sgd(theta, batches, 0.5)) / 0.5)


def test_one_mini_batch_is_its_gradient(train):
    samples = data(10)
    found, theta = train([Client(3, samples)], gradient="batch")
    batch = samples.at(torch.from_numpy(stream(0, "batches", 3, 7).permutation(10)[:4]))
    torch.testing.assert_close(found[0], theta - sgd(theta, [batch], 1.0))


def test_the_local_step_may_differ_from_the_common_one(train):
    samples = data(10)
    found, theta = train([Client(3, samples)], gradient="epoch-sum", local_step_size=0.1)
    end = sgd(theta, batches_of(samples, 4, [stream(0, "batches", 3, 7).permutation(10)]), 0.1)
    torch.testing.assert_close(found[0], (theta - end) / 0.1)


def test_a_client_smaller_than_the_batch_uses_all_its_data(train):
    samples = data(5)
    found, theta = train([Client(0, samples)], gradient="batch", batch_size=99)
    torch.testing.assert_close(found[0], theta - sgd(theta, [samples], 1.0))


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_a_malicious_gradient_is_mixed_by_its_level(train, level):
    own, poisoned = data(10), Samples(data(10).x, torch.ones(10, dtype=torch.int64))
    (honest, _), (evil, _) = (train([Client(2, samples)]) for samples in (own, poisoned))
    found, _ = train([Client(0, own), Client(2, own, poisoned, level), Client(1, own)])
    torch.testing.assert_close(found[1], ((1 - level) * honest + level * evil)[0])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 12, 16)])
def test_layout_changes_models_that_pool_only_to_rounding(shape):
    """Gradients and losses of the built-in CNN against the model called plainly on contiguous images."""
    rng = torch.Generator().manual_seed(0)
    samples = Samples(torch.randn(20, *shape, generator=rng), torch.randint(10, (20,), generator=rng))
    training = Training(gradient="batch", batch_size=20, step_size=0.1)
    factory = lambda: models.resolve("cnn").build(shape, 10)  # noqa: E731
    engine = Loop(Work(factory, [Client(0, samples)], training, 0, CPU, nn.functional.cross_entropy, LocalRule()))
    theta = engine.initial()
    found, right = engine.gradients(theta, 1)[0], engine.hits(theta, samples)[0]
    model = engine.use(theta[0])
    loss = nn.functional.cross_entropy(model(samples.x), samples.y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(engine.batch_loss(theta[0], engine.work.clients[0], 1), loss.detach())
    assert torch.equal(right, model(samples.x).argmax(1) == samples.y)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_are_pooled_reach_the_model_with_channels_innermost(channels):
    seen = []

    def factory():
        model = nn.Sequential(nn.Conv2d(channels, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * 3 * 4, 2))
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].stride()))
        return model

    samples = Samples(torch.randn(5, channels, 8, 10), torch.tensor([0, 1, 0, 1, 1]))
    training = Training(batch_size=4, step_size=0.1)
    engine = Loop(Work(factory, [Client(0, samples)], training, 0, CPU, nn.functional.cross_entropy, LocalRule()))
    engine.gradients(engine.initial(), 1)
    engine.hits(engine.initial(), samples)
    assert seen == [(80 * channels, 1, 10 * channels, channels)] * 3


@pytest.mark.parametrize("kind", sorted(PLAIN, key=lambda kind: kind.__name__))
def test_quiet_layers_draw_nothing(kind):
    arguments = {nn.Linear: (6, 2), nn.Conv2d: (4, 2, 3), nn.MaxPool2d: (2,), nn.GroupNorm: (2, 4), nn.LayerNorm: (6,)}
    layer = kind(*arguments.get(kind, ())).train()
    before = torch.get_rng_state()
    layer(torch.ones(3, 4, 5, 6, requires_grad=True)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.RReLU()])
def test_what_a_model_draws_depends_on_the_client_and_the_round_alone(layer):
    def factory():
        return nn.Sequential(nn.Linear(3, 8), layer, nn.Linear(8, 2)).double()

    clients = [Client(k, data(10)) for k in range(2)]
    training = Training(gradient="batch", batch_size=99, step_size=0.5)
    engine = Loop(Work(factory, clients, training, 0, CPU, nn.functional.cross_entropy, LocalRule()))
    theta = engine.initial()
    first = engine.gradients(theta, 1)
    torch.rand(5)
    assert torch.equal(engine.gradients(theta, 1), first)
    assert not torch.allclose(first[0], first[1])
    assert not torch.allclose(engine.gradients(theta, 2), first)


class Viewing(nn.Module):
    """Flattens by ``view``, which takes one order in memory only, and changes a buffer in training."""

    def __init__(self):
        super().__init__()
        self.convolution, self.pool, self.linear = nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Linear(27, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.linear(self.pool(self.convolution(x)).view(len(x), -1)) / self.seen


def images(seed):
    rng = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(6, 2, 8, 8, generator=rng), torch.randint(2, (6,), generator=rng))


def loop(model, clients):
    training = Training(batch_size=4, step_size=0.5)
    return Loop(Work(model, clients, training, 0, CPU, nn.functional.cross_entropy, LocalRule()))


def test_a_users_module_gets_images_as_they_are_and_finds_its_buffers_as_they_were():
    alone, beside = loop(Viewing, [Client(1, images(1))]), loop(Viewing, [Client(0, images(0)), Client(1, images(1))])
    theta = alone.initial()
    assert torch.equal(beside.gradients(theta.expand(2, -1), 1)[1], alone.gradients(theta, 1)[0])
    assert torch.equal(alone.gradients(theta, 1), alone.gradients(theta, 1))


def test_two_engines_may_work_with_one_module():
    model = linear()
    first, second = (loop(lambda: model, [Client(0, data(10, seed))]) for seed in (0, 1))
    theta = first.initial()
    expected = first.gradients(theta, 1)
    second.gradients(theta + 1, 1)
    assert torch.equal(first.gradients(theta, 1), expected)
