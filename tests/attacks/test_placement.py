"""Malicious clients are placed by the seed or by name."""

import pytest

from purifl.attacks import attacks
from purifl.errors import ConfigError
from purifl.randomness import stream


def place(clients=10, seed=0, **params):
    return attacks.resolve({"name": "backdoor-9", **params}).place(clients, stream(seed, "malicious clients"))


def test_a_ratio_is_a_number_of_clients_chosen_by_the_seed():
    assert [len(place(malicious_ratio=r)) for r in (0, 0.1, 0.2, 0.25, 0.8, 0.9)] == [0, 1, 2, 3, 8, 9]
    assert place() == place()
    assert len({tuple(place(seed=s)) for s in range(10)}) > 3


def test_named_clients():
    assert place(malicious_clients=[7, 2], malicious_ratio=0.5) == [2, 7]


def test_nobody_is_malicious_without_an_attack():
    assert attacks.resolve({"name": "none", "malicious_ratio": 0.5}).place(10, stream(0, "malicious clients")) == []


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"malicious_ratio": 0.01}, "of 10 clients that is 0"),
        ({"malicious_ratio": 0.97}, "of 10 clients that is 10"),
        ({"malicious_clients": [10]}, "from 0 to 9"),
        ({"malicious_clients": [-1]}, "from 0 to 9"),
        ({"malicious_clients": [1, 1]}, "distinct"),
        ({"malicious_clients": list(range(10))}, "at least one"),
        ({"malicious_clients": list(range(12))}, "from 0 to 9"),
        ({"malicious_ratio": 1.0}, "less than 1"),
        ({"malicious_level": 1.5}, "less than or equal to 1"),
    ],
)
def test_impossible_placements_are_refused(params, words):
    with pytest.raises(ConfigError, match=words):
        place(**params)
