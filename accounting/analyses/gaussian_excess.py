"""The one integral behind every scheme: a Gaussian's excess over a basket of shifted Gaussians.

    excess = ∫ [ top·N(z; 0, σ²) − Σ_k w_k·N(z; −L_k, σ²) ]₊ dz,   top, w_k ≥ 0,  L_k > 0

Relative to the top density every basket member is a decreasing exponential in z, so the integrand
changes sign once and is positive to the right (docs/mathematics.md, "One crossing").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy

Array = npt.NDArray[np.float64]

# Left of this many standard deviations Mills' ratio grows like exp(u²/2) and the plain difference
# of tail probabilities has lost nothing to cancellation.
_SCALED_FORM_FROM = -10.0
# Newton gains at least as many digits as it has; six steps are typical.
_MOST_NEWTON_STEPS = 100


def excess(
    log_top: Array,
    log_weights: Sequence[Array],
    distances: Sequence[Array | float],
    sigma: float,
    *,
    search_up_to: float = math.inf,
) -> Array:
    """Return the excess, element by element over the broadcast arguments.

    With u = z/σ, s_k = L_k/σ and the crossing u* of Σ_k r_k(u) = 1, where
    r_k(u) = (w_k/top)·exp(−s_k·u − s_k²/2), the excess is

        top·φ(u*)·Σ_k r_k(u*)·(R(u*) − R(u* + s_k)),   R(u) = (1 − Φ(u))/φ(u)  (Mills' ratio),

    a sum of non-negative terms: no cancellation, never negative, relative accuracy in far tails.

    Args:
        log_top: Logarithm of the top weight; −∞ gives 0.
        log_weights: Logarithms of the basket weights; at least one must be finite.
        distances: The L_k, each above 0.
        sigma: Standard deviation of every Gaussian.
        search_up_to: Largest z at which the crossing may lie; beyond it the integral starts too
            early and comes out too small. Only for reproducing somebody's search that ends there.

    Returns:
        The excess, an array of the broadcast shape.
    """
    shape = np.broadcast_shapes(
        np.shape(log_top),
        *(np.shape(weight) for weight in log_weights),
        *(np.shape(distance) for distance in distances),
    )
    result = np.zeros(shape)
    alive = np.broadcast_to(np.isfinite(log_top), shape)
    if not alive.any():
        return result
    top = np.broadcast_to(log_top, shape)[alive]
    weights = np.stack([np.broadcast_to(weight, shape)[alive] for weight in log_weights])
    shifts = np.stack([np.broadcast_to(np.divide(gap, sigma), shape)[alive] for gap in distances])
    result[alive] = _excess_at_crossing(top, weights, shifts, search_up_to / sigma)
    return result


def _log_ratios(top: Array, weights: Array, shifts: Array, u: Array) -> Array:
    """Return log r_k(u), one row a basket member."""
    return np.asarray(weights - top - shifts * (u + shifts / 2))


def _crossing(top: Array, weights: Array, shifts: Array) -> Array:
    """Return u* by Newton's method.

    log Σ_k r_k(u) is convex and decreasing, and at the largest root of its single terms it is not
    negative: from there Newton's steps approach the root from the left and never pass it.
    """
    u = np.max((weights - top) / shifts - shifts / 2, axis=0)
    for _ in range(_MOST_NEWTON_STEPS):
        ratios = _log_ratios(top, weights, shifts, u)
        value = log_sum(ratios)
        step = value / (np.exp(ratios - value) * shifts).sum(axis=0)
        u = u + step
        if np.all(np.abs(step) <= 1e-14 * (1 + np.abs(u))):
            break
    return np.asarray(u)


def _excess_at_crossing(top: Array, weights: Array, shifts: Array, most: float) -> Array:
    crossing = _crossing(top, weights, shifts)
    u = np.minimum(crossing, most)
    scaled = (u >= _SCALED_FORM_FROM) & (crossing <= most)
    # Clipping keeps the branch that is not taken from overflowing.
    at = np.maximum(u, _SCALED_FORM_FROM)
    ratios = np.exp(_log_ratios(top, weights, shifts, u))
    gaps = mills_ratio(at) - mills_ratio(at + shifts)
    by_ratio = np.exp(top - at * at / 2) / np.sqrt(2 * np.pi) * (ratios * gaps).sum(axis=0)
    by_ratio = by_ratio / ratios.sum(axis=0)
    by_tails = np.exp(top + scipy.special.log_ndtr(-u))
    by_tails = by_tails - np.exp(weights + scipy.special.log_ndtr(-u - shifts)).sum(axis=0)
    return np.asarray(np.where(scaled, by_ratio, np.maximum(by_tails, 0.0)))


def log_sum(logs: Array) -> Array:
    """Return log Σ exp over the first axis; every column needs a finite entry."""
    largest = logs.max(axis=0)
    return np.asarray(largest + np.log(np.exp(logs - largest).sum(axis=0)))


def mills_ratio(u: Array) -> Array:
    """Return (1 − Φ(u))/φ(u) without underflow for large u."""
    return np.asarray(np.sqrt(np.pi / 2) * scipy.special.erfcx(u / np.sqrt(2)))


def log_expm1(epsilon: Array) -> Array:
    """Return log(e^ε − 1) for ε ≥ 0 without overflow; −∞ at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(epsilon + np.log(-np.expm1(-epsilon)))


def log_expm1_plus(epsilon: Array, rate: float) -> Array:
    """Return log(e^ε − 1 + rate) for ε ≥ 0 and 0 < rate ≤ 1 without overflow or cancellation."""
    return np.asarray(epsilon + np.log(-np.expm1(-epsilon) + rate * np.exp(-epsilon)))
