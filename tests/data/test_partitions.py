import logging
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from purifl.data.partitions import partitions
from purifl.errors import ConfigError

MNIST_LIKE = np.random.default_rng(99).integers(0, 10, 60_000)


def split(spec, labels, clients, seed=0):
    return partitions.resolve(spec).split(np.asarray(labels), clients, np.random.default_rng(seed))


def assert_exact_cover(parts, total):
    assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(total))


def classes_of(labels, parts):
    return [sorted(set(np.asarray(labels)[part].tolist())) for part in parts]


label_vectors = st.builds(
    lambda seed, size, values: np.random.default_rng(seed).choice(np.array(values), size=size),
    st.integers(0, 2**32 - 1),
    st.integers(1, 1500),
    st.lists(st.integers(-3, 200), min_size=1, max_size=12, unique=True),
)
dirichlet_specs = st.builds(
    lambda name, alpha: {"name": name, "alpha": alpha},
    st.sampled_from(["label-dir", "quantity-dir"]),
    st.floats(0.01, 100),
)
specs = st.one_of(st.sampled_from(["iid", "non-overlap"]), dirichlet_specs)


@given(specs, label_vectors, st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_every_partition_is_an_exact_cover(spec, labels, clients, seed):
    try:
        parts = split(spec, labels, clients, seed)
    except ConfigError:
        reject()
    assert len(parts) == clients
    assert_exact_cover(parts, len(labels))
    assert min(map(len, parts)) >= (10 if isinstance(spec, dict) else 1)


@given(st.integers(1, 500), st.integers(1, 500))
@settings(max_examples=50, deadline=None)
def test_iid_sizes_differ_by_at_most_one(total, clients):
    clients = min(total, clients)
    sizes = [len(part) for part in split("iid", np.zeros(total, dtype=np.int64), clients)]
    assert max(sizes) - min(sizes) <= 1


def test_iid_mixes_the_classes():
    labels = np.repeat(np.arange(10), 100)
    assert classes_of(labels, split("iid", labels, 5)) == [list(range(10))] * 5


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        (10, [[k] for k in range(10)]),
        (5, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]),
        (3, [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        (15, [[i % 10] for i in range(15)]),
        (20, [[i % 10] for i in range(20)]),
    ],
)
def test_non_overlap_gives_each_client_its_own_classes(clients, expected):
    labels = MNIST_LIKE[:5000]
    parts = split("non-overlap", labels, clients)
    assert_exact_cover(parts, len(labels))
    assert classes_of(labels, parts) == expected


def test_non_overlap_shares_a_class_evenly_and_shuffled():
    labels = np.repeat(np.arange(10), 101)
    parts = split("non-overlap", labels, 25)
    assert [len(parts[i]) for i in (0, 10, 20)] == [34, 34, 33]
    assert [len(parts[i]) for i in (7, 17)] == [51, 50]
    assert np.any(np.diff(parts[0]) < 0)


def test_non_overlap_takes_the_labels_that_are_there():
    labels = [7, 3, 3, 7, 200]
    assert classes_of(labels, split("non-overlap", labels, 3)) == [[3], [7], [200]]


def slow_label_dir(labels, clients, alpha, rng):
    """Label-dir one sample at a time, with the generator called in the same order."""
    total = len(labels)
    classes = sorted(set(labels.tolist()))
    while True:
        held, ends = [0] * clients, []
        for k, draw in zip(classes, rng.dirichlet([alpha] * clients, size=len(classes)), strict=True):
            size = int((labels == k).sum())
            shares = [float(p) if held[j] < total / clients else 0.0 for j, p in enumerate(draw)]
            if sum(shares) == 0:
                shares = [1.0 if held[j] < total / clients else 0.0 for j in range(clients)]
            running, whole, row = 0.0, 0.0, []
            for share in shares:
                whole += share
            for share in shares:
                running += share
                row.append(int(running / whole * size))
            for j in range(clients):
                got = row[j] - (row[j - 1] if j else 0)
                assert got == 0 or held[j] < total / clients
                held[j] += got
            ends.append(row)
        if min(held) >= 10:
            break
    clients_hold = [[] for _ in range(clients)]
    for k, row in zip(classes, ends, strict=True):
        order = rng.permutation([i for i in range(total) if labels[i] == k])
        for position, sample in enumerate(order):
            clients_hold[next(j for j in range(clients) if position < row[j])].append(sample)
    return [rng.permutation(part) for part in clients_hold]


@pytest.mark.parametrize(("clients", "alpha"), [(1, 0.1), (4, 0.1), (10, 0.1), (12, 0.02), (20, 0.5), (30, 5.0)])
def test_label_dir_matches_the_slow_procedure(clients, alpha):
    labels = MNIST_LIKE[:2000]
    for seed in range(3):
        fast = split({"name": "label-dir", "alpha": alpha}, labels, clients, seed)
        slow = slow_label_dir(labels, clients, alpha, np.random.default_rng(seed))
        for a, b in zip(fast, slow, strict=True):
            np.testing.assert_array_equal(a, b)


class Draws:
    """A generator whose Dirichlet draws are given and whose shuffles do nothing."""

    def __init__(self, *draws):
        self.draws = np.array(draws, dtype=float)

    def dirichlet(self, alpha, size):
        assert self.draws.shape == (size, len(alpha))
        return self.draws

    def permutation(self, values):
        return np.array(values)


def test_label_dir_gives_nothing_to_a_client_at_the_cap():
    labels = np.repeat([0, 1], [40, 20])
    rng = Draws([0.5, 0.5, 0.0], [0.45, 0.45, 0.1])  # the cap is 20, so clients 0 and 1 are full
    parts = partitions.resolve("label-dir").split(labels, 3, rng)
    assert [part.tolist() for part in parts] == [list(range(20)), list(range(20, 40)), list(range(40, 60))]


def test_label_dir_shares_evenly_when_the_cap_leaves_no_probability():
    labels = np.repeat([0, 1], [60, 60])
    rng = Draws([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    assert [len(part) for part in partitions.resolve("label-dir").split(labels, 4, rng)] == [60, 20, 20, 20]


@pytest.mark.parametrize("name", ["label-dir", "quantity-dir"])
@pytest.mark.parametrize("clients", [5, 10, 40, 80])
def test_dirichlet_partitions_of_sixty_thousand_are_quick_and_leave_nobody_short(name, clients):
    start = time.perf_counter()
    parts = split(name, MNIST_LIKE, clients)
    assert time.perf_counter() - start < 2
    assert_exact_cover(parts, 60_000)
    assert min(map(len, parts)) >= 10


def test_label_dir_skews_labels_and_large_alpha_does_not():
    skewed = split("label-dir", MNIST_LIKE, 10)
    even = split({"name": "label-dir", "alpha": 1e4}, MNIST_LIKE, 10)

    def largest_class(part):
        return np.bincount(MNIST_LIKE[part], minlength=10).max() / len(part)

    assert np.mean([largest_class(part) for part in skewed]) > 0.4
    assert max(largest_class(part) for part in even) < 0.15


def test_quantity_dir_says_when_it_guarantees_the_minimum_first(caplog):
    with caplog.at_level(logging.WARNING, logger="purifl"):
        parts = split("quantity-dir", MNIST_LIKE, 40)
    assert len(caplog.records) == 1
    assert "40 clients" in caplog.text
    assert "alpha = 0.1" in caplog.text
    assert min(map(len, parts)) >= 10
    assert max(map(len, parts)) > 5_000


def test_quantity_dir_accepts_a_draw_where_one_passes(caplog):
    with caplog.at_level(logging.WARNING, logger="purifl"):
        for seed in range(5):
            sizes = [len(part) for part in split("quantity-dir", MNIST_LIKE, 10, seed)]
            assert min(sizes) >= 10
    assert not caplog.records


def test_quantity_dir_cuts_at_the_first_accepted_draw():
    rng = np.random.default_rng(3)
    order = rng.permutation(2000)
    draws = rng.dirichlet([0.3] * 5, size=1000)
    share = next(p for p in draws if min(p) * 2000 >= 10)
    expected = np.split(order, [int(share[: j + 1].sum() * 2000) for j in range(4)])
    for a, b in zip(split({"name": "quantity-dir", "alpha": 0.3}, np.zeros(2000), 5, seed=3), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "clients"), [("iid", 7), ("non-overlap", 15), ("label-dir", 7), ("quantity-dir", 7)])
def test_the_generator_decides(name, clients):
    labels = MNIST_LIKE[:3000]

    def flat(seed):
        return np.concatenate(split(name, labels, clients, seed))

    np.testing.assert_array_equal(flat(1), flat(1))
    assert not np.array_equal(flat(1), flat(2))


@pytest.mark.parametrize(
    ("name", "labels", "clients", "largest"),
    [
        ("iid", np.zeros(5, dtype=int), 6, 5),
        ("iid", np.zeros(5, dtype=int), 0, 5),
        ("label-dir", np.zeros(99, dtype=int), 10, 9),
        ("quantity-dir", np.zeros(99, dtype=int), 10, 9),
        ("non-overlap", np.repeat([0, 1, 2], [9, 2, 9]), 8, 7),
        ("non-overlap", np.array([], dtype=int), 1, 0),
    ],
)
def test_too_many_clients_are_refused_with_the_largest_number(name, labels, clients, largest):
    with pytest.raises(ConfigError, match=f"at most {largest} clients") as caught:
        split(name, labels, clients)
    assert (caught.value.field, caught.value.value) == ("clients", clients)
    if largest:
        assert_exact_cover(split({"name": name, "alpha": 1e6} if "dir" in name else name, labels, largest), len(labels))


def test_label_dir_gives_up_and_says_what_would_work():
    with pytest.raises(ConfigError, match=r"fewer clients or a larger alpha") as caught:
        split("label-dir", np.zeros(2000, dtype=int), 40)
    assert (caught.value.field, caught.value.value) == ("clients", 40)


@pytest.mark.parametrize("alpha", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["label-dir", "quantity-dir"])
def test_alpha_has_to_be_positive_and_finite(name, alpha):
    with pytest.raises(ConfigError, match=r"partition\.alpha"):
        partitions.resolve({"name": name, "alpha": alpha})


def test_the_registry_describes_them():
    assert list(partitions) == ["iid", "label-dir", "non-overlap", "quantity-dir"]
    for entry in partitions.describe():
        assert entry["summary"].endswith(".")
        assert entry["reference"]
