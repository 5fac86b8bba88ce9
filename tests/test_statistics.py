import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from purifl.statistics import estimate

VALUES = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=20)


@given(VALUES)
def test_the_interval_is_students(values):
    mean = sum(values) / len(values)
    error = (sum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values)) ** 0.5
    found = estimate(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.half == pytest.approx(t.ppf(0.975, len(values) - 1) * error, rel=1e-6, abs=1e-6)


def test_one_run_has_no_interval_and_a_missing_number_no_mean():
    assert estimate([0.5]) == (0.5, None, 1)
    for values in ([], [None], [0.5, None], [0.5, float("nan")]):
        assert estimate(values) is None
