"""The best bound on one round that needs no more than the lengths of a client's sums.

The mass of sitting out is split among the client's samples so that all crossings coincide, and a
cap on the length of the client's sum limits how far a sample can stand out. Symbols and proofs are
in docs/mathematics.md, "One crossing for all samples"; here the clip norm is 1, s = 1/σ, α = e^ε.

A sample of *level* j puts K·N(z; j+1) against B·N(z; j), where j ≥ −1 depends on the size of the
sample and on the cap. The crossing t is that of the equation

    Σ_j π_j·[c_j]₊ = W,   c_j = B·exp((j·t − j²/2)·s²)·(e^(e_j) − 1),   e_j = (t − j − 1/2)·s² − L,

with L = log(B/K). Its unknown is y = e_j of the lowest level, which may be tiny where t is not.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy

from coinflower.accounting import patience
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.analyses.gaussian_excess import log_expm1, log_expm1_plus, mills_ratio
from coinflower.accounting.errors import UserError

if TYPE_CHECKING:
    from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]

# From this many standard deviations of distance the mass of sitting out is below 1e-23 and too
# small to show in a δ of 1e-13.
_VISIBLE_AFTER = 10.0
# Left of this many standard deviations Mills' ratio grows like exp(u²/2); plain tail probabilities
# lose nothing there.
_SCALED_FORM_FROM = -10.0
# Elements of one work array: 2^15 doubles stay in the cache.
_CHUNK = 1 << 15
# The value's error is of second order in that of log Σ_j π_j·[c_j]₊, which is left below this.
_PRECISE = 1e-7
# Five steps are typical; from some number on every other step halves the bracket.
_NEWTON_STEPS = 20
_MOST_STEPS = 120
# Less mass of sitting out than this share of δ may as well be none.
_NO_MASS = 1e-13
# Exponents beyond it mean a component out of everybody's sight.
_LARGEST_EXPONENT = 600.0
# Roundings of Mills' ratio, and of sums and exponentials, relative to their values.
_MILLS_ROUNDING = 1e-15
_ROUNDING = 2e-12


def one_crossing_delta(
    epsilon: Array, *, p: float, q: float, d: int, sigma: float, cap: float, direction: Direction
) -> Array:
    """Return δ(ε ≥ 0) of one round in one direction, rounded up.

    Args:
        epsilon: One-dimensional, none below 0.
        p: Participation probability.
        q: Local sampling rate.
        d: Bound on the number of the client's other records.
        sigma: Noise multiplier.
        cap: Largest length of the client's sum in clip norms, at least 1; ∞ for none.
        direction: Whether the record is removed, D_α(P‖Q), or added, D_α(Q‖P).

    Returns:
        δ, one for each ε.
    """
    if not cap >= 1:
        raise UserError(f"cap = {cap} must be at least 1 clip norm, or infinite for no cap.")
    if epsilon.size == 0:
        return np.zeros(0)
    removes = direction == "remove"
    weights = _Weights.of(epsilon, p, q, removes)
    visible = _visible(weights, 1 / sigma)
    levels, mass, unseen = _levels(d, q, sigma, cap, removes)
    # With next to no mass that sits out (ε = 0 or p = 1) participation might as well be visible.
    hides = np.exp(np.minimum(weights.sits_out, 0.0)) > _NO_MASS * visible
    hidden = np.flatnonzero(hides & (visible > 0))
    result = visible.copy()
    rows = max(1, _CHUNK // (levels.size + 1))
    for start in range(0, hidden.size if levels.size else 0, rows):
        patience.require()
        part = hidden[start : start + rows]
        result[part] = _delta(weights.at(part), visible[part], levels, mass, unseen, 1 / sigma)
    return np.minimum(result * (1 + _ROUNDING), 1.0)


@dataclass(frozen=True, eq=False)
class _Weights:
    """The logarithms of K, B and W, and L = log(B/K) ≥ 0."""

    top: Array
    near: Array
    sits_out: Array
    ratio: Array

    @classmethod
    def of(cls, epsilon: Array, p: float, q: float, removes: bool) -> _Weights:
        """Return the weights of one direction; K = 0, a loss of 0, is log K = −∞.

        remove: K = pq,            B = p(α−1+q)
        add:    K = p(1−α(1−q)),   B = αpq
        """
        sits_out = log_expm1(epsilon) + (math.log1p(-p) if p < 1 else -math.inf)
        if removes:
            top = np.full_like(epsilon, math.log(p) + math.log(q))
            near = math.log(p) + log_expm1_plus(epsilon, q)
            # For small ε the difference of the logarithms would keep few digits.
            ratio = np.where(
                epsilon < 1, np.log1p(np.expm1(np.minimum(epsilon, 1)) / q), near - top
            )
            return cls(top, near, sits_out, ratio)
        near = epsilon + math.log(p) + math.log(q)
        vanishes_at = -math.log1p(-q) if q < 1 else math.inf
        gain = np.expm1(np.minimum(epsilon, min(vanishes_at, 700.0)))
        kept = q - (1 - q) * gain if q < 1 else np.ones_like(epsilon)
        alive = (epsilon < vanishes_at) & (kept > 0)
        kept = np.where(alive, kept, 1.0)
        top = math.log(p) + np.log(kept)
        # B − K = p(α−1).
        ratio = np.where(epsilon < 1, np.log1p(np.minimum(gain, 2) / kept), near - top)
        return cls(np.where(alive, top, -math.inf), near, sits_out, ratio)

    def at(self, part: npt.NDArray[np.int64]) -> _Weights:
        """Return the weights of some ε only."""
        return _Weights(self.top[part], self.near[part], self.sits_out[part], self.ratio[part])


# Curves are asked for at one set of ε after another.
@functools.lru_cache(maxsize=256)
def _levels(
    d: int, q: float, sigma: float, cap: float, removes: bool
) -> tuple[Array, Array, float]:
    """Return increasing levels j, their probabilities, and that of levels out of sight.

    Of i sampled records the level is min(i, cap − 1) (remove) or min(i, cap) − 1 (add).
    """
    visible = math.ceil(_VISIBLE_AFTER * sigma) + 1
    is_capped = cap - 1 <= visible
    # The last count below the cap.
    offset = 0 if removes else 1
    last = math.ceil(cap - 1) - 1 if is_capped else visible
    counts, mass, cut = binomial_window(d, q, most=last + offset)
    counts, mass = counts[mass > 0], mass[mass > 0]
    levels = (counts - offset).astype(np.float64)
    if is_capped and cut > 0:
        # Counts cut at the low end are taken to be larger than they are, which is safe.
        return np.append(levels, cap - 1), np.append(mass, cut), 0.0
    return levels, mass, cut


def _visible(weights: _Weights, s: float) -> Array:
    """Return ∫ [ K·N(z; 1) − B·N(z; 0) ]₊ dz: the loss of a round in which participation shows."""
    near, _ = _mills_gaps(weights.ratio, s, weights.ratio / s + s / 2)
    return np.asarray(np.exp(weights.top) * near)


def _delta(
    weights: _Weights, visible: Array, levels: Array, mass: Array, unseen: float, s: float
) -> Array:
    """Return δ of every ε, given levels and their probabilities.

    Level j contributes K·φ(a)·{ [M(a) − M(b)] + (1 − ρ)·[M(b) − M(t·s)] } where e_j > 0, with
    a = (t − j − 1)·s, b = (t − j)·s, ρ = e^(−e_j) and Mills' ratio M; no term is negative. Where
    e_j ≤ 0 it contributes the loss of visible participation.
    """
    y, missing, width = _crossing(weights, levels, mass, s)
    # Level −1 may never reach W: its crossing is at infinity, and nothing lies beyond.
    found = np.flatnonzero(np.isfinite(y))
    if found.size < y.size:
        result = unseen * visible
        if found.size:
            result[found] = _delta(weights.at(found), visible[found], levels, mass, unseen, s)
        return result
    behind = (levels - levels[0]) * s**2
    lowest, top = float(levels[0]), np.exp(weights.top)
    shown = np.searchsorted(behind, y)  # levels with e_j > 0
    row = np.repeat(np.arange(y.size), shown)
    column = np.arange(row.size) - np.repeat(np.cumsum(shown) - shown, shown)
    e = y[row] - behind[column]
    crossing = (y + weights.ratio) / s + (lowest + 0.5) * s
    near, far = _mills_gaps(e + weights.ratio[row], s, crossing[row])
    is_zero = levels[column] < 0
    terms = np.where(is_zero, np.exp(-e) * near, near - np.expm1(-e) * far)
    beyond = np.append(np.cumsum(mass[::-1])[::-1], 0.0) + unseen
    value = beyond[shown] * visible
    value += top * np.bincount(row, weights=mass[column] * terms, minlength=y.size)
    # To second order in what the sum of the c_j still misses of W.
    sits_out = np.exp(weights.sits_out + scipy.special.log_ndtr(-crossing))
    with np.errstate(over="ignore", invalid="ignore"):
        density = np.exp(weights.sits_out - crossing**2 / 2) / math.sqrt(2 * math.pi)
        value += sits_out * np.expm1(missing) + density * missing**2 * width / (2 * s)
        # The sum's logarithm is as wrong as its exponents are large.
        exponents = 50 + np.abs(weights.sits_out - weights.near) + 4 * (y + weights.ratio) / width
        value += sits_out * exponents * 2.0**-52
    # Participation that shows costs most, also where the numbers above are beyond any double.
    return np.asarray(np.fmin(value, visible))


def _mills_gaps(log_ratio: Array, s: float, crossing: Array) -> tuple[Array, Array]:
    """Return φ(a)·[M(a) − M(b)] and φ(a)·[M(b) − M(crossing)], rounded up.

    Here a = log_ratio/s − s/2 and b = a + s ≤ crossing, so that φ(a)/φ(b) = exp(log_ratio).
    """
    a = log_ratio / s - s / 2
    b = a + s
    at = np.maximum(a, _SCALED_FORM_FROM)
    density = np.exp(at * at / -2) / math.sqrt(2 * math.pi)
    first, second, third = mills_ratio(at), mills_ratio(at + (b - a)), mills_ratio(crossing)
    up, down = 1 + _MILLS_ROUNDING, 1 - _MILLS_ROUNDING
    near = density * (first * up - second * down)
    far = density * np.maximum(second * up - third * down, 0.0)
    left = np.flatnonzero(a < _SCALED_FORM_FROM)
    if left.size:
        tail = np.exp(log_ratio[left] + scipy.special.log_ndtr(-b[left]))
        x = crossing[left]
        last = np.exp((x - a[left]) * (x + a[left]) / 2 + scipy.special.log_ndtr(-x))
        near[left] = scipy.special.ndtr(-a[left]) - tail
        far[left] = np.maximum(tail - last, 0.0)
    return near, far


def _crossing(
    weights: _Weights, levels: Array, mass: Array, s: float
) -> tuple[Array, Array, Array]:
    """Return y, log(Σ_j π_j·[c_j]₊ / W) there, and the change of y that changes it by 1.

    c_j/W = exp(j·y + constant)·(e^(e_j) − 1), e_j = y − (j − lowest)·s²: a rising function of y.
    Newton's method for its logarithm as a function of log y, kept within a bracket.
    """
    target = weights.sits_out - weights.near
    behind = (levels - levels[0]) * s**2
    # Each level alone would reach W at or beyond the crossing.
    high = _single_level_root(levels[0], target - math.log(mass[0]), weights.ratio, s)
    count = 1
    while count < levels.size and (high > behind[count]).any():
        alone = _single_level_root(levels[count], target - math.log(mass[count]), weights.ratio, s)
        high = np.minimum(high, behind[count] + alone)
        count += 1
    j, behind = levels[:count], behind[:count]
    fixed = np.log(mass[:count]) + s**2 * j * (levels[0] + (1 - j) / 2)
    constant = weights.ratio[:, None] * j + fixed - target[:, None]

    # A crossing next to where the lowest level begins is taken to lie there, which is safe. If
    # level −1 alone never reaches W, the crossing is at infinity.
    crossing = np.where(high > math.exp(-_LARGEST_EXPONENT), high, 0.0)
    missing, width = np.zeros_like(high), np.ones_like(high)
    open_rows = np.flatnonzero(np.isfinite(high) & (crossing > 0))
    high, constant = high[open_rows], constant[open_rows]
    y, low = high, np.zeros_like(high)
    for step in range(_MOST_STEPS):
        e = np.maximum(y[:, None] - behind, 0.0)
        grown = np.exp(np.minimum(constant + y[:, None] * j + e, _LARGEST_EXPONENT)) * (e > 0)
        terms = -grown * np.expm1(-e)
        total = terms.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(total)
            change = total / (terms @ j + grown.sum(axis=1))
        crossing[open_rows], missing[open_rows], width[open_rows] = y, value, change
        far = np.abs(value) > _PRECISE
        if not far.any():
            break
        low, high = np.where(value < 0, y, low)[far], np.where(value < 0, high, y)[far]
        constant, open_rows = constant[far], open_rows[far]
        with np.errstate(invalid="ignore"):
            y = y[far] * np.exp(np.minimum(-value[far] * change[far] / y[far], 50.0))
        outside = ~((y > low) & (y < high))
        if step > _NEWTON_STEPS and step % 2:
            outside |= low > 0
        y = np.where(outside, np.sqrt(np.maximum(low, high * 1e-3) * high), y)
    else:
        # Steeper than numbers are dense; left of the crossing the value is too large, if at all.
        crossing[open_rows], missing[open_rows] = low, 0.0
    return crossing, missing, width


def _single_level_root(level: float, target: Array, ratio: Array, s: float) -> Array:
    """Return an upper bound, often equal, on the e at which log(c_j/B) of one level is ``target``.

    log(c_j/B) = j·e + j·L + j(j+1)·s²/2 + log(e^e − 1) for j ≥ 0, log(1 − e^−e) − L for j = −1.
    """
    if level < 0:
        gap = target + ratio
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gap < 0, -np.log(-np.expm1(np.minimum(gap, 0.0))), math.inf)
    left = target - level * ratio - level * (level + 1) * s**2 / 2
    softplus = np.logaddexp(0.0, left)
    if level == 0:
        return np.asarray(softplus)
    # e^e − 1 ≥ e^e/2 from e = log 2 on.
    log2 = math.log(2)
    return np.minimum(softplus, np.maximum(log2, (left + log2) / (level + 1)))
