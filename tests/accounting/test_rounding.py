"""A shown figure never promises more than the figure behind it."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from coinflower.accounting.rounding import rounded_down, rounded_up

values = st.floats(min_value=-1e300, max_value=1e300, allow_nan=False, allow_subnormal=False)
digits = st.integers(min_value=1, max_value=12)


def _number(text: str) -> float:
    return float(text.replace("−", "-"))


@given(values, digits)
@example(0.29739846, 6)
@example(0.1, 4)
@example(9.99995, 4)
def test_never_below_and_never_above(value: float, digits: int) -> None:
    assert _number(rounded_down(value, digits)) <= value <= _number(rounded_up(value, digits))


@given(values, digits)
def test_within_one_unit_of_the_last_digit(value: float, digits: int) -> None:
    up, down = _number(rounded_up(value, digits)), _number(rounded_down(value, digits))
    assert up - down <= abs(value) * 10.0 ** (1 - digits) * (1 + 1e-9)


@given(st.integers(min_value=0, max_value=9999), st.integers(min_value=-8, max_value=8))
def test_a_figure_that_fits_is_shown_as_it_was_stated(whole: int, exponent: int) -> None:
    stated = float(f"{whole}e{exponent}")
    assert _number(rounded_up(stated)) == _number(rounded_down(stated)) == stated


def test_the_signs_and_the_ends_of_the_line() -> None:
    assert rounded_up(-0.12345) == "−0.1234"
    assert rounded_down(-0.12345) == "−0.1235"
    assert rounded_up(0.0) == rounded_down(0.0) == "0"
    assert rounded_up(math.inf) == "∞"
    assert rounded_down(-math.inf) == "−∞"
    assert rounded_up(math.nan) == "nan"
