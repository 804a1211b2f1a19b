"""From counts to lower bounds on ε that hold with a stated confidence.

If a mechanism is (ε, δ)-private, then P(E) ≤ e^ε·Q(E) + δ for every event E and both orders of a
neighbouring pair. So ε ≥ log((P(E) − δ)/Q(E)), with a lower bound for P(E) and an upper one for
Q(E) in their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_MOST_EPSILON = 50.0


def lower_rate(successes: Counts, trials: int, error: float) -> Array:
    """Return Clopper–Pearson's lower bound on a probability, wrong with probability ``error``."""
    k = np.asarray(successes, dtype=np.float64)
    if trials == 0:
        return np.zeros_like(k)
    bound = special.betaincinv(np.maximum(k, 1), trials - k + 1, error)
    return np.where(k > 0, bound, 0.0)


def upper_rate(successes: Counts, trials: int, error: float) -> Array:
    """Return Clopper–Pearson's upper bound on a probability, wrong with probability ``error``."""
    k = np.asarray(successes, dtype=np.float64)
    if trials == 0:
        return np.ones_like(k)
    bound = special.betaincinv(k + 1, np.maximum(trials - k, 1), 1 - error)
    return np.where(k < trials, bound, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tries:
    """How often events came about in one world; copies that share a coin are counted under it.

    Attributes:
        heads: For each event, how many copies of rounds with a participating client show it.
        heads_total: All such copies.
        tails: The same for rounds that the client sat out.
        tails_total: All such copies.
    """

    heads: Counts
    heads_total: int
    tails: Counts
    tails_total: int


@dataclass(frozen=True, kw_only=True)
class Coins:
    """How often the coin said yes; one count for both worlds, since it is flipped without data.

    Attributes:
        joined: How many coins said yes.
        flips: How many were flipped.
    """

    joined: int
    flips: int

    def range(self, error: float) -> tuple[float, float]:
        """Return bounds on the coin's probability, each wrong with probability ``error``."""
        joined = np.asarray(self.joined)
        return (
            float(lower_rate(joined, self.flips, error)),
            float(upper_rate(joined, self.flips, error)),
        )


def event_epsilon(
    likely: Tries, unlikely: Tries, coins: Coins | None, delta: float, error: float
) -> Array:
    """Return lower bounds on ε, one for each event, each wrong with probability ``error``.

    With π the coin, h and t the probabilities under heads and tails, and h', t' those of the other
    world, the bound is log((π·h + (1−π)·t − δ)/(π·h' + (1−π)·t')). It is monotone in π, so the ends
    of the coin's range suffice.

    Args:
        likely: The world in which the events are likelier.
        unlikely: The other world.
        coins: The coins; None if a client always takes part, and all is counted under heads.
        delta: The δ of the claim.
        error: Probability that a bound is too large, for an event fixed beforehand.

    Returns:
        Bounds, at least 0.
    """
    if coins is None:
        surplus = lower_rate(likely.heads, likely.heads_total, error / 2) - delta
        return _log_ratio(surplus, upper_rate(unlikely.heads, unlikely.heads_total, error / 2))
    part = error / 6
    low = [lower_rate(likely.heads, likely.heads_total, part)]
    low.append(lower_rate(likely.tails, likely.tails_total, part))
    high = [upper_rate(unlikely.heads, unlikely.heads_total, part)]
    high.append(upper_rate(unlikely.tails, unlikely.tails_total, part))
    bounds = [
        _log_ratio(
            coin * low[0] + (1 - coin) * low[1] - delta, coin * high[0] + (1 - coin) * high[1]
        )
        for coin in coins.range(part)
    ]
    return np.minimum(*bounds)


def _log_ratio(surplus: Array, rare: Array) -> Array:
    return np.where(surplus > rare, np.log(np.maximum(surplus, 1e-300) / rare), 0.0)


def one_run_p_value(guesses: int, right: int, epsilon: float, delta: float, canaries: int) -> float:
    """Return the most probable that so many right guesses are under (ε, δ)-privacy.

    Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023, theorem 5.2:
    each of m canaries is in the data with probability 1/2; an observer of the outcome guesses r of
    them and is right v times. With B = Binom(r, e^ε/(1+e^ε)),

        P[v or more right] ≤ P[B ≥ v] + 2·m·δ·max_i P[v > B ≥ v − i]/i.

    Args:
        guesses: r; about the other canaries nothing was guessed.
        right: v.
        epsilon: ε.
        delta: δ.
        canaries: m.
    """
    rate = float(special.expit(epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, rate))
    if right == 0:
        return 1.0
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
    slack = float(np.max(below / np.arange(1, right + 1)))
    return min(1.0, tail + 2 * canaries * delta * slack)


def one_run_epsilon(guesses: int, right: int, delta: float, canaries: int, error: float) -> float:
    """Return a lower bound on ε from the guesses of one run, wrong with probability ``error``."""

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(guesses, right, epsilon, delta, canaries) <= error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _MOST_EPSILON:
        low, high = high, 2 * high
    while high - low > 1e-6 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
