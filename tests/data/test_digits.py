import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from purifl.data import datasets
from purifl.data.check import check


@pytest.fixture(scope="module")
def digits():
    return datasets.resolve("digits").load()


def test_split_is_a_stratified_fifth(digits):
    assert (len(digits.train.y), len(digits.test.y), digits.classes, digits.shape) == (1437, 360, 10, (1, 8, 8))
    share = torch.bincount(digits.test.y) / torch.bincount(torch.cat([digits.train.y, digits.test.y]))
    assert torch.all((share - 0.2).abs() < 0.01)


def test_split_shares_no_sample_and_loses_none(digits):
    (mean,), (std,) = digits.mean, digits.std
    back = torch.cat([digits.train.x, digits.test.x]) * std + mean
    ours = np.sort((back.flatten(1) * 16).round().numpy() @ np.arange(1.0, 65.0))
    theirs = np.sort(load_digits().data @ np.arange(1.0, 65.0))
    np.testing.assert_allclose(ours, theirs, atol=0.5)


def test_training_split_is_normalised_to_raw_values_in_the_unit_interval(digits):
    assert digits.train.x.dtype == torch.float32
    assert digits.train.y.dtype == torch.int64
    assert digits.train.x.mean().abs() < 1e-5
    assert (digits.train.x.std(unbiased=False) - 1).abs() < 1e-5
    raw = digits.train.x * digits.std[0] + digits.mean[0]
    assert raw.min().abs() < 1e-6
    assert (raw.max() - 1).abs() < 1e-6


def test_two_loads_are_equal_whatever_the_global_seed(digits):
    torch.manual_seed(3)
    np.random.seed(3)
    again = datasets.resolve("digits").load()
    assert torch.equal(again.train.x, digits.train.x)
    assert torch.equal(again.test.y, digits.test.y)


def test_check_needs_no_files(tmp_path):
    report = check("digits", tmp_path)
    assert (report.files, report.train, report.test, report.classes) == ((), 1437, 360, 10)
