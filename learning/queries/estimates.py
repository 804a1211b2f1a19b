"""What noisy sums of blocks say, and how far off that may be.

The sums carry the noise and stand for a sample. To first order, an estimate f(h) of sums h has the
variance s²·|∇f|² + Σ h·(∇f)²: the first part is the noise, the second the sample, as if records
were drawn one by one (docs/mathematics.md, "Queries").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# With a sum that is not longer than so many times its noise, there is nothing to divide by.
_LEAST_OVER_NOISE = 3.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure that noisy sums give.

    Attributes:
        value: None if there was too little but noise.
        standard_error: How far off it is in the root mean square, by noise and sample; None with
            it.
    """

    value: float | None
    standard_error: float | None

    def to_fields(self) -> dict[str, Any]:
        """Return the figure for programs."""
        return {"value": self.value, "standard_error": self.standard_error}

    def scaled(self, factor: float) -> Estimate:
        """Return the figure in another unit."""
        if self.value is None or self.standard_error is None:
            return self
        return Estimate(value=self.value * factor, standard_error=self.standard_error * factor)

    def root(self) -> Estimate:
        """Return the square root of the figure."""
        if self.value is None or self.standard_error is None:
            return self
        value = math.sqrt(max(0.0, self.value))
        if value <= self.standard_error:  # a root is steep near 0
            return Estimate(value=value, standard_error=math.sqrt(self.standard_error))
        return Estimate(value=value, standard_error=self.standard_error / (2 * value))


NOTHING = Estimate(value=None, standard_error=None)


def mean(sums: Array, worth: Array, noise: float) -> Estimate:
    """Return the mean of what the entries of a block are worth.

    Args:
        sums: The noisy sum of a block.
        worth: What each entry is worth.
        noise: Standard deviation of the noise on each entry.
    """
    count = float(sums.sum())
    if not count > _LEAST_OVER_NOISE * noise * math.sqrt(sums.size):
        return NOTHING
    value = float(sums @ worth) / count
    error = _standard_error(sums, (worth - value) / count, noise)
    return _within(value, error, float(worth.min()), float(worth.max()))


def area_under_curve(yes: Array, no: Array, noise: float) -> Estimate:
    """Return how often a record of yes has the larger score than one of no; half if bins are equal.

    Args:
        yes: Noisy sum of the records of class 1 in bins of ascending scores.
        no: That of the records of class 0.
        noise: Standard deviation of the noise on each bin.
    """
    count_yes, count_no = float(yes.sum()), float(no.sum())
    if not min(count_yes, count_no) > _LEAST_OVER_NOISE * noise * math.sqrt(yes.size):
        return NOTHING
    below = np.cumsum(no) - no / 2
    above = np.cumsum(yes[::-1])[::-1] - yes / 2
    value = float(yes @ below) / (count_yes * count_no)
    by_yes = (below / count_no - value) / count_yes
    by_no = (above / count_yes - value) / count_no
    slopes = np.concatenate([by_yes, by_no])
    error = _standard_error(np.concatenate([yes, no]), slopes, noise)
    return _within(value, error, 0.0, 1.0)


def _standard_error(sums: Array, slopes: Array, noise: float) -> float:
    return math.sqrt(noise**2 * float(slopes @ slopes) + float(np.maximum(sums, 0) @ slopes**2))


def _within(value: float, error: float, least: float, largest: float) -> Estimate:
    return Estimate(value=min(max(value, least), largest), standard_error=error)
