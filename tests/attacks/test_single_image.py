import torch

from purifl.attacks import attacks
from purifl.data import datasets
from purifl.randomness import stream


def test_one_test_image_repeated_with_one_wrong_label():
    data = datasets.resolve("digits").load()
    poison = attacks.resolve("single-image").aim(data, stream(3, "attack"))
    poisoned = poison.corrupt(data.train.at(slice(0, 7)))
    assert len(poison.probe.y) == 1
    where = (data.test.x == poison.probe.x).flatten(1).all(1).nonzero().flatten()
    assert len(where) == 1
    assert data.test.y[where] != poison.probe.y
    assert not poison.genuine.any()
    assert torch.equal(poisoned.x, poison.probe.x.expand(7, -1, -1, -1))
    assert (poisoned.y == poison.probe.y).all()


def test_the_seed_chooses_image_and_label():
    data = datasets.resolve("digits").load()
    chosen = [attacks.resolve("single-image").aim(data, stream(seed, "attack")).probe for seed in range(20)]
    again = attacks.resolve("single-image").aim(data, stream(0, "attack")).probe
    assert torch.equal(chosen[0].x, again.x)
    assert len({int(c.y) for c in chosen}) > 3
    assert len({c.x.sum().item() for c in chosen}) > 10
