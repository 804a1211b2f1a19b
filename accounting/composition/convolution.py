"""Sums of many independent losses, none of whose probabilities is rounded down.

The transform of a sum is the product of the transforms, so any number of equal losses is one power.
See docs/mathematics.md, "Many rounds".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from coinflower.accounting import patience
from coinflower.accounting.analyses.gaussian_excess import log_sum
from coinflower.accounting.composition.losses import Losses

Array = npt.NDArray[np.float64]
Parts = Sequence[tuple[Losses, int]]

# Chernoff's bound is taken at so many orders, around those that are best for sums that are close
# to normal and for sums of rare large losses.
_ORDERS = 48
_ROUNDING = 2.0**-53
# Roundings that a number may gather: in one stage of a fast transform, in one factor of a power,
# and (with exponents of up to 10⁵) where probabilities are scaled back.
_PER_STAGE = 4.0
_PER_FACTOR = 8.0
_SCALING = 1e6
# Errors of all sums together that are at most so many times what is cut off anyway hardly show, and
# the tilted sums can be saved.
_ERRORS_PER_TRUNCATION = 10.0


def add_up(parts: Parts, truncation: float, *, room: int = 1) -> Losses:
    """Return the sum of independent losses on one lattice.

    Args:
        parts: Losses, and how often each counts, at least once.
        truncation: Sums in the far tails, of this probability at most, are cut off; that
            probability is added to the infinite loss.
        room: How many times as wide as the sums the transforms are. Tilted sums reach further, and
            what wraps around makes the far tail a little heavier than it is.
    """
    low, high, order = _window(parts, truncation)
    index = np.arange(low, high + 1)
    widest = max(losses.mass.size for losses, _ in parts)
    # Sums outside the window wrap around into it, which only adds to finite losses.
    size = scipy.fft.next_fast_len(max(room * index.size, widest), real=True)
    plain = _convolve(parts, size, 0.0, index)
    finite = sum(count * math.log1p(-losses.infinite) for losses, count in parts)
    infinite = truncation - math.expm1(finite)
    step = parts[0][0].step
    lowest = low + sum(losses.lowest * count for losses, count in parts)
    if plain.errors_norm * math.sqrt(index.size) <= _ERRORS_PER_TRUNCATION * truncation:
        is_tail: npt.NDArray[np.bool_] = np.zeros(index.size, dtype=np.bool_)
        highest = plain.mass
    else:
        # Tilting makes errors small in the upper tail. Below it they add up, of either sign.
        tilted = _convolve(parts, size, order, index)
        is_tail = tilted.largest_error <= plain.errors_norm / math.sqrt(size)
        highest = np.minimum(plain.mass + plain.largest_error, tilted.mass + tilted.largest_error)
    below = np.count_nonzero(~is_tail) - np.arange(index.size)
    errors_beyond = plain.errors_norm * np.sqrt(np.maximum(below, 0))
    mass = np.where(is_tail, highest, plain.mass) - np.diff(errors_beyond, append=0.0)
    return Losses(step=step, lowest=lowest, mass=np.maximum(mass, 0.0), infinite=infinite)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """Probabilities of sums, and how wrong they may be.

    Attributes:
        mass: The probabilities.
        largest_error: A bound on the error of each.
        errors_norm: A bound on the Euclidean norm of all errors, if nothing was tilted.
    """

    mass: Array
    largest_error: Array
    errors_norm: float


def _convolve(parts: Parts, size: int, order: float, index: npt.NDArray[np.int64]) -> _Sums:
    """Return the sums ``index``, computed with probabilities tilted by e^(order·k)."""
    stages = math.log2(size)
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    # The product's modulus if every transform were as much larger as it may be in truth.
    largest: Array = np.ones(product.size)
    log_scale = 0.0
    for losses, count in parts:
        patience.require()
        tilted, log_norm, roundings = _tilted(losses.mass, order)
        transform = scipy.fft.rfft(tilted, size)
        error = _ROUNDING * (_PER_STAGE * stages + roundings)
        product *= _power(transform, count)
        largest *= _power(np.abs(transform) + error, count)
        log_scale += count * log_norm
    factors = sum(count for _, count in parts)
    largest *= 1 + _ROUNDING * (_PER_FACTOR * factors + _PER_STAGE * stages)
    errors = largest - np.abs(product)
    with np.errstate(over="ignore"):  # where tilting helps least
        scale = np.exp(log_scale - order * index) * (1 + _SCALING * _ROUNDING)
    # All coefficients but one or two stand for a pair; Parseval's theorem gives the norm.
    with np.errstate(invalid="ignore"):
        return _Sums(
            mass=np.nan_to_num(scipy.fft.irfft(product, size)[index % size] * scale, nan=math.inf),
            largest_error=2 / size * float(errors.sum()) * scale,
            # Not numpy's norm, which starts threads that take longer than they save.
            errors_norm=math.sqrt(2 / size * float((errors * errors).sum())),
        )


def _power(base: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return base^count by squaring, several times as fast as numpy's power of complex numbers."""
    result = np.ones_like(base)
    # A bound on rounding errors may become infinite, and then so does ε.
    with np.errstate(over="ignore", invalid="ignore"):
        while count:
            if count % 2:
                result *= base
            count //= 2
            if count:
                base = base * base
    return result


def _tilted(mass: Array, order: float) -> tuple[Array, float, float]:
    """Return mass·e^(order·k) with sum 1, the logarithm of its sum before, and its roundings."""
    places = np.flatnonzero(mass)
    logs, tilts = np.log(mass[places]), order * places
    log_norm = float(log_sum(logs + tilts))
    tilted = np.zeros(mass.size)
    tilted[places] = np.exp(logs + tilts - log_norm)
    roundings = float(tilted[places] @ (2 + np.abs(logs) + tilts + abs(log_norm)))
    return tilted, log_norm, roundings


def _window(parts: Parts, truncation: float) -> tuple[int, int, float]:
    """Return between which indices all but ``truncation`` of the sum's probability lies.

    Also returns the order at which Chernoff's bound gives the upper end.
    """
    last = sum(count * (losses.mass.size - 1) for losses, count in parts)
    variance = sum(count * _variance(losses.mass) for losses, count in parts)
    if variance == 0:
        return 0, last, 0.0
    log_share = math.log(2 / truncation)
    best_if_normal = math.sqrt(2 * log_share / variance)
    best_if_rare = log_share / max(losses.mass.size for losses, _ in parts)
    orders = np.geomspace(
        min(best_if_normal, best_if_rare) / 8, max(best_if_normal, best_if_rare) * 8, _ORDERS
    )
    upper = (_log_moments(parts, orders) + log_share) / orders
    lower = (_log_moments(parts, -orders) + log_share) / -orders
    best = int(np.argmin(upper))
    return (
        max(0, math.floor(lower.max())),
        min(last, math.ceil(upper[best])),
        float(orders[best]),
    )


def _log_moments(parts: Parts, orders: Array) -> Array:
    """Return log E e^(order·sum) for every order."""
    total: Array = np.zeros(orders.size)
    for losses, count in parts:
        patience.require()
        index = np.flatnonzero(losses.mass)
        total += count * log_sum(np.log(losses.mass[index])[:, None] + index[:, None] * orders)
    return total


def _variance(mass: Array) -> float:
    index = np.flatnonzero(mass)
    share = mass[index]
    return float(share @ (index - share @ index / share.sum()) ** 2)
