"""The cap on a client's sum: never exceeded, nothing changed below it, no difference grown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coinflower.learning import FixedPoint, cap_factors, capped_sum, fine_cell

NUMBERS = st.floats(-1e6, 1e6, width=32)
SUMS = arrays.arrays(np.float32, st.integers(0, 40), elements=NUMBERS)
CAP_NORMS = st.floats(1e-12, 1e12)


def norm(vector: np.ndarray) -> float:
    return math.sqrt(math.fsum(float(x) ** 2 for x in vector))


@given(SUMS, CAP_NORMS)
def test_no_sum_is_longer_than_the_cap(total: np.ndarray, cap_norm: float) -> None:
    capped = capped_sum(total, cap_norm)
    assert capped.dtype == np.float32
    assert norm(capped) <= cap_norm


@given(SUMS, CAP_NORMS)
def test_no_sum_is_longer_than_the_cap_once_it_is_counted(
    total: np.ndarray, cap_norm: float
) -> None:
    counted = FixedPoint.of(capped_sum(total, cap_norm), fine_cell(cap_norm))
    assert norm(counted.counts * counted.cell) <= cap_norm


@given(SUMS, st.floats(1.0 + 1e-6, 1e6))
def test_a_sum_below_the_cap_stays_as_it_is(total: np.ndarray, slack: float) -> None:
    cap_norm = max(norm(total), 1e-12) * slack
    assert np.array_equal(capped_sum(total, cap_norm), total)
    assert np.array_equal(capped_sum(total, math.inf), total)


@given(SUMS, CAP_NORMS)
def test_a_capped_sum_keeps_its_direction_and_reaches_the_cap(
    total: np.ndarray, cap_norm: float
) -> None:
    length = norm(total)
    capped = capped_sum(total, cap_norm)
    wanted = total.astype(np.float64) * min(1.0, cap_norm / length if length else 1.0)
    assert norm(capped - wanted) <= 1e-6 * min(cap_norm, length) + 1e-40


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(*[_fixed(n)] * 2)), CAP_NORMS)
def test_no_difference_is_lengthened(pair: tuple[np.ndarray, np.ndarray], cap_norm: float) -> None:
    one, other = pair
    before = norm(one.astype(np.float64) - other)
    after = norm(capped_sum(one, cap_norm).astype(np.float64) - capped_sum(other, cap_norm))
    # The rounding to single precision of either, which is none if neither is capped.
    rounding = 2.0**-23 * min(cap_norm, max(norm(one), norm(other)))
    assert after <= before * (1 + 1e-12) + rounding


def _fixed(size: int) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.float32, size, elements=NUMBERS)


def test_a_million_numbers_that_round_upwards_stay_within_the_cap() -> None:
    """The length that rounding adds is largest if every number is rounded up."""
    up = np.float32(1) + np.float32(2.0**-23)
    total = np.full(1_000_000, up, np.float32)
    for cap_norm in np.linspace(1, 900, 50):
        assert norm(capped_sum(total, float(cap_norm))) <= cap_norm


def test_the_given_sum_is_left_alone() -> None:
    total = np.array([3, 4], np.float32)
    assert capped_sum(total, 1.0).tolist() == pytest.approx([0.6, 0.8])
    assert total.tolist() == [3, 4]


def test_factors_are_those_of_each_sum() -> None:
    norms = np.array([0.0, 1.0, 2.0, 8.0])
    assert cap_factors(norms, 4.0).tolist() == pytest.approx([1, 1, 1, 0.5])
    assert cap_factors(norms, math.inf).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("cap_norm", [0.0, -1.0, math.nan, -math.inf])
def test_a_cap_that_bounds_nothing_is_refused(cap_norm: float) -> None:
    with pytest.raises(ValueError, match="cap_norm ="):
        capped_sum(np.ones(2, np.float32), cap_norm)
