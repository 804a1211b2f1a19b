"""Sums in whole numbers of a fine cell, and noise on them before anything is rounded.

A floating-point sum forgets what lies under its largest term, so a client that may add something
large and take it away again can round everybody else's part to steps larger than the noise. In
whole numbers a sum is exact in every order: a client adds what it sent, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from coinflower.accounting.errors import UserError
from coinflower.learning.randomness import NoiseSource

Vector = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]

LARGEST_COUNT = 1 << 62
"""The most that all terms may add up to, in cells; the other half of 64 bits is for the noise."""
_CELL_EXPONENT = 16
_FINE_EXPONENT = 32
_MOST_NOISE = 1 << 58  # of a standard deviation, in cells: no draw is longer than 13 of them
_BLOCK = 1 << 20  # numbers that get noise at a time: a model may have many times as many
_SMALL_BLOCK = 1 << 14  # numbers that are counted at a time, in the processor's cache


def fine_cell(clip_norm: float) -> float:
    """Return the cell that a sum of clipped gradients is counted in: at most 2⁻³² clip norms.

    Each client's vector is cut off to it on its own. So a record moves the counted sum of n numbers
    by at most C + √n·cell, which is below C·(1 + 10⁻⁶) for up to 18 million numbers.
    """
    return _power_of_two(clip_norm, _FINE_EXPONENT)


def lattice_cell(noise_std: float) -> float:
    """Return the cell of what is published: 2⁻¹⁶ of the standard deviation's power of two."""
    return _power_of_two(noise_std, _CELL_EXPONENT)


def _power_of_two(length: float, below: int) -> float:
    """Return the largest power of two that is no larger than length·2^-below."""
    return math.ldexp(1.0, math.frexp(length)[1] - 1 - below)


class FixedPoint:
    """A sum of vectors in whole numbers of a cell.

    Args:
        length: How many numbers a vector has.
        cell: The unit, a power of two that does not depend on the data.

    Attributes:
        counts: The sum in cells.
    """

    def __init__(self, length: int, cell: float) -> None:
        self.cell = cell
        self.counts: Counts = np.zeros(length, np.int64)

    @classmethod
    def of(cls, vector: Vector, cell: float) -> FixedPoint:
        """Return a sum of one vector."""
        total = cls.__new__(cls)
        total.cell, total.counts = cell, _counted(vector, cell)
        return total

    def add(self, vector: Vector) -> None:
        """Add a vector, cut off to whole cells on its own.

        All vectors together must be shorter than ``LARGEST_COUNT`` cells; a caller that accepts
        vectors from others has to ensure this.
        """
        for block in _blocks(vector.size, _SMALL_BLOCK):
            self.counts[block] += _counted(vector[block], self.cell)

    def __getitem__(self, block: slice) -> Self:
        """Return a part of the sum, in the same memory."""
        part = self.__class__.__new__(self.__class__)
        part.cell, part.counts = self.cell, self.counts[block]
        return part

    @property
    def rounded(self) -> Vector:
        """The sum in single precision, without noise."""
        return (self.counts * self.cell).astype(np.float32)


def _counted(vector: Vector, cell: float) -> Counts:
    counts: Counts = np.empty(vector.size, np.int64)
    np.multiply(vector, 1 / cell, out=counts, dtype=np.float64, casting="unsafe")  # towards zero
    return counts


def add_noise(total: FixedPoint, noise_std: float, randomness: NoiseSource) -> Vector:
    """Return total + N(0, noise_std²) on a lattice that depends on ``noise_std`` alone.

    The lattice makes the noise's variance larger by at most 10⁻¹¹ of itself.

    Args:
        total: What is protected.
        noise_std: Standard deviation of the noise, above 0.
        randomness: Where it comes from.

    Raises:
        ValueError: The noise is not above 0, or is more than 64 bits can hold.
    """
    published = max(total.cell, lattice_cell(noise_std))
    noisy: Vector = np.empty(total.counts.size, np.float32)
    for block in _blocks(noisy.size, _BLOCK):
        noisy[block] = noisy_counts(total[block], noise_std, published, randomness)
    noisy *= np.float32(published)
    return noisy


def drawn_ahead(
    size: int, noise_std: float, randomness: NoiseSource
) -> list[npt.NDArray[np.float64]]:
    """Return the draws that `add_noise` asks for, one after the other, for a total of a size."""
    blocks = _blocks(size, _BLOCK)
    return [randomness.normal(min(block.stop, size) - block.start, noise_std) for block in blocks]


def make_noisy(vector: Vector, cell: float, noise_std: float, randomness: NoiseSource) -> None:
    """Count a vector in cells and add noise as `add_noise` does, in the vector's own memory."""
    for block in _blocks(vector.size, _BLOCK):
        vector[block] = add_noise(FixedPoint.of(vector[block], cell), noise_std, randomness)


def noisy_counts(
    total: FixedPoint, noise_std: float, cell: float, randomness: NoiseSource
) -> Counts:
    """Return total + N(0, noise_std²), rounded to whole numbers of a cell.

    Noise is drawn in double precision, rounded to the cells of the total and added in whole
    numbers. That is the same as rounding the exact noisy sum, so it reveals no more than that. Only
    then is the sum rounded to the coarser cell.

    A floating-point sum of both would keep no finer bits than its larger term has. Near zero, pure
    noise has many of them and noise on a gradient does not, so a few coordinates would reveal with
    certainty whether a client took part (Mironov, "On significance of the least significant bits
    for differential privacy", 2012). For the same reason noise must not be coarser than the total:
    up to 10⁴ clip norms, the most that a client prices, a double has bits below the cell.

    Args:
        total: What is protected.
        noise_std: Standard deviation of the noise, above 0.
        cell: What is counted in: a power of two, no finer than the cells of the total.
        randomness: Where the noise comes from.

    Raises:
        ValueError: The noise is not above 0, or is more than 64 bits can hold; or the cell is
            finer than those of the total.
    """
    if not 0 < noise_std <= _MOST_NOISE * total.cell:
        raise UserError(
            f"noise_std = {noise_std} must be above 0 and at most "
            f"{_MOST_NOISE * total.cell:g} on a sum in cells of {total.cell:g}"
        )
    if not cell >= total.cell:
        raise UserError(f"cell = {cell:g} must be at least {total.cell:g}, the sum's own.")
    # Every round does this, so it works in place, with few arrays to allocate, and with exact
    # reciprocals of powers of two.
    noise = randomness.normal(total.counts.size, noise_std)
    noise *= 1 / total.cell
    counts: Counts = np.empty(noise.size, np.int64)
    np.rint(noise, out=counts, casting="unsafe")
    counts += total.counts
    shift = round(math.log2(cell / total.cell))
    if shift:
        # Half-open cells: rounding half to even would favour every second one.
        counts += 1 << (shift - 1)
        counts >>= shift
    return counts


def _blocks(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, start + block)
