"""Losses that concrete data sets really cause: the lower bound beside every certified figure.

All of the client's other records have the same gradient, of length ``length`` along one axis;
x' has a unit gradient at ``angle`` to it. The exact loss of that pair is a lower bound on the worst
case, so the truth lies between it and the certified bound (docs/mathematics.md, "How tight").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.analyses.certified import participation_terms
from coinflower.accounting.analyses.gaussian_excess import excess, log_sum
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Direction, Round

Array = npt.NDArray[np.float64]

# Standard deviations that hold all the mass that matters.
_REACH = 12.0
_STEPS_PER_SIGMA = 16
# Elements of one work array: 2^18 doubles are 2 MB.
_CHUNK = 1 << 18
# Below it the planar integral would need ever finer steps; the loss is continuous in the angle.
SMALLEST_ANGLE = 0.03
# The aligned pair's δ is a difference of numbers of order 1.
CANCELLATION = 1e-15
_LENGTHS = (1.0, 0.6, 0.3)
_TURNS = np.linspace(SMALLEST_ANGLE, math.pi / 2, 10).tolist()


def collinear_delta(epsilon: Array, round_: Round, direction: Direction) -> Array:
    """Return δ(ε ≥ 0) when x' lies along the others (remove) or against them (add).

    One dimension, one crossing: the sampled sum's distribution is log-concave, so shifting it by
    x' gives a monotone likelihood ratio.
    """
    sigma = round_.noise_multiplier
    counts, mass, _ = _window(round_.d, round_.q, sigma, 1.0)
    top, sits_out, near = participation_terms(epsilon, round_.p, round_.q, direction)
    means = counts.astype(np.float64)
    shift = 1.0 if direction is Direction.REMOVE else -1.0
    gains = (means + shift, means) if direction is Direction.REMOVE else (means, means + shift)

    def log_mixture(z: Array, at: Array) -> Array:
        return log_sum(np.log(mass)[:, None] - ((z - at[:, None]) / sigma) ** 2 / 2)

    def log_tail(z: Array, at: Array) -> Array:
        return log_sum(np.log(mass)[:, None] + scipy.special.log_ndtr((at[:, None] - z) / sigma))

    low = np.full_like(epsilon, -_REACH * sigma - 2)
    high = np.full_like(epsilon, float(means[-1]) + 40 * sigma + 2)
    for _ in range(60):
        middle = (low + high) / 2
        losses = np.logaddexp(
            sits_out - (middle / sigma) ** 2 / 2, near + log_mixture(middle, gains[1])
        )
        positive = top + log_mixture(middle, gains[0]) > losses
        high, low = np.where(positive, middle, high), np.where(positive, low, middle)
    value = (
        np.exp(top + log_tail(high, gains[0]))
        - np.exp(sits_out + scipy.special.log_ndtr(-high / sigma))
        - np.exp(near + log_tail(high, gains[1]))
    )
    return np.asarray(np.maximum(value, 0.0))


def _window(
    d: int, q: float, sigma: float, length: float
) -> tuple[npt.NDArray[np.int64], Array, float]:
    """Return the counts of a realisable data set whose sum is no longer than it need be.

    Records beyond the number at which participation is plain to see may as well have zero
    gradients: that is a data set too, and it keeps the window small for any d.
    """
    enough = math.ceil((_REACH * sigma / length + 40) / q)
    return binomial_window(min(d, enough), q)


@dataclass(frozen=True)
class Realised(Analysis):
    """The exact δ(ε) of one gradient geometry: a lower bound on the mechanism's worst case.

    With f = Σ_i Binom(i; d, q)·N(i·length) along the first axis and x' = (c, s), c = cos(angle),
    s = sin(angle), the pair factors in the second axis, whose integral is closed:
    remove: ∫ dx { a(x)·Q((y*−s)/σ) − b(x)·Q(y*/σ) },  a = pq·f(x−c),
    b = (e^ε−1)(1−p)·N(x; 0) + p(e^ε−1+q)·f(x),  y* = s/2 + (σ²/s)·log(b/a); add likewise.
    """

    length: float = 1.0
    angle: float = math.pi / 2

    name: ClassVar[str] = "realised"
    title: ClassVar[str] = "realised by a concrete data set (lower bound)"
    is_upper_bound: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the geometry, too."""
        super().__post_init__()
        if not 0 < self.length <= 1:
            raise UserError(f"length = {self.length} must lie in (0, 1].")
        if not SMALLEST_ANGLE <= self.angle <= math.pi - SMALLEST_ANGLE:
            raise UserError(
                f"angle = {self.angle} must lie between {SMALLEST_ANGLE} and π − {SMALLEST_ANGLE}; "
                "the collinear pair is the scheme 'printed'."
            )

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        rows = max(1, _CHUNK // self._grid[0].size)
        parts = [epsilon[start : start + rows] for start in range(0, epsilon.size, rows)]
        return np.concatenate([self._planar(part, direction) for part in parts] or [epsilon])

    @cached_property
    def _grid(self) -> tuple[Array, Array, Array, float]:
        """Return x and log f(x), log f(x − c) on it, and the step."""
        sigma = self.round.noise_multiplier
        counts, mass, _ = _window(self.round.d, self.round.q, sigma, self.length)
        means = counts * self.length
        step = sigma / _STEPS_PER_SIGMA * min(1.0, 2 * math.sin(self.angle))
        x = np.arange(means[0] - _REACH * sigma - 1, means[-1] + _REACH * sigma + 1, step)
        if means[0] > 0:
            near_zero = np.arange(-_REACH * sigma, min(_REACH * sigma, x[0] - step), step)
            x = np.concatenate([near_zero, x])

        def log_f(at: Array) -> Array:
            parts = np.log(mass)[:, None] - ((at - means[:, None]) / sigma) ** 2 / 2
            return log_sum(parts) - math.log(sigma * math.sqrt(2 * math.pi))

        return x, log_f(x), log_f(x - math.cos(self.angle)), step

    def _planar(self, epsilon: Array, direction: Direction) -> Array:
        sigma = self.round.noise_multiplier
        x, log_f, log_shifted, step = self._grid
        top, sits_out, near = (
            term[:, None]
            for term in participation_terms(epsilon, self.round.p, self.round.q, direction)
        )
        log_zero = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
        # In both directions one side outweighs the other beyond a single crossing in the second
        # coordinate: the basket integral with one member, at distance sin(angle).
        if direction is Direction.REMOVE:
            gain = top + log_shifted
            loss = np.logaddexp(sits_out + log_zero, near + log_f)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                kept = -np.expm1(np.minimum(sits_out + log_zero - (top + log_f), 0.0))
                gain = np.where(np.isfinite(top), top + log_f + np.log(kept), -np.inf)
            loss = near + log_shifted
        values = excess(gain, [loss], [math.sin(self.angle)], sigma)
        return np.asarray(values.sum(axis=1) * step)


def aligned(round_: Round) -> Analysis:
    """Return the pair of equal unit gradients, x' along the others or against them."""
    from coinflower.accounting.analyses.paper import AsPrinted  # which is made of collinear_delta

    return AsPrinted(round_)


def realised_delta(round_: Round, epsilon: float) -> tuple[float, Analysis]:
    """Return the largest δ(ε ≥ 0) found over the geometries, the aligned one among them.

    Args:
        round_: Without a cap.
        epsilon: At least 0.

    Returns:
        The lower bound and the pair that attains it.
    """
    from scipy import optimize

    best = aligned(round_)
    best_delta = max(0.0, best.delta(epsilon) - CANCELLATION)
    for direction, along in ((Direction.REMOVE, 0.0), (Direction.ADD, math.pi)):

        def pair(turn: float, length: float, along: float = along) -> Realised:
            return Realised(round_, length=length, angle=abs(along - turn))

        def loss(turn: float, length: float, direction: Direction = direction) -> float:
            return pair(turn, length).delta(epsilon, direction)

        candidates = [(turn, length) for length in _LENGTHS for turn in _TURNS]
        turn, length = max(candidates, key=lambda candidate: loss(*candidate))
        refined = optimize.minimize_scalar(
            lambda value, length=length: -loss(value, length),
            bounds=(max(turn - 0.18, SMALLEST_ANGLE), min(turn + 0.18, math.pi / 2)),
            method="bounded",
            options={"xatol": 1e-3},
        )
        turn = max(turn, float(refined.x), key=lambda value: loss(value, length))
        if loss(turn, length) > best_delta:
            best, best_delta = pair(turn, length), loss(turn, length)
    return best_delta, best


def realised_epsilon(round_: Round, delta: float, *, start: float) -> tuple[float, Analysis]:
    """Return a lower bound on ε(δ) of one round, and the geometry that attains it.

    Alternates between the best geometry at the current ε and that geometry's own ε.

    Args:
        round_: Without a cap.
        delta: In (0, 1).
        start: Where to look first, e.g. the certified ε.
    """
    epsilon = start
    attained_by = aligned(round_)
    best = attained_by.epsilon(delta + CANCELLATION)
    for _ in range(3):
        _, pair = realised_delta(round_, epsilon)
        reached = pair.epsilon(delta + CANCELLATION)
        if reached > best:
            best, attained_by = reached, pair
        if abs(reached - epsilon) <= 1e-4 * epsilon:
            break
        epsilon = reached
    return best, attained_by
