"""The binomial distribution of how many of a client's other records are sampled, cut to size."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import scipy

# δ is computed to a relative 1e-6 down to 1e-13, so cut mass of this size, even if all of it
# were charged in full, does not show.
NEGLIGIBLE_MASS = 1e-22
# How wrong a probability may be for a million trials; they are rounded up.
_ROUNDING = 2e-12
_RARE = 2.0**-80


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
    high = min(d, math.ceil(d * q + spread))
    if most < low:
        return np.empty(0, dtype=np.int64), np.empty(0), 1.0
    counts = np.arange(low, high + 1)
    counts, mass = _trimmed(counts, _probabilities(counts, d, q) * (1 + _ROUNDING))
    cut = _mass_below(int(counts[0]), d, q) + _mass_above(int(counts[-1]), d, q)
    kept = counts <= most
    return counts[kept], mass[kept], min(1.0, cut + float(mass[~kept].sum()))


def _probabilities(counts: npt.NDArray[np.int64], d: int, q: float) -> npt.NDArray[np.float64]:
    """Return Binom(i; d, q), by Loader's (2000) formula.

    Logarithms of factorials are large and nearly cancel. Taken apart by Stirling's formula only
    its small remainders are left, and two deviances, which are 0 where i = d·q.
    """
    result = np.zeros(counts.size)
    result[counts == 0] = math.exp(scipy.special.xlog1py(d, -q))
    result[counts == d] = math.exp(scipy.special.xlogy(d, q))
    inner = (counts > 0) & (counts < d)
    if q == 1 or not inner.any():
        return result
    hits = counts[inner].astype(np.float64)
    misses = d - hits
    # The rarer outcome's expectation has more digits.
    surplus = hits - d * q if q < 0.5 else d * (1 - q) - misses
    exponent = (
        _stirling_remainder(np.array([float(d)]))
        - _stirling_remainder(hits)
        - _stirling_remainder(misses)
        - _deviance(hits, d * q, -surplus)
        - _deviance(misses, d * (1 - q), surplus)
    )
    result[inner] = np.exp(exponent) * np.sqrt(d / (2 * math.pi * hits * misses))
    return result


def _stirling_remainder(n: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log n! − log(√(2πn)·(n/e)ⁿ) for n ≥ 1."""
    m = np.maximum(n, 16.0) ** 2
    series = 1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / m) / m) / m) / m
    small = np.minimum(n, 16.0)
    plain = scipy.special.gammaln(small + 1) - (small + 0.5) * np.log(small) + small
    plain = plain - 0.5 * math.log(2 * math.pi)
    return np.asarray(np.where(n < 16, plain, series / np.sqrt(m)))


def _deviance(
    count: npt.NDArray[np.float64], expected: float, shortfall: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return count·log(count/expected) + shortfall, with shortfall = expected − count."""
    share = shortfall / count
    near = np.abs(share) < 0.5
    log_ratio = np.where(near, -np.log1p(np.where(near, share, 0.0)), np.log(count / expected))
    return np.asarray(count * log_ratio + shortfall)


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
    return float(scipy.special.betaincc(count, d - count + 1, q)) if count > 0 else 0.0


def _mass_above(count: int, d: int, q: float) -> float:
    return float(scipy.special.betainc(count + 1, d - count, q)) if count < d else 0.0


@functools.lru_cache(maxsize=1 << 16)
def most_samples(declared_size: int, q: float) -> int:
    """Return how many records a round can have: more have a probability of at most 2⁻⁸⁰.

    The least k with P(Binom(d, q) > k) = I_q(k + 1, d − k) ≤ 2⁻⁸⁰.
    """
    too_few, enough = -1, declared_size
    while enough - too_few > 1:
        k = (too_few + enough) // 2
        if scipy.special.betainc(k + 1, declared_size - k, q) <= _RARE:
            enough = k
        else:
            too_few = k
    return enough
