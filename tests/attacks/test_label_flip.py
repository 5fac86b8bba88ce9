import torch

from purifl.attacks import attacks
from purifl.data import Samples, datasets
from purifl.randomness import stream


def flip():
    data = datasets.resolve("digits").load()
    return data, attacks.resolve("label-flip").aim(data, stream(0, "attack"))


def test_each_label_becomes_its_mirror_image_and_inputs_stay():
    data, poison = flip()
    flipped = poison.corrupt(data.train)
    assert [(int(a), int(b)) for a, b in zip(data.train.y[:50], flipped.y[:50], strict=True)] == [
        (int(a), 9 - int(a)) for a in data.train.y[:50]
    ]
    assert torch.equal(flipped.x, data.train.x)
    assert flipped.y.dtype == data.train.y.dtype


def test_flipping_twice_changes_nothing():
    data, poison = flip()
    assert torch.equal(poison.corrupt(poison.corrupt(data.test)).y, data.test.y)


def test_with_an_odd_number_of_classes_the_middle_one_stays():
    from dataclasses import replace

    data, _ = flip()
    few = replace(data, classes=3)
    flipped = (
        attacks.resolve("label-flip").aim(few, stream(0, "attack")).corrupt(Samples(data.train.x[:3], torch.arange(3)))
    )
    assert flipped.y.tolist() == [2, 1, 0]


def test_it_is_untargeted():
    _, poison = flip()
    assert poison.probe is None
    assert poison.genuine is None
