"""The binomial distribution of how many of a client's other elements are sampled, cut to size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

# δ is computed to a relative 1e-6 down to 1e-13, so cut mass of this size, even if all of it
# were charged in full, does not show.
NEGLIGIBLE_MASS = 1e-22


def binomial_window(
    d: int, q: float, *, most: float = math.inf
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], float]:
    """Return the counts that matter, their probabilities, and an upper bound on the cut mass.

    Args:
        d: Number of trials.
        q: Probability of each.
        most: Counts above this are cut too.

    Returns:
        Counts i, probabilities Binom(i; d, q), and the probability of all other counts.
    """
    # Bernstein: P(|X − dq| ≥ t) ≤ 2·exp(−t²/(2(v + t/3))); t solves exponent = reach.
    reach = -math.log(NEGLIGIBLE_MASS / 2)
    variance = d * q * (1 - q)
    spread = reach / 3 + math.sqrt((reach / 3) ** 2 + 2 * reach * variance)
    low = max(0, math.floor(d * q - spread))
    high = int(min(d, math.ceil(d * q + spread), most))
    if high < low:
        return np.empty(0, dtype=np.int64), np.empty(0), 1.0
    counts = np.arange(low, high + 1)
    log_choose = (
        special.gammaln(d + 1) - special.gammaln(counts + 1) - special.gammaln(d - counts + 1)
    )
    with np.errstate(divide="ignore"):
        log_mass = log_choose + special.xlogy(counts, q) + special.xlog1py(d - counts, -q)
    counts, mass = _trimmed(counts, np.exp(log_mass))
    cut = min(1.0, _mass_below(int(counts[0]), d, q) + _mass_above(int(counts[-1]), d, q))
    # Logarithms of factorials of large numbers are rounded; what is missing must not be lost.
    total = float(mass.sum())
    return counts, mass * max(1.0, (1 - cut) / total) if total else mass, cut


def _trimmed(
    counts: npt.NDArray[np.int64], mass: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Drop the ends whose mass is negligible even in sum (Bernstein is generous)."""
    kept = np.flatnonzero(
        (np.cumsum(mass) > NEGLIGIBLE_MASS) & (np.cumsum(mass[::-1])[::-1] > NEGLIGIBLE_MASS)
    )
    if kept.size == 0:
        kept = np.array([int(np.argmax(mass))])
    inside = slice(int(kept[0]), int(kept[-1]) + 1)
    return counts[inside], mass[inside]


def _mass_below(count: int, d: int, q: float) -> float:
    return float(special.betaincc(count, d - count + 1, q)) if count > 0 else 0.0


def _mass_above(count: int, d: int, q: float) -> float:
    return float(special.betainc(count + 1, d - count, q)) if count < d else 0.0
