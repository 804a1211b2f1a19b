"""The privacy losses of a round on a lattice.

A round's curve is sampled at knots and "connected by dots" (Doroshenko et al. 2022), which replaces
it by a curve that lies above it. See docs/mathematics.md, "Many rounds".
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from coinflower.accounting.mechanism import Direction

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

Array = npt.NDArray[np.float64]

# Neighbouring knots x < y have y ≤ x·(1 + this) once the lattice is finer than that: losses of
# size x then gain at most (this/2)² of their square in variance, far below what can be seen.
_KNOT_RATIO = 0.01
_LARGEST_EXPONENT = 200.0


class Curve(Protocol):
    """What a round, or what was before it, costs: δ in either direction, for every ε ≥ 0."""

    def delta(self, epsilon: Array, direction: Direction) -> Array:
        """Return δ(ε)."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """One direction's losses: ``mass[k]`` is the probability of (lowest + k)·step."""

    step: float
    lowest: int
    mass: Array
    infinite: float

    def as_pmf(self) -> DensePLDPmf:
        """Return the losses as dp-accounting knows them."""
        from dp_accounting.pld.pld_pmf import DensePLDPmf

        return DensePLDPmf(self.step, self.lowest, self.mass, self.infinite, True)

    def epsilon(self, delta: float) -> float:
        """Return the least ε ≥ 0 with δ(ε) ≤ delta, ∞ if there is none; rounded up.

        For ε up to the loss ℓ and above the one before it, δ(ε) = tail − e^(ε − ℓ)·mirrored, where
        tail is the mass from ℓ on, and mirrored the same with each mass times e^(ℓ − its loss).
        """
        if not self.infinite <= delta:
            return math.inf
        losses = (self.lowest + np.arange(self.mass.size)) * self.step
        beyond = losses > 0
        losses, mass = losses[beyond], self.mass[beyond]
        rounding = 4 * (losses.size + 256) * 2.0**-53
        tail = self.infinite + np.cumsum(mass[::-1])[::-1] * (1 + rounding)
        mirrored = decaying_sums(mass[::-1], self.step)[::-1] * (1 - rounding)
        # δ at each loss falls along the lattice; the loss itself adds nothing there.
        exceeds = int(np.flatnonzero(np.r_[True, tail - mirrored > delta])[-1])
        before = float(losses[exceeds - 1]) if exceeds else 0.0
        if exceeds == losses.size or not tail[exceeds] > delta:
            return before
        surplus = (float(tail[exceeds]) - delta) / float(mirrored[exceeds])
        return max(before, float(losses[exceeds]) + math.log(surplus))


def decaying_sums(values: Array, step: float) -> Array:
    """Return s_k = values_k + e^−step·s_(k−1), for values that are not negative.

    In blocks over which e^(step·k) stays moderate, so that a plain cumulative sum will do. The sums
    are rounded by a relative 4·(size + 256)·2⁻⁵³ at most. Filters of scipy could do it, too, but
    take a third of a second to import.
    """
    decay = math.exp(-step)
    if step > 1:
        sums = itertools.accumulate(values.tolist(), lambda before, value: value + decay * before)
        return np.array(list(sums))
    length = int(_LARGEST_EXPONENT / step)
    growth = np.exp(step * np.arange(min(length, values.size)))
    result, before = np.empty_like(values), 0.0
    for start in range(0, values.size, length):
        part = values[start : start + length]
        scale = growth[: part.size]
        block = (np.cumsum(part * scale) + decay * before) / scale
        result[start : start + length] = block
        before = float(block[-1])
    return result


def round_losses(
    curve: Curve, step: float, reach: float, *, knot_ratio: float = _KNOT_RATIO
) -> tuple[Losses, Losses]:
    """Return one round's losses in both directions on the lattice of multiples of ``step``.

    Losses beyond ``reach`` count as infinite.
    """
    knots = lattice_knots(max(1, math.ceil(reach / step)), knot_ratio)
    epsilon = knots.astype(np.float64) * step
    remove = curve.delta(epsilon, Direction.REMOVE)
    add = curve.delta(epsilon, Direction.ADD)
    return (
        _one_direction(knots, epsilon, remove, add, step),
        _one_direction(knots, epsilon, add, remove, step),
    )


def sampled_losses(curve: Curve, epsilon: Array) -> tuple[Array, Array]:
    """Return the absolute non-zero losses of the remove direction and their probabilities.

    Args:
        curve: The round.
        epsilon: Where to sample the curve, increasing from 0.
    """
    positive = _masses(epsilon, curve.delta(epsilon, Direction.REMOVE))
    mirrored = _masses(epsilon, curve.delta(epsilon, Direction.ADD))
    away = epsilon[1:]
    return np.concatenate([away, away]), np.concatenate([positive, mirrored * np.exp(-away)])


def lattice_knots(last: int, ratio: float) -> npt.NDArray[np.int64]:
    """Return 0, 1, 2, ... and, further out, ever wider spaced integers up to ``last``."""
    dense = min(last, math.ceil(1 / ratio))
    near = np.arange(dense + 1)
    if last == dense:
        return near
    count = math.ceil(math.log(last / dense) / math.log1p(ratio)) + 1
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
