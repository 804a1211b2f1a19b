"""The source paper's two figures for one round: neither is an upper bound (docs/mathematics.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.binomial import binomial_window
from coinflower.accounting.analyses.certified import participation_terms
from coinflower.accounting.analyses.gaussian_excess import excess
from coinflower.accounting.analyses.realised import collinear_delta
from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AsPlotted(Analysis):
    """The source paper's figures: *not an upper bound*; for comparison only.

    The certified integral with the binomial average moved inside, onto the sit-out component:
    δ_remove = ∫ [ pq·N(z; 1) − (e^ε−1)(1−p)·Σ_i Binom(i; d, q)·N(z; −i) − p(e^ε−1+q)·N(z; 0) ]₊ dz.
    That is the loss of a mechanism whose output is shifted by the hidden sampled sum, which nobody
    runs. The paper has no add direction; here it is the same construction with x' reversed. Its
    search for the crossing ends at z = 20, which makes its points for σ > 6 smaller still.
    """

    _SEARCH_ENDS_AT: ClassVar[float] = 20.0

    name: ClassVar[str] = "paper"
    title: ClassVar[str] = "the paper, as plotted (not an upper bound)"
    is_upper_bound: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = False

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        counts, mass, _ = binomial_window(self.round.d, self.round.q)
        top, sits_out, near = participation_terms(epsilon, self.round.p, self.round.q, direction)
        if direction is Direction.ADD and counts[0] == 0:
            # At distance 0 the sit-out component simply lowers the top weight.
            with np.errstate(divide="ignore"):
                top = np.log(np.maximum(np.exp(top) - mass[0] * np.exp(sits_out), 0.0))
            counts, mass = counts[1:], mass[1:]
        offset = 1 if direction is Direction.REMOVE else 0
        weights = [near] + [sits_out + math.log(weight) for weight in mass]
        distances = [1.0] + [float(count + offset) for count in counts]
        # The top density has its mean at 1 (remove) or 0 (add) in the paper's coordinate.
        return excess(
            top,
            weights,
            distances,
            self.round.noise_multiplier,
            search_up_to=self._SEARCH_ENDS_AT - offset,
        )


@dataclass(frozen=True)
class AsPrinted(Analysis):
    """The source paper's theorem as printed: *not an upper bound*; for comparison only.

    The exact loss when all gradients are one unit vector: P = (1−p)·N(0) + p·Binom(d+1, q)∗N and
    Q = (1−p)·N(0) + p·Binom(d, q)∗N. Such data exist, so this is a lower bound on the worst case.
    In the add direction x' points against the others.
    """

    name: ClassVar[str] = "printed"
    title: ClassVar[str] = "the paper's theorem, as printed (not an upper bound)"
    is_upper_bound: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = False

    def _delta(self, epsilon: Array, direction: Direction) -> Array:
        return collinear_delta(epsilon, self.round, direction)
