"""What many rounds cost together, kept as a curve, so that they need not be added up again.

The composed losses of both directions give δ(ε) at knots; joined by straight lines in e^ε they are
a profile that lies above the true one, and dominates the rounds like any other
(docs/mathematics.md, "What was spent before").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.losses import Losses, decaying_sums, lattice_knots
from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]
Rounds = Iterable[tuple[Analysis, int]]

KNOT_RATIO = 0.001
"""How much neighbouring knots differ: folded a thousand times, a loss x gains 0.0002·x² in variance
by it."""
# Sums of up to 2²⁰ positive numbers, twice, are rounded by less than this share of them.
_ROUNDED_UP = 1 + 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Past:
    """Some rounds as one.

    Attributes:
        counts: How many rounds of each scheme it stands for.
        epsilon: Knots, increasing from 0.
        remove: δ at the knots if a record is removed; the last one holds for every larger ε.
        add: The same if one is added.
    """

    counts: Mapping[Analysis, int]
    epsilon: Array
    remove: Array
    add: Array

    def delta(self, epsilon: Array, direction: Direction) -> Array:
        """Return δ for an array of ε ≥ 0: never below that of the rounds."""
        curve = self.remove if direction is Direction.REMOVE else self.add
        after = np.clip(np.searchsorted(self.epsilon, epsilon), 1, self.epsilon.size - 1)
        near, far = self.epsilon[after - 1], self.epsilon[after]
        at = np.minimum(epsilon, far)
        # (e^ε − e^near)/(e^far − e^near) without overflow.
        share = np.exp(at - far) * np.expm1(near - at) / np.expm1(near - far)
        share = np.clip(share, 0.0, 1.0)
        return np.asarray(curve[after - 1] * (1 - share) + curve[after] * share)

    @property
    def reach(self) -> float:
        """The largest finite loss."""
        return float(self.epsilon[-1])

    def is_within(self, counts: Mapping[Analysis, int]) -> bool:
        """Return whether every round that it stands for is among these."""
        return all(counts.get(scheme, 0) >= count for scheme, count in self.counts.items())

    def rest_of(self, counts: Mapping[Analysis, int]) -> dict[Analysis, int]:
        """Return which of these rounds it does not stand for."""
        rest = {scheme: count - self.counts.get(scheme, 0) for scheme, count in counts.items()}
        return {scheme: count for scheme, count in rest.items() if count > 0}


def past_of(counts: Mapping[Analysis, int], remove: Losses, add: Losses) -> Past:
    """Return the curve of composed losses, given for both directions on one lattice."""
    last = max(1, *(losses.lowest + losses.mass.size - 1 for losses in (remove, add)))
    knots = lattice_knots(last, KNOT_RATIO)
    curves = [_curve(losses, last)[knots] for losses in (remove, add)]
    # At ε = 0 both are the total variation, and as mirror images of each other must be equal.
    for curve in curves:
        curve[0] = max(curves[0][0], curves[1][0])
    return Past(
        counts=dict(counts),
        epsilon=knots.astype(np.float64) * remove.step,
        remove=curves[0],
        add=curves[1],
    )


def _curve(losses: Losses, last: int) -> Array:
    """Return δ at 0, 1, …, ``last`` times the step, rounded up.

    With T(k) for the probability of a finite loss of at least k steps h, and D for δ without the
    infinite loss, D(k−1) = (1 − e^−h)·T(k) + e^−h·D(k): sums of positive numbers only.
    """
    mass = np.zeros(last + 2)
    index = np.arange(losses.mass.size) + losses.lowest
    seen = index > 0
    mass[index[seen]] = losses.mass[seen]
    beyond = np.cumsum(mass[:0:-1])  # T(last + 1), …, T(1)
    finite = decaying_sums(-math.expm1(-losses.step) * beyond, losses.step)[::-1]
    return np.asarray(np.minimum(finite * _ROUNDED_UP + losses.infinite, 1.0))
