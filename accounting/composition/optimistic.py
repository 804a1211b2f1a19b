"""What many rounds cost at least: losses on a lattice, none of which is rounded up.

A mechanism that hides more is easier to bound from below than to compute exactly: outputs may be
merged, and losses may be taken to be smaller than they are. Both only help the client, so the
composed ε and δ are lower bounds (docs/mathematics.md, "How tight").
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy

from coinflower.accounting.composition.losses import decaying_sums

Array = npt.NDArray[np.float64]

# Neighbouring lattice points that carry losses differ by at most this share, as long as the
# lattice is finer than that.
_KNOT_RATIO = 0.005
# Losses whose probability is smaller even in sum are taken to be none at all.
_NEGLIGIBLE = 1e-16
_ROUNDING = 2.0**-53
_ROUNDINGS_PER_STAGE = 8.0
_ORDERS = 64
_VARIANCE_SHARE = 0.002
_MOST_LATTICE_POINTS = 1 << 20
_DEVIATIONS = 16.0
_OFFSETS_TRIED = 8


def least_sum(base: Array, gain: Array, rounds: int, delta: float) -> LeastSum:
    """Return the losses of ``rounds`` equal rounds, from below.

    Args:
        base: Probabilities of one round's cells of outputs in the second world.
        gain: By how much they are larger in the first world.
        rounds: At least 1.
        delta: The δ that matters; what is rounded stays far below it.
    """
    return LeastLosses(base, gain, _lattice_step(base, gain, rounds)).after(rounds, 1e-6 * delta)


class LeastLosses:
    """One round's losses, moved onto a lattice so that they tell less than the outputs do.

    ``mass[k]`` is the probability of the loss offset + (lowest + k)·step; a little may be missing.
    """

    def __init__(self, base: Array, gain: Array, step: float) -> None:
        """Merge cells of outputs until their losses lie on a lattice.

        Args:
            base: Probabilities of the cells in the second world.
            gain: By how much they are larger in the first world.
            step: Distance of neighbouring lattice points.
        """
        losses, base, gain = _sorted(base, gain)
        self.step = step
        # One lattice point must be where most losses are; which is found by trying.
        self.offset = float(losses[np.searchsorted(np.cumsum(base + gain), 0.5)])
        for _ in range(_OFFSETS_TRIED):
            knots, mass, excess = _merged(losses, base, gain, self.offset, step)
            self.offset += excess
        self.offset += min(excess, 0.0) - abs(excess)
        self.lowest = int(knots[0])
        self.mass: Array = np.zeros(int(knots[-1] - knots[0]) + 1)
        self.mass[knots - knots[0]] = mass

    def after(self, rounds: int, truncation: float) -> LeastSum:
        """Return the sum of ``rounds`` independent losses.

        Args:
            rounds: At least 1.
            truncation: Sums of this probability at most may be misplaced, which is allowed for.
        """
        low, high = self._window(rounds, truncation)
        size = scipy.fft.next_fast_len(max(high - low + 1, self.mass.size), real=True)
        transform = scipy.fft.rfft(self.mass, size)
        mass = scipy.fft.irfft(_power(transform, rounds), size)[np.arange(low, high + 1) % size]
        # How wrong the transform's power may be, and by Parseval's theorem and Cauchy and Schwarz'
        # inequality the sum of any of the probabilities.
        moduli = np.abs(transform)
        error = _ROUNDING * _ROUNDINGS_PER_STAGE * (math.log2(size) + 1)
        errors = _power(moduli + error, rounds) - _power(moduli, rounds)
        errors += _power(moduli, rounds) * error * rounds
        wrong = math.sqrt(2) * float(np.linalg.norm(errors)) + truncation
        lowest = rounds * (self.offset + self.lowest * self.step)
        losses = lowest + np.arange(low, high + 1) * self.step
        return LeastSum(np.asarray(losses), np.maximum(mass, 0.0), self.step, wrong)

    def _window(self, rounds: int, truncation: float) -> tuple[int, int]:
        """Return between which indices all but ``truncation`` of the sum lies, by Chernoff."""
        index = np.flatnonzero(self.mass)
        mass = self.mass[index]
        total = mass.sum()
        variance = float(mass @ (index - mass @ index / total) ** 2 / total) * rounds
        log_share = math.log(2 / truncation)
        scale = math.sqrt(2 * log_share / max(variance, 1e-300))
        rare = log_share / max(1, self.mass.size)
        orders = np.geomspace(min(scale, rare) / 8, max(scale, rare) * 8, _ORDERS)

        def bound(order: float) -> float:
            exponents = order * index
            largest = exponents.max()
            moment = largest + math.log(float(mass @ np.exp(exponents - largest)))
            return float((rounds * moment + log_share) / order)

        high = min(bound(order) for order in orders)
        low = max(bound(-order) for order in orders)
        last = rounds * (self.mass.size - 1)
        return max(0, math.floor(low)), min(last, math.ceil(high))


class LeastSum:
    """The sum of many losses, from below; ``wrong`` bounds all its errors together."""

    def __init__(self, losses: Array, mass: Array, step: float, wrong: float) -> None:
        """Hold losses, which are ``step`` apart, and their probabilities."""
        self._losses = losses
        self._mass = mass
        self._step = step
        self._wrong = wrong

    def delta(self, epsilon: float) -> float:
        """Return a δ that all the rounds together reach at ``epsilon``."""
        beyond = self._losses > epsilon
        excess = -np.expm1(epsilon - self._losses[beyond])
        return max(0.0, float(self._mass[beyond] @ excess) - self._wrong)

    def epsilon(self, delta: float) -> float:
        """Return an ε ≥ 0 below which (ε, δ) is not met."""
        if self.delta(0.0) <= delta:
            return 0.0
        # δ(ε) = tail(ε) − (sum of e^(ε − loss) beyond): on the lattice by cumulated sums.
        positive = self._losses > 0
        losses, mass = self._losses[positive], self._mass[positive]
        tail = np.cumsum(mass[::-1])[::-1]
        mirrored = decaying_sums(mass[::-1], self._step)[::-1]
        # Just below each loss; the sums beyond it include it.
        reached = tail - mirrored - self._wrong
        place = int(np.count_nonzero(reached >= delta))
        if place == losses.size:
            return float(losses[-1])
        # Between losses[place − 1] and losses[place] the sums are those of losses[place].
        surplus = tail[place] - self._wrong - delta
        before, after = float(losses[place - 1]) if place else 0.0, float(losses[place])
        found = after + math.log(surplus / mirrored[place]) if surplus > 0 else -math.inf
        return min(max(found, before), after)


def _lattice_step(base: Array, gain: Array, rounds: int) -> float:
    """Return a power of two as step.

    Merging cells takes away at most min(step·|loss|, step²/4) of the variance; all rounds together
    may lose a fixed share.
    """
    losses, base, gain = _sorted(base, gain)
    mass, sizes = base + gain, np.abs(losses)
    variance = float((mass * sizes**2).sum())
    reach = float(sizes.max())
    if variance == 0:
        return 1.0
    finest = max(2 * reach, _DEVIATIONS * math.sqrt(rounds * variance)) / _MOST_LATTICE_POINTS
    step, allowed = 2.0 ** math.ceil(math.log2(reach)), _VARIANCE_SHARE * variance
    while step > finest:
        if float((mass * np.minimum(step * sizes, step**2 / 4)).sum()) <= allowed:
            break
        step /= 2
    return step


def _knots(first: int, last: int) -> npt.NDArray[np.int64]:
    """Return integers from ``first`` to ``last``, dense near 0 and ever wider spaced beyond."""
    dense = math.ceil(1 / _KNOT_RATIO)
    far = max(abs(first), abs(last), dense + 1)
    count = math.ceil(math.log(far / dense) / math.log1p(_KNOT_RATIO)) + 2
    outer = np.rint(np.geomspace(dense, far, count)).astype(np.int64)
    knots = np.unique(np.concatenate([-outer, np.arange(-dense, dense + 1), outer]))
    inside = knots[(knots > first) & (knots <= last)]
    return np.concatenate([[first], inside])


def _sorted(base: Array, gain: Array) -> tuple[Array, Array, Array]:
    """Return losses in increasing order, and base and gain of their cells; far tails are cut."""
    seen = (base > 0) & (base + gain > 0)
    base, gain = base[seen], gain[seen]
    losses = np.log1p(gain / base)
    order = np.argsort(losses)
    first = (base + gain)[order]
    kept = (np.cumsum(first) > _NEGLIGIBLE) & (np.cumsum(first[::-1])[::-1] > _NEGLIGIBLE)
    order = order[kept]
    return losses[order], base[order], gain[order]


def _merged(
    losses: Array, base: Array, gain: Array, offset: float, step: float
) -> tuple[npt.NDArray[np.int64], Array, float]:
    """Return lattice points, their probabilities, and by how much point 0 has a larger loss.

    All other points have at least the loss of their place.
    """
    first, last = (math.floor((losses[end] - offset) / step) for end in (0, -1))
    knots = _knots(min(first, 0), max(last, 0))
    at = offset + np.append(knots, knots[-1] + 1) * step
    cell = np.searchsorted(at[1:-1], losses, side="right")
    base, gain = (
        np.bincount(cell, weights=each, minlength=knots.size).astype(np.float64)
        for each in (base, gain)
    )
    middle = int(np.searchsorted(knots, 0))
    stays = _stays(base, gain, at, middle)
    base, gain = (stays * each + np.append(0.0, ((1 - stays) * each)[:-1]) for each in (base, gain))
    excess = math.log1p(gain[middle] / base[middle]) - at[middle] if base[middle] > 0 else 0.0
    return knots, base + gain, excess


def _stays(base: Array, gain: Array, at: Array, middle: int) -> Array:
    """Return which share of each cell stays at its lower lattice point; the rest moves up by one.

    Cell k lies between the points k and k + 1. Merged outputs have the loss log(P/Q) of their sums,
    which must not be below that of the point they are put on. What the part of cell k that moves
    up lacks there, Q·e^loss − P, the part of cell k + 1 that stays must have to spare. Going from
    the ends, where there is little, to the middle keeps the shares between 0 and 1.
    """
    lacking = np.maximum(np.expm1(at[1:]) * base - gain, 0.0).tolist()
    spare = np.maximum(gain - np.expm1(at[:-1]) * base, 0.0).tolist()
    last = base.size - 1
    stays = [1.0] * base.size
    if middle:
        stays[0] = 0.0
    for k in range(1, middle):
        wanted = (1 - stays[k - 1]) * lacking[k - 1]
        if wanted > spare[k]:  # then less of the cell below moves up
            stays[k - 1] = 1 - spare[k] / lacking[k - 1]
            wanted = spare[k]
        stays[k] = wanted / spare[k] if spare[k] > 0 else 0.0
    for k in range(last - 1, middle - 1, -1):
        available = stays[k + 1] * spare[k + 1]
        stays[k] = 1 - min(1.0, available / lacking[k]) if lacking[k] > 0 else 0.0
    return np.array(stays)


def _power(base: npt.NDArray[np.complex128], count: int) -> npt.NDArray[np.complex128]:
    result = np.ones_like(base)
    while count:
        if count % 2:
            result *= base
        count //= 2
        if count:
            base = base * base
    return result
