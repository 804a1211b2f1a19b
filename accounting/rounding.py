"""Figures as people read them, rounded so that no digit promises more than was proved.

A shown ε, δ or σ is never below the figure behind it, so whoever copies it gets the guarantee that
stands beside it. What is left of a budget, and a lower bound, is never above.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a figure to that many significant digits, never smaller than it is.

    For ε, δ, a noise multiplier and everything else that must hold.
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """Return a figure to that many significant digits, never larger than it is.

    For lower bounds, and for what is left of a budget.
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, how: str) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    # The shortest decimal that names the number: a stated 0.1 stays 0.1, though as a binary
    # fraction it is a little more.
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1) if value else Decimal(1)
    text = f"{float(exact.quantize(step, rounding=how)):.{digits}g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text
