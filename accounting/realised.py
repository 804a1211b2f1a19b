"""Losses that concrete data sets really cause: the lower bound beside every certified figure.

All of the client's other elements have the same gradient, of length ``length`` along one axis;
x' has a unit gradient at ``angle`` to it. The exact loss of that pair is a lower bound on the worst
case, so the truth lies between it and the certified bound (docs/mathematics.md, "How tight").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from accounting.basket import log_sum, mills_ratio
from accounting.binomial import binomial_window
from accounting.schemes import Direction, Scheme, participation_terms

Array = npt.NDArray[np.float64]

# Standard deviations that hold all the mass that matters.
_REACH = 12.0
_STEPS_PER_SIGMA = 16
# Below it the planar integral would need ever finer steps; the loss is continuous in the angle.
SMALLEST_ANGLE = 0.03
_LENGTHS = (1.0, 0.6, 0.3)
_TURNS = np.linspace(SMALLEST_ANGLE, math.pi / 2, 10).tolist()


def collinear_delta(
    epsilon: Array,
    p: float,
    q: float,
    d: int,
    sigma: float,
    direction: Direction,
) -> Array:
    """Return δ(ε ≥ 0) when x' lies along the others (remove) or against them (add).

    One dimension, one crossing: the sampled sum's distribution is log-concave, so shifting it by
    x' gives a monotone likelihood ratio.
    """
    counts, mass, _ = _window(d, q, sigma, 1.0)
    top, sits_out, near = participation_terms(epsilon, p, q, direction)
    means = counts.astype(np.float64)
    shift = 1.0 if direction is Direction.REMOVE else -1.0
    gains = (means + shift, means) if direction is Direction.REMOVE else (means, means + shift)

    def log_mixture(z: Array, at: Array) -> Array:
        return log_sum(np.log(mass)[:, None] - ((z - at[:, None]) / sigma) ** 2 / 2)

    def tail(z: Array, at: Array) -> Array:
        return np.asarray(special.ndtr((at - z[:, None]) / sigma) @ mass)

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
        np.exp(top) * tail(high, gains[0])
        - np.exp(sits_out) * special.ndtr(-high / sigma)
        - np.exp(near) * tail(high, gains[1])
    )
    return np.asarray(np.maximum(value, 0.0))


def _window(
    d: int, q: float, sigma: float, length: float
) -> tuple[npt.NDArray[np.int64], Array, float]:
    """Return the counts of a realisable data set whose sum is no longer than it need be.

    Elements beyond the number at which participation is plain to see may as well have zero
    gradients: that is a data set too, and it keeps the window small for any d.
    """
    enough = math.ceil((_REACH * sigma / length + 40) / q)
    return binomial_window(min(d, enough), q)


@dataclass(frozen=True, kw_only=True)
class Realised(Scheme):
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
    is_chargeable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the geometry, too."""
        super().__post_init__()
        if not 0 < self.length <= 1:
            raise ValueError(f"length = {self.length} must lie in (0, 1].")
        if not SMALLEST_ANGLE <= self.angle <= math.pi - SMALLEST_ANGLE:
            raise ValueError(
                f"angle = {self.angle} must lie between {SMALLEST_ANGLE} and π − {SMALLEST_ANGLE}; "
                "the collinear pair is the scheme 'printed'."
            )

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return np.array([self._planar(value, direction) for value in epsilon.tolist()])

    @cached_property
    def _grid(self) -> tuple[Array, Array, Array, float]:
        """Return x and log f(x), log f(x − c) on it, and the step."""
        sigma = self.noise_multiplier
        counts, mass, _ = _window(self.d, self.q, sigma, self.length)
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

    def _planar(self, epsilon: float, direction: Direction) -> float:
        sigma = self.noise_multiplier
        x, log_f, log_shifted, step = self._grid
        top, sits_out, near = (
            float(term[0])
            for term in participation_terms(np.array([epsilon]), self.p, self.q, direction)
        )
        if not math.isfinite(top):
            return 0.0
        log_zero = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
        side = math.sin(self.angle) / sigma
        # In both directions: weight `gain` on one side, `loss` on the other, a ratio that is
        # exp(±(side·y − side²/2)) in the standardised second coordinate y, one crossing in y.
        if direction is Direction.REMOVE:
            gain = top + log_shifted
            loss = np.logaddexp(sits_out + log_zero, near + log_f)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.minimum(sits_out + log_zero - (top + log_f), 0.0)
                gain = top + log_f + np.log(-np.expm1(ratio))
            loss = near + log_shifted
        alive = np.isfinite(gain)
        gain, loss = gain[alive], loss[alive]
        u = (loss - gain) / side - side / 2
        gap = mills_ratio(np.maximum(u, -10.0)) - mills_ratio(np.maximum(u, -10.0) + side)
        by_ratio = np.exp(gain - np.minimum(u * u, 1400) / 2) / math.sqrt(2 * math.pi) * gap
        by_tails = np.exp(gain + special.log_ndtr(-u)) - np.exp(loss + special.log_ndtr(-u - side))
        return float(np.where(u >= -10, by_ratio, np.maximum(by_tails, 0.0)).sum() * step)


def realised_delta(
    epsilon: float, *, p: float, q: float, d: int, noise_multiplier: float
) -> tuple[float, Realised]:
    """Return the largest δ(ε) found over the geometries, and the geometry.

    Args:
        epsilon: At least 0.
        p: Participation probability.
        q: Local sampling rate.
        d: Data-set size.
        noise_multiplier: Noise over clip norm.

    Returns:
        The lower bound and the pair that attains it.
    """
    base = Realised(p=p, q=q, d=d, noise_multiplier=noise_multiplier)
    best, best_delta = base, -1.0
    for direction, along in ((Direction.REMOVE, 0.0), (Direction.ADD, math.pi)):
        at = _loss_at(base, epsilon, direction, along)
        candidates = [(turn, length) for length in _LENGTHS for turn in _TURNS]
        turn, length = max(candidates, key=lambda pair: at(*pair))
        refined = optimize.minimize_scalar(
            lambda value, length=length, at=at: -at(value, length),
            bounds=(max(turn - 0.18, SMALLEST_ANGLE), min(turn + 0.18, math.pi / 2)),
            method="bounded",
            options={"xatol": 1e-3},
        )
        turn = float(refined.x) if -refined.fun > at(turn, length) else turn
        if at(turn, length) > best_delta:
            best_delta = at(turn, length)
            best = replace(base, length=length, angle=abs(along - turn))
    return best_delta, best


def _loss_at(
    base: Realised, epsilon: float, direction: Direction, along: float
) -> Callable[[float, float], float]:
    def at(turn: float, length: float) -> float:
        pair = replace(base, length=length, angle=abs(along - turn))
        return float(pair.delta(epsilon, direction))

    return at


def realised_epsilon(
    delta: float, *, p: float, q: float, d: int, noise_multiplier: float, start: float
) -> tuple[float, Realised]:
    """Return a lower bound on ε(δ) of one round, and the geometry that attains it.

    Alternates between the best geometry at the current ε and that geometry's own ε.

    Args:
        delta: In (0, 1).
        p: Participation probability.
        q: Local sampling rate.
        d: Data-set size.
        noise_multiplier: Noise over clip norm.
        start: Where to look first, e.g. the certified ε.
    """
    epsilon, best = start, None
    for _ in range(3):
        _, pair = realised_delta(epsilon, p=p, q=q, d=d, noise_multiplier=noise_multiplier)
        reached = pair.epsilon(delta)
        if best is None or reached > best[0]:
            best = (reached, pair)
        if abs(reached - epsilon) <= 1e-4 * epsilon:
            break
        epsilon = reached
    assert best is not None
    return best
