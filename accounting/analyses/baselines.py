"""The analyses that need no more than one subsampled Gaussian: who sees what, at which rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.gaussian_excess import excess, log_expm1_plus
from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]


def subsampled_gaussian(epsilon: Array, rate: float, sigma: float, direction: Direction) -> Array:
    """Return δ(ε ≥ 0) of the Poisson-subsampled Gaussian mechanism of sensitivity 1.

    remove: ∫ [ rate·N(z; 1) − (e^ε − 1 + rate)·N(z; 0) ]₊ dz
    add:    ∫ [ (1 − e^ε·(1 − rate))·N(z; 0) − e^ε·rate·N(z; −1) ]₊ dz
    """
    if direction is Direction.REMOVE:
        return excess(np.asarray(math.log(rate)), [log_expm1_plus(epsilon, rate)], [1.0], sigma)
    return excess(log_add_top(epsilon, rate), [epsilon + math.log(rate)], [1.0], sigma)


def log_add_top(epsilon: Array, rate: float) -> Array:
    """Return log(1 − e^ε·(1 − rate)), −∞ where that is not positive."""
    if rate == 1:
        return np.zeros_like(epsilon)
    vanishes_at = -math.log1p(-rate)
    top = rate - (1 - rate) * np.expm1(np.minimum(epsilon, vanishes_at))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.where(epsilon < vanishes_at, np.maximum(top, 0.0), 0.0)))


@dataclass(frozen=True)
class OnlyLocalSampling(Analysis):
    """OLS: every client always joins (p = 1), only the local sampling amplifies. Exact for p = 1.

    δ_remove(ε) = q·G(log(1 + (e^ε − 1)/q)),  G(ε) = Φ(1/2σ − εσ) − e^ε·Φ(−1/2σ − εσ).
    Ignores p and d, and bounds the loss for every p.
    """

    name: ClassVar[str] = "ols"
    ledger_name: ClassVar[str] = "ols"
    title: ClassVar[str] = "only local sampling"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return subsampled_gaussian(epsilon, self.round.q, self.round.noise_multiplier, direction)


@dataclass(frozen=True)
class WeakClientSampling(Analysis):
    """WCS: participation is random but everyone sees who joined: δ = p·δ_OLS for ε ≥ 0.

    Exact when participation is visible, an upper bound for random participation always.
    """

    name: ClassVar[str] = "wcs"
    ledger_name: ClassVar[str] = "wcs"
    title: ClassVar[str] = "weak client sampling"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return self.round.p * subsampled_gaussian(
            epsilon, self.round.q, self.round.noise_multiplier, direction
        )


@dataclass(frozen=True)
class CentralShuffling(Analysis):
    """CS: all data lie in one place and are sampled at rate p·q: OLS with q replaced by p·q.

    Exact for that ideal; for random participation it is a lower bound, so no ledger takes it.
    """

    name: ClassVar[str] = "cs"
    title: ClassVar[str] = "centralised shuffling (the ideal)"

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return subsampled_gaussian(
            epsilon, self.round.p * self.round.q, self.round.noise_multiplier, direction
        )
