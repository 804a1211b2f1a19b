"""Random participation with secret coins: the bound that is charged, and the one that was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coinflower.accounting import patience
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import log_add_top, subsampled_gaussian
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.analyses.gaussian_excess import excess, log_expm1, log_expm1_plus
from coinflower.accounting.analyses.one_crossing import one_crossing_delta
from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]

# From this many standard deviations of distance the sit-out component is invisible (its tail mass
# is below 1e-22), so participation is plain to see and the WCS value is exact.
_VISIBLE_AFTER = 10.0
# Elements of one work array: 2^18 doubles are 2 MB.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Certified(Analysis):
    """Random participation, certified: the least bound that knows only the lengths of sums.

    Holds for all gradients, and no argument that ignores how gradients add up gives a smaller one
    (docs/mathematics.md, "One crossing for all samples"). A cap lowers it: one round at c = 1
    is CS. Without a cap d = 0 is CS, p = 1 is OLS, d·q → ∞ is WCS.
    """

    name: ClassVar[str] = "certified"
    ledger_name: ClassVar[str] = "one-crossing"
    title: ClassVar[str] = "random participation, certified bound"
    hides_coin: ClassVar[bool] = True

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return one_crossing_delta(
            epsilon,
            p=self.round.p,
            q=self.round.q,
            d=self.round.d,
            sigma=self.round.noise_multiplier,
            cap=self.round.cap,
            direction=direction,
        )


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
        math.log(p) + log_add_top(epsilon, q),
        sits_out,
        epsilon + math.log(p) + math.log(q),
    )


@dataclass(frozen=True)
class CertifiedBySample(Analysis):
    """The first certified bound, δ(ε) = Σ_i Binom(i; d, q)·δ_i(ε): the price of older charges.

    Given that i of the client's other records are sampled, the worst gradients are collinear and
    of full length (docs/mathematics.md, "The older profile"); for ε ≥ 0

    δ_i,remove = ∫ [ pq·N(z; i+1) − (e^ε−1)(1−p)·N(z; 0) − p(e^ε−1+q)·N(z; i) ]₊ dz
    δ_i,add    = ∫ [ p(1−e^ε(1−q))·N(z; i) − (e^ε−1)(1−p)·N(z; 0) − e^ε·pq·N(z; i−1) ]₊ dz

    Binomial mass that is cut gets the WCS value. Never below `Certified`, which supersedes it.
    """

    name: ClassVar[str] = "certified"
    ledger_name: ClassVar[str] = "certified"
    title: ClassVar[str] = "random participation, first certified bound"
    hides_coin: ClassVar[bool] = True

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        p, q, sigma = self.round.p, self.round.q, self.round.noise_multiplier
        counts, mass, cut = binomial_window(
            self.round.d, q, most=math.ceil(_VISIBLE_AFTER * sigma) + 1
        )
        delta = cut * p * subsampled_gaussian(epsilon, q, sigma, direction)
        if counts.size and counts[0] == 0:
            # Nothing else was sampled: the pair is that of sampling at rate pq.
            delta = delta + mass[0] * subsampled_gaussian(epsilon, p * q, sigma, direction)
            counts, mass = counts[1:], mass[1:]
        rows = max(1, _CHUNK // max(1, counts.size))
        distances = (counts + 1 if direction is Direction.REMOVE else counts).astype(np.float64)
        for start in range(0, epsilon.size if counts.size else 0, rows):
            patience.require()
            part = slice(start, start + rows)
            top, sits_out, near = participation_terms(epsilon[part], p, q, direction)
            values = excess(
                top[:, None], [sits_out[:, None], near[:, None]], [distances[None, :], 1.0], sigma
            )
            delta[part] += values @ mass
        return np.asarray(delta)
