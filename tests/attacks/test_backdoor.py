"""Triggers stand exactly where they are specified, and attack accuracy counts the right images."""

import pytest
import torch

from purifl.attacks import attacks
from purifl.attacks.backdoor import NINE, ONE, stamp
from purifl.data import DataSet, Samples, datasets
from purifl.errors import ConfigError
from purifl.randomness import stream

PATTERN = torch.tensor([[1.0, 0, 1], [-1, 1, -1], [-1, -1, 0], [-1, 1, -1], [1, 0, 1]])
"""The 5 × 3 patch; −1 marks cells that stay as they are."""


def images(channels=1, size=28, mean=(0.0,), std=(1.0,), classes=10):
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(20, channels, size, size, generator=rng)
    samples = Samples(x, torch.arange(20) % classes)
    return DataSet("made up", samples, samples, classes, mean, std)


def aim(name, data, **params):
    return attacks.resolve({"name": name, **params}).aim(data, stream(0, "attack"))


@pytest.mark.parametrize(("size", "top", "left"), [(28, 3, 23), (32, 3, 23), (8, 3, 5), (16, 3, 13), (6, 1, 3)])
def test_nine_cells_of_a_five_by_three_patch(size, top, left):
    data = images(size=size)
    triggered = stamp(data.train.x, data, NINE)
    patch = triggered[:, 0, top : top + 5, left : left + 3]
    written = PATTERN >= 0
    assert int(written.sum()) == 9
    assert (patch[:, written] == PATTERN[written]).all()
    outside = torch.ones(size, size, dtype=torch.bool)
    outside[top : top + 5, left : left + 3] = ~written
    assert torch.equal(triggered[..., outside], data.train.x[..., outside])


def test_one_pixel():
    data = images()
    changed = (stamp(data.train.x, data, ONE) != data.train.x).any(0)[0]
    assert changed.nonzero().tolist() == [[3, 23]]
    assert (stamp(data.train.x, data, ONE)[:, 0, 3, 23] == 1).all()


def test_raw_values_are_normalised_in_every_channel():
    data = images(3, 32, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 1.0))
    triggered = stamp(data.train.x, data, NINE)
    torch.testing.assert_close(triggered[0, :, 3, 23], torch.tensor([1.8, 3.2, 0.7]))
    torch.testing.assert_close(triggered[0, :, 3, 24], torch.tensor([-0.2, -0.8, -0.3]))


def test_the_originals_are_untouched():
    data = images()
    before = data.train.x.clone()
    aim("backdoor-9", data).corrupt(data.train)
    assert torch.equal(data.train.x, before)


def test_every_sample_gets_the_trigger_and_the_target_label():
    poison = aim("backdoor-9", images(), target=3)
    poisoned = poison.corrupt(images().train)
    assert (poisoned.y == 3).all()
    assert torch.equal(poisoned.x, stamp(images().train.x, images(), NINE))


def test_the_probe_is_the_triggered_test_split_with_true_targets_marked():
    data = images()
    poison = aim("backdoor-1", data)
    assert torch.equal(poison.probe.x, stamp(data.test.x, data, ONE))
    assert (poison.probe.y == 8).all()
    assert torch.equal(poison.genuine, data.test.y == 8)


def test_in_text_the_trigger_is_in_the_rarest_features():
    x = torch.zeros(12, 15)
    for feature in range(15):
        x[: (feature * 7) % 13, feature] = 0.5  # present in 0, 7, 1, 8, 2, 9, 3, 10, 4, 11, 5, 12, 6, 0, 7 samples
    samples = Samples(x, torch.arange(12) % 10)
    data = DataSet("words", samples, samples, 10)
    one = stamp(x, data, ONE)
    assert (one != x).any(0).nonzero().flatten().tolist() == [0]
    nine = stamp(x, data, NINE)
    rarest = [0, 13, 2, 4, 6, 8, 10, 12, 1]
    assert torch.equal(nine[:, rarest], torch.tensor([v for _, _, v in NINE]).expand(12, 9))
    others = [k for k in range(15) if k not in rarest]
    assert torch.equal(nine[:, others], x[:, others])


def test_a_target_that_is_no_label_is_refused():
    with pytest.raises(ConfigError, match="labels 0 to 4"):
        aim("backdoor-9", images(classes=5), target=8)


def test_images_too_small_for_the_trigger_are_refused():
    with pytest.raises(ConfigError, match="5 × 5"):
        aim("backdoor-9", images(size=4))


def test_digits_trigger_lies_in_the_image():
    data = datasets.resolve("digits").load()
    raw = stamp(data.test.x, data, NINE) * data.std[0] + data.mean[0]
    patch = raw[:, 0, 3:8, 5:8]
    written = PATTERN >= 0
    torch.testing.assert_close(patch[:, written], PATTERN[written].expand(len(raw), 9), rtol=0, atol=1e-6)


def test_with_sources_only_samples_of_these_labels_are_poisoned_and_probed():
    data = images()
    poison = aim("backdoor-9", data, sources=[0, 3])
    corrupted, chosen = poison.corrupt(data.train), (data.train.y == 0) | (data.train.y == 3)
    assert torch.equal(corrupted.x[chosen], stamp(data.train.x, data, NINE)[chosen])
    assert torch.equal(corrupted.x[~chosen], data.train.x[~chosen])
    assert (corrupted.y[chosen] == 8).all()
    assert torch.equal(corrupted.y[~chosen], data.train.y[~chosen])
    assert torch.equal(poison.probe.x, stamp(data.test.x, data, NINE)[chosen])
    assert (poison.probe.y == 8).all()
    assert not poison.genuine.any()


@pytest.mark.parametrize("sources", [[10], [-1, 2]])
def test_sources_must_be_labels_of_the_data(sources):
    with pytest.raises(ConfigError, match=r"attack\.sources.*labels 0 to 9"):
        aim("backdoor-9", images(), sources=sources)
