"""The privacy losses of a round on a lattice, and of many rounds alike.

A round's curve is sampled at knots and "connected by dots" (Doroshenko et al. 2022), which replaces
it by a curve that lies above it. See docs/mathematics.md, "Many rounds".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import fft

from accounting.basket import log_sum
from accounting.schemes import Direction, Scheme

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

Array = npt.NDArray[np.float64]

# Neighbouring knots x < y have y ≤ x·(1 + this) once the lattice is finer than that: losses of
# size x then gain at most (this/2)² of their square in variance, far below what can be seen.
_KNOT_RATIO = 0.01
# Chernoff's bound is taken at so many orders, around those that are best for sums that are close
# to normal and for sums of rare large losses.
_ORDERS = 48


@dataclass(frozen=True, kw_only=True)
class Losses:
    """One direction's losses: ``mass[k]`` is the probability of (lowest + k)·step."""

    step: float
    lowest: int
    mass: Array
    infinite: float

    def times(self, count: int, truncation: float) -> Losses:
        """Return the sum of ``count`` such losses.

        Args:
            count: At least 1.
            truncation: Sums in the far tails, of this probability at most, are cut off; that
                probability is added to the infinite loss.
        """
        low, high = self._bounds(count, truncation)
        length = high - low + 1
        # Sums outside the bounds wrap around into them, which only adds to finite losses.
        size = fft.next_fast_len(max(length, self.mass.size), real=True)
        sums = fft.irfft(fft.rfft(self.mass, size) ** count, size)
        return Losses(
            step=self.step,
            lowest=self.lowest * count + low,
            mass=np.roll(sums, -low)[:length],
            infinite=truncation - math.expm1(count * math.log1p(-self.infinite)),
        )

    def _bounds(self, count: int, truncation: float) -> tuple[int, int]:
        """Return between which indices all but ``truncation`` of the sum's probability lies."""
        index = np.flatnonzero(self.mass)
        mass = self.mass[index]
        variance = float(mass @ (index - mass @ index / mass.sum()) ** 2)
        low, high = 0, count * (self.mass.size - 1)
        if variance == 0:
            return low, high
        log_share = math.log(2 / truncation)
        best_if_normal = math.sqrt(2 * log_share / (count * variance))
        best_if_rare = log_share / self.mass.size
        orders = np.geomspace(
            min(best_if_normal, best_if_rare) / 8, max(best_if_normal, best_if_rare) * 8, _ORDERS
        )
        powers = np.log(mass)[:, None] + index[:, None] * orders
        high = min(high, math.ceil(np.min((count * log_sum(powers) + log_share) / orders)))
        powers = np.log(mass)[:, None] - index[:, None] * orders
        low = max(low, math.floor(np.max(-(count * log_sum(powers) + log_share) / orders)))
        return low, high

    def as_pmf(self) -> DensePLDPmf:
        """Return the losses as dp-accounting knows them."""
        from dp_accounting.pld.pld_pmf import DensePLDPmf

        return DensePLDPmf(self.step, self.lowest, self.mass, self.infinite, True)


def round_losses(scheme: Scheme, step: float, reach: float) -> tuple[Losses, Losses]:
    """Return one round's losses in both directions on the lattice of multiples of ``step``.

    Losses beyond ``reach`` count as infinite.
    """
    knots = _lattice_knots(max(1, math.ceil(reach / step)))
    epsilon = knots.astype(np.float64) * step
    remove = scheme.delta(epsilon, Direction.REMOVE)
    add = scheme.delta(epsilon, Direction.ADD)
    return (
        _one_direction(knots, epsilon, remove, add, step),
        _one_direction(knots, epsilon, add, remove, step),
    )


def sampled_losses(scheme: Scheme, epsilon: Array) -> tuple[Array, Array]:
    """Return the absolute non-zero losses of the remove direction and their probabilities.

    Args:
        scheme: The round.
        epsilon: Where to sample the curve, increasing from 0.
    """
    positive = _masses(epsilon, scheme.delta(epsilon, Direction.REMOVE))
    mirrored = _masses(epsilon, scheme.delta(epsilon, Direction.ADD))
    away = epsilon[1:]
    return np.concatenate([away, away]), np.concatenate([positive, mirrored * np.exp(-away)])


def _lattice_knots(last: int) -> npt.NDArray[np.int64]:
    """Return 0, 1, 2, ... and, further out, ever wider spaced integers up to ``last``."""
    dense = min(last, math.ceil(1 / _KNOT_RATIO))
    near = np.arange(dense + 1)
    if last == dense:
        return near
    count = math.ceil(math.log(last / dense) / math.log1p(_KNOT_RATIO)) + 1
    far = np.rint(np.geomspace(dense, last, count)).astype(np.int64)
    return np.unique(np.concatenate([near, far]))


def _masses(epsilon: Array, delta: Array) -> Array:
    """Return the probabilities of the losses ``epsilon[1:]`` under the piecewise-linear curve.

    Between knots the curve is linear in e^ε; a knot's probability is e^ε times the change of slope.
    """
    delta = np.minimum.accumulate(delta)
    gaps = np.diff(epsilon)
    # Slopes times e^ε of a gap's far and near end; the plain slopes overflow for wide gaps.
    far = np.diff(delta) / np.expm1(-gaps)
    near = far * np.exp(-gaps)
    return np.asarray(np.maximum(far - np.append(near[1:], 0.0), 0.0))


def _one_direction(
    knots: npt.NDArray[np.int64], epsilon: Array, curve: Array, opposite: Array, step: float
) -> Losses:
    """Return the pessimistic losses of one direction.

    A loss x of probability m in the opposite direction is a loss −x of probability m·e^−x in this
    one; what is left lies at 0.
    """
    positive = _masses(epsilon, curve)
    negative = _masses(epsilon, opposite) * np.exp(-epsilon[1:])
    infinite = float(curve[-1])
    lowest = int(knots[1:][negative > 0].max(initial=0))
    highest = int(knots[1:][positive > 0].max(initial=0))
    mass = np.zeros(lowest + highest + 1)
    seen = negative > 0
    mass[lowest - knots[1:][seen]] = negative[seen]
    seen = positive > 0
    mass[lowest + knots[1:][seen]] = positive[seen]
    mass[lowest] = max(0.0, 1.0 - infinite - positive.sum() - negative.sum())
    return Losses(step=step, lowest=-lowest, mass=mass, infinite=infinite)
