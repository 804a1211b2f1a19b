"""What one round costs, by four analyses of the same algorithm.

In a round a client joins with probability p, samples each of its elements with probability q,
clips each gradient to norm 1 and adds up; the sum gets noise N(0, σ²) in units of the clip norm.
A scheme answers: after one round, how large is δ at a given ε, if one element is removed from the
client's data, or added to it? Symbols and proofs are in docs/mathematics.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, overload

import numpy as np
import numpy.typing as npt

from coinflower.accounting import patience, validation
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.analyses.gaussian_excess import excess, log_expm1, log_expm1_plus
from coinflower.accounting.errors import UserError

Array = npt.NDArray[np.float64]

LEAST_NOISE = 1e-6
# From this many standard deviations of distance the sit-out component is invisible (its tail mass
# is below 1e-22), so participation is plain to see and the WCS value is exact.
_VISIBLE_AFTER = 10.0
# Elements of one work array: 2^18 doubles are 2 MB.
_CHUNK = 1 << 18
# The search for ε doubles from 1 up to 10¹⁸, far above what the least noise costs, and in steps of
# at least 10⁻¹⁸ rounds up what it found.
_MOST_DOUBLINGS = 60
_LEAST_STEP = 1e-18


class Direction(StrEnum):
    """Which neighbour is the real one: the data with the element, or the data without it."""

    REMOVE = "remove"
    ADD = "add"

    @property
    def other(self) -> Direction:
        """The opposite direction."""
        return Direction.ADD if self is Direction.REMOVE else Direction.REMOVE


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """One round under one analysis; an immutable value.

    Attributes:
        p: Participation probability, in (0, 1].
        q: Local sampling rate, in (0, 1].
        d: Bound on the client's data-set size, at least 0. δ never falls with d.
        noise_multiplier: Noise standard deviation over clip norm, above 0.
    """

    p: float
    q: float
    d: int
    noise_multiplier: float

    name: ClassVar[str]
    title: ClassVar[str]
    is_upper_bound: ClassVar[bool] = True
    """Whether ε and δ bound the loss of the mechanism that the scheme names."""
    is_chargeable: ClassVar[bool] = True
    """Whether the figure bounds what a federated client really loses, so that a ledger takes it."""

    def __post_init__(self) -> None:
        """Check every field once."""
        validation.require_probability("p", self.p)
        validation.require_probability("q", self.q)
        validation.require_probability("p·q", self.p * self.q)
        validation.require_count("d", self.d, least=0)
        validation.require_positive("noise multiplier (sigma)", self.noise_multiplier)
        if self.noise_multiplier < LEAST_NOISE:
            raise UserError(
                f"noise multiplier (sigma) = {self.noise_multiplier} must be at least "
                f"{LEAST_NOISE:g}: less cannot be told from none."
            )

    @abstractmethod
    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        """Return δ for a one-dimensional array of ε ≥ 0."""

    @overload
    def delta(self, epsilon: float, direction: Direction | None = None) -> float: ...
    @overload
    def delta(self, epsilon: Array, direction: Direction | None = None) -> Array: ...
    def delta(self, epsilon: float | Array, direction: Direction | None = None) -> float | Array:
        """Return δ(ε), for ε of either sign.

        For ε < 0 one direction is the mirror of the other:
        δ_remove(ε) = 1 − e^ε + e^ε·δ_add(−ε), and the same with the names exchanged.

        Args:
            epsilon: One value or an array.
            direction: Remove or add; the worse of both if left out.

        Returns:
            δ in [0, 1], of the shape of ``epsilon``.
        """
        patience.require()
        values = np.asarray(epsilon, dtype=np.float64)
        if np.isnan(values).any():
            raise UserError("epsilon = nan is not a number.")
        if direction is None:
            delta = np.maximum(
                self._signed(values.ravel(), Direction.REMOVE),
                self._signed(values.ravel(), Direction.ADD),
            )
        else:
            delta = self._signed(values.ravel(), direction)
        return float(delta[0]) if values.ndim == 0 else delta.reshape(values.shape)

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 with δ(ε) ≤ delta, rounded up; ∞ if there is none to be found."""
        validation.require_delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        from scipy import optimize

        for high in (2.0**doublings for doublings in range(_MOST_DOUBLINGS)):
            if self.delta(high) <= delta:
                break
        else:
            return math.inf

        def log_excess(value: float) -> float:
            return math.log(max(self.delta(value), 5e-324)) - math.log(delta)

        root = float(
            optimize.brentq(
                log_excess, 0.0, high, xtol=_LEAST_STEP, rtol=1e-13, maxiter=1000, disp=False
            )
        )
        # Where δ(0) is hardly above delta the root is 0, so the step must not be a share of it.
        step = max(1e-13 * root, _LEAST_STEP)
        while root < high:
            if self.delta(root) <= delta:
                return root
            root, step = root + step, 2 * step
        return high

    def _signed(self, epsilon: Array, direction: Direction) -> Array:
        result = np.empty_like(epsilon)
        positive = epsilon >= 0
        result[positive] = self._delta(epsilon[positive], direction)
        mirrored = epsilon[~positive]
        result[~positive] = -np.expm1(mirrored) + np.exp(mirrored) * self._delta(
            -mirrored, direction.other
        )
        return np.clip(result, 0.0, 1.0)


def subsampled_gaussian(epsilon: Array, rate: float, sigma: float, direction: Direction) -> Array:
    """Return δ(ε ≥ 0) of the Poisson-subsampled Gaussian mechanism of sensitivity 1.

    remove: ∫ [ rate·N(z; 1) − (e^ε − 1 + rate)·N(z; 0) ]₊ dz
    add:    ∫ [ (1 − e^ε·(1 − rate))·N(z; 0) − e^ε·rate·N(z; −1) ]₊ dz
    """
    if direction is Direction.REMOVE:
        return excess(np.asarray(math.log(rate)), [log_expm1_plus(epsilon, rate)], [1.0], sigma)
    return excess(_log_add_top(epsilon, rate), [epsilon + math.log(rate)], [1.0], sigma)


def _log_add_top(epsilon: Array, rate: float) -> Array:
    """Return log(1 − e^ε·(1 − rate)), −∞ where that is not positive."""
    if rate == 1:
        return np.zeros_like(epsilon)
    vanishes_at = -math.log1p(-rate)
    top = rate - (1 - rate) * np.expm1(np.minimum(epsilon, vanishes_at))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.where(epsilon < vanishes_at, np.maximum(top, 0.0), 0.0)))


@dataclass(frozen=True, kw_only=True)
class OnlyLocalSampling(Scheme):
    """OLS: every client always joins (p = 1), only the local sampling amplifies. Exact for p = 1.

    δ_remove(ε) = q·G(log(1 + (e^ε − 1)/q)),  G(ε) = Φ(1/2σ − εσ) − e^ε·Φ(−1/2σ − εσ).
    Ignores p and d, and bounds the loss for every p.
    """

    name: ClassVar[str] = "ols"
    title: ClassVar[str] = "only local sampling"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return subsampled_gaussian(epsilon, self.q, self.noise_multiplier, direction)


@dataclass(frozen=True, kw_only=True)
class WeakClientSampling(Scheme):
    """WCS: participation is random but everyone sees who joined: δ = p·δ_OLS for ε ≥ 0.

    Exact when participation is visible, an upper bound for random participation always.
    """

    name: ClassVar[str] = "wcs"
    title: ClassVar[str] = "weak client sampling"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return self.p * subsampled_gaussian(epsilon, self.q, self.noise_multiplier, direction)


@dataclass(frozen=True, kw_only=True)
class CentralShuffling(Scheme):
    """CS: all data lie in one place and are sampled at rate p·q: OLS with q replaced by p·q.

    Exact for that ideal; for random participation it is a lower bound, so no ledger takes it.
    """

    name: ClassVar[str] = "cs"
    title: ClassVar[str] = "centralised shuffling (the ideal)"
    is_chargeable: ClassVar[bool] = False

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return subsampled_gaussian(epsilon, self.p * self.q, self.noise_multiplier, direction)


def participation_terms(
    epsilon: Array, p: float, q: float, direction: Direction
) -> tuple[Array, Array, Array]:
    """Return the logarithms of the three weights of a random-participation pair, for ε ≥ 0.

    remove: P − e^ε·Q = pq·[with x'] − (e^ε−1)(1−p)·[sits out] − p(e^ε−1+q)·[without x']
    add:    Q − e^ε·P = p(1−e^ε(1−q))·[without x'] − (e^ε−1)(1−p)·[sits out] − e^ε·pq·[with x']

    Returns:
        log of the positive weight, of the sit-out weight, of the other participating weight.
    """
    sits_out = log_expm1(epsilon) + (math.log1p(-p) if p < 1 else -math.inf)
    if direction is Direction.REMOVE:
        top = np.full_like(epsilon, math.log(p) + math.log(q))
        return top, sits_out, math.log(p) + log_expm1_plus(epsilon, q)
    return (
        math.log(p) + _log_add_top(epsilon, q),
        sits_out,
        epsilon + math.log(p) + math.log(q),
    )


@dataclass(frozen=True, kw_only=True)
class Certified(Scheme):
    """Random participation, certified: δ(ε) = Σ_i Binom(i; d, q)·δ_i(ε), an upper bound.

    Given that i of the client's other elements are sampled, the worst gradients are collinear and
    of full length (docs/mathematics.md, "The certified profile"); for ε ≥ 0

    δ_i,remove = ∫ [ pq·N(z; i+1) − (e^ε−1)(1−p)·N(z; 0) − p(e^ε−1+q)·N(z; i) ]₊ dz
    δ_i,add    = ∫ [ p(1−e^ε(1−q))·N(z; i) − (e^ε−1)(1−p)·N(z; 0) − e^ε·pq·N(z; i−1) ]₊ dz

    d = 0 is CS, p = 1 is OLS, d·q → ∞ is WCS. Binomial mass that is cut gets the WCS value.
    """

    name: ClassVar[str] = "certified"
    title: ClassVar[str] = "random participation, certified bound"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        sigma = self.noise_multiplier
        counts, mass, cut = binomial_window(
            self.d, self.q, most=math.ceil(_VISIBLE_AFTER * sigma) + 1
        )
        delta = cut * self.p * subsampled_gaussian(epsilon, self.q, sigma, direction)
        if counts.size and counts[0] == 0:
            # Nothing else was sampled: the pair is that of sampling at rate pq.
            delta = delta + mass[0] * subsampled_gaussian(
                epsilon, self.p * self.q, sigma, direction
            )
            counts, mass = counts[1:], mass[1:]
        rows = max(1, _CHUNK // max(1, counts.size))
        distances = (counts + 1 if direction is Direction.REMOVE else counts).astype(np.float64)
        for start in range(0, epsilon.size if counts.size else 0, rows):
            patience.require()
            part = slice(start, start + rows)
            top, sits_out, near = participation_terms(epsilon[part], self.p, self.q, direction)
            values = excess(
                top[:, None], [sits_out[:, None], near[:, None]], [distances[None, :], 1.0], sigma
            )
            delta[part] += values @ mass
        return np.asarray(delta)
