"""Losses that concrete sums really cause: pairs of mixtures of Gaussians, on a line or in a plane.

The output is one mixture of Gaussians with x' and another one without it. Such a pair's loss is a
lower bound on the worst case (docs/mathematics.md, "How tight"). It is computed from the
probabilities of narrow cells of outputs: an observer of the cell learns no more than one of the
output, so that cells are a lower bound, too, however wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy

from coinflower.accounting.analyses.binomial import binomial_window

if TYPE_CHECKING:
    from coinflower.accounting.mechanism import Direction

Array = npt.NDArray[np.float64]

# Standard deviations beyond the outermost component that hold all the mass that matters.
_REACH = 12.0
# Finer cells bring the figures nearer to the truth: these leave a few parts in 10⁴.
_CELLS_PER_SIGMA = 1024
_PLANAR_CELLS_PER_SIGMA = 24
_MOST_CELLS = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class MixturePair:
    """Two mixtures of Gaussians of deviation σ with the same means.

    Attributes:
        means: Where the components lie, increasing.
        without: Their weights without x', which add up to 1.
        gain: By how much the weights are larger with x'.
        sigma: The deviation.
    """

    means: Array
    without: Array
    gain: Array
    sigma: float

    def cells(self) -> tuple[Array, Array]:
        """Return the cells' probabilities without x', and how much larger they are with it."""
        edges = _edges(self.means[0], self.means[-1], self.sigma, _CELLS_PER_SIGMA, _MOST_CELLS)
        base, gain = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        for mean, weight, more in zip(self.means, self.without, self.gain, strict=True):
            mass = _masses((edges - mean) / self.sigma)
            base += weight * mass
            gain += more * mass
        return base, gain

    def delta(self, epsilon: float, direction: Direction) -> float:
        """Return δ(ε) of the pair, from below.

        The outputs that speak for the first world are found cell by cell; any set of outputs gives
        a lower bound.
        """
        base, gain = self.cells()
        excess = (
            gain - math.expm1(epsilon) * base
            if direction == "remove"
            else -math.exp(epsilon) * gain - math.expm1(epsilon) * base
        )
        return max(0.0, float(excess[excess > 0].sum()) * (1 - 1e-9))


def planar_cells(
    *, p: float, q: float, d: int, sigma: float, angle: float, length: float = 1.0
) -> tuple[Array, Array]:
    """Return base and gain of the cells if x' has a unit gradient at ``angle`` to the others.

    Along the first axis lie the sums of the others, which share one gradient of length ``length``;
    along the second only x' moves anything. There is no cap.
    """
    counts, mass = _counts(d, q, sigma / length)
    means, turn = counts * length, math.cos(angle)
    x = _edges(
        min(0.0, turn), means[-1] + max(turn, 0.0), sigma, _PLANAR_CELLS_PER_SIGMA, _MOST_CELLS >> 8
    )
    y = _edges(0.0, math.sin(angle), sigma, _PLANAR_CELLS_PER_SIGMA, 1 << 10)

    def sums(shift: float) -> Array:
        parts = (
            weight * _masses((x - mean - shift) / sigma)
            for mean, weight in zip(means, mass, strict=True)
        )
        return np.asarray(sum(parts))

    across, moved = _masses(y / sigma), _masses((y - math.sin(angle)) / sigma)
    others = sums(0.0)
    base = np.outer((1 - p) * _masses(x / sigma) + p * others, across)
    gain = p * q * (np.outer(sums(turn), moved) - np.outer(others, across))
    return base.ravel(), gain.ravel()


def _edges(first: float, last: float, sigma: float, per_sigma: int, most: int) -> Array:
    """Return the edges of cells that hold all the mass of components between two means."""
    first, last = first - _REACH * sigma, last + _REACH * sigma
    return np.linspace(first, last, min(math.ceil((last - first) / sigma * per_sigma), most) + 1)


def _masses(edges: Array) -> Array:
    """Return the standard normal probabilities between neighbouring edges, precise in the tails."""
    tails = scipy.special.ndtr(-np.abs(edges))
    mass = np.abs(np.diff(tails))
    middle = np.flatnonzero((edges[:-1] < 0) & (edges[1:] > 0))
    mass[middle] = 1 - tails[middle] - tails[middle + 1]
    return np.asarray(mass)


def aligned_pair(
    *,
    p: float,
    q: float,
    d: int,
    sigma: float,
    cap: float,
    direction: Direction,
    length: float = 1.0,
) -> MixturePair:
    """Return the pair of a client whose other records share one gradient; such data exist.

    x' has a unit gradient that points the same way (remove), or against the others (add). The
    mechanism cuts every sum to the length ``cap``: shorter gradients of the others leave room for
    x', which is why a cap makes less than full length the worst.
    """
    step = 1.0 if direction == "remove" else -1.0
    counts, mass = _counts(d, q, sigma / length)
    before = np.minimum(counts * length, cap)
    after = np.clip(counts * length + step, -cap, cap)
    return _pair(p, q, sigma, before, after, mass)


def worst_pair(
    *, p: float, q: float, d: int, sigma: float, level: float, direction: Direction
) -> MixturePair:
    """Return the pair that attains the bound: sums of length min(i, level), and x' adds 1 to it.

    At level = t* − τ (remove) or t* − τ + 1 (add) its loss equals the bound. No sum of vectors
    behaves like that for every i; it is what no argument from lengths can exclude.
    """
    step = 1.0 if direction == "remove" else -1.0
    counts, mass = _counts(d, q, sigma)
    before = np.minimum(counts, level)
    return _pair(p, q, sigma, before, before + step, mass)


def _counts(d: int, q: float, sigma: float) -> tuple[Array, Array]:
    """Return numbers of sampled records and their probabilities, none rounded up.

    Records beyond the number at which participation is plain to see may as well have zero
    gradients: that is a data set too, and it keeps the window small for any d.
    """
    enough = math.ceil((_REACH * sigma + 40) / q)
    counts, mass, _ = binomial_window(min(d, enough), q)
    return counts.astype(np.float64), mass / mass.sum()


def _pair(
    p: float, q: float, sigma: float, before: Array, after: Array, mass: Array
) -> MixturePair:
    means, place = np.unique(np.concatenate([[0.0], before, after]), return_inverse=True)
    old, new = place[1 : 1 + before.size], place[1 + before.size :]
    without, gain = np.zeros(means.size), np.zeros(means.size)
    without[place[0]] = 1 - p
    np.add.at(without, old, p * mass)
    np.add.at(gain, old, -p * q * mass)
    np.add.at(gain, new, p * q * mass)
    return MixturePair(means=means, without=without, gain=gain, sigma=sigma)
