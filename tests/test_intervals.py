import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from purifl.intervals import estimate

VALUES = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=2, max_size=20)


@given(VALUES)
def test_the_interval_is_students(values):
    mean = sum(values) / len(values)
    error = (sum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values)) ** 0.5
    low, high = t.interval(0.95, len(values) - 1, loc=mean, scale=error or 1e-300)
    found = estimate(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(mean, rel=1e-6, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)


def test_one_run_has_no_interval():
    found = estimate([0.5])
    assert (found.mean, found.half, found.n) == (0.5, None, 1)
    assert found.low == found.high == 0.5
