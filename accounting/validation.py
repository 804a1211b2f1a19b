"""One-line checks that name the field, the value and what is allowed."""

from __future__ import annotations

import math
from numbers import Integral, Real

from coinflower.accounting.errors import UserError


def require_probability(field: str, value: float) -> None:
    """Refuse anything outside (0, 1]."""
    if not isinstance(value, Real) or not 0 < value <= 1:
        raise UserError(f"{field} = {value} is not a probability in (0, 1].")


def require_positive(field: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    if not isinstance(value, Real) or not (value > 0 and math.isfinite(value)):
        raise UserError(f"{field} = {value} must be a finite number above 0.")


def require_epsilon(value: float) -> None:
    """Refuse a negative, infinite or undefined ε."""
    if not isinstance(value, Real) or not (value >= 0 and math.isfinite(value)):
        raise UserError(f"epsilon = {value} must be a finite number of at least 0.")


def require_delta(value: float) -> None:
    """Refuse anything outside (0, 1)."""
    if not isinstance(value, Real) or not 0 < value < 1:
        raise UserError(f"delta = {value} must lie strictly between 0 and 1.")


def require_cap(value: float) -> None:
    """Refuse a cap below one clip norm; ∞ is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 1:
        raise UserError(f"cap = {value} must be at least 1 clip norm; leave it out for no cap.")


def require_count(field: str, value: int, *, least: int) -> None:
    """Refuse anything but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UserError(f"{field} = {value} must be an integer of at least {least}.")
