"""From a wish to the terms that meet it: least noise, most rounds, the best split of p and q.

Every answer is conservative: it meets the target by the same computation that reports ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.compose import Rounds, delta_after, epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up

LEAST_SIGMA = 0.01
MOST_SIGMA = 1e6
MOST_ROUNDS = 10_000_000
# Answers lie at most this far (relatively) above the least noise that meets the target; a single
# round needs no composition and costs next to nothing.
_PRECISION = 5e-4
_PRECISION_ONE_ROUND = 1e-8
# The computed loss is uneven by a few roundings; further than this nobody need look.
_MOST_STEPS_DOWN = 16


class CalibrationError(UserError):
    """The target cannot be met; the message says why."""


def least_sigma(
    analysis: type[Analysis],
    *,
    p: float,
    q: float,
    d: int,
    epsilon: float,
    delta: float,
    rounds: int,
    cap: float = math.inf,
    beside: Rounds = (),
) -> float:
    """Return the least noise multiplier that keeps ``rounds`` rounds within (ε, δ).

    Args:
        analysis: The analysis to calibrate by.
        p: Participation probability.
        q: Local sampling rate.
        d: Data-set size.
        epsilon: Wanted ε for all rounds together.
        delta: At this δ.
        rounds: Number of rounds.
        cap: Largest norm of the client's sum, in clip norms.
        beside: Other rounds, at prices of their own, that (ε, δ) must cover, too.

    Returns:
        A noise multiplier that meets the target, within 0.1 % of the least.

    Raises:
        CalibrationError: No noise multiplier up to 10⁶ meets the target.
    """
    validation.require_epsilon(epsilon)
    validation.require_delta(delta)
    validation.require_count("rounds", rounds, least=1)

    def shortfall(log_sigma: float) -> float:
        """Return how far, in logarithms, the loss is above the target; falls with the noise."""
        cost = analysis(Round(p=p, q=q, d=d, noise_multiplier=math.exp(log_sigma), cap=cap))
        if rounds == 1 and not beside:
            return math.log(max(cost.delta(epsilon), 1e-300) / delta)
        together = [*beside, (cost, rounds)]
        if epsilon == 0:
            return math.log(max(delta_after(together, 0.0), 1e-300) / delta)
        return math.log(max(epsilon_after(together, delta), 1e-300) / epsilon)

    high = 0.0
    while not shortfall(high) <= 0:
        high += math.log(4)
        if high > math.log(MOST_SIGMA):
            raise CalibrationError(
                f"No noise multiplier up to {MOST_SIGMA:g} keeps {rounds} rounds within epsilon = "
                f"{epsilon:g} at delta = {delta:g} (p = {p:g}, q = {q:g}): allow a larger epsilon "
                "or delta, fewer rounds, or sample less."
            )
    least = math.log(LEAST_SIGMA)
    low = high - math.log(4)
    while shortfall(low) <= 0:
        if low == least:
            return LEAST_SIGMA
        high, low = low, max(low - math.log(4), least)
    precision = _PRECISION_ONE_ROUND if rounds == 1 and not beside else _PRECISION
    return math.exp(_least_zero(shortfall, low, high, precision))


def _least_zero(
    shortfall: Callable[[float], float], low: float, high: float, precision: float
) -> float:
    """Return a point where ``shortfall`` is not positive, within ``precision`` of its zero."""
    from scipy import optimize

    root = float(optimize.brentq(shortfall, low, high, xtol=precision / 4, rtol=1e-12))
    # Near its zero the computed loss may be uneven by a rounding: step up to where it is met,
    # down while it still is.
    step = precision / 2
    while not shortfall(root) <= 0:
        root, step = root + step, 2 * step
        if root >= high:  # where the target is met, as the search began with it
            return high
    for _ in range(_MOST_STEPS_DOWN):
        if not (root - precision / 2 > low and shortfall(root - precision / 2) <= 0):
            break
        root -= precision / 2
    return root


def most_rounds(cost: Analysis, *, epsilon: float, delta: float) -> int:
    """Return the most rounds of one cost that stay within (ε, δ).

    Raises:
        CalibrationError: Not even one round fits, or more than ten million would.
    """
    validation.require_epsilon(epsilon)
    validation.require_delta(delta)

    def fits(rounds: int) -> bool:
        return epsilon_after([(cost, rounds)], delta) <= epsilon

    if not fits(1):
        raise CalibrationError(
            f"Not even one round fits: it costs epsilon = {rounded_up(cost.epsilon(delta), 6)} "
            f"at delta = {delta:g}, and epsilon = {epsilon:g} is allowed; use more noise or "
            "sample less."
        )
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if low > MOST_ROUNDS:
            raise CalibrationError(
                f"More than {MOST_ROUNDS:,} rounds fit within epsilon = {epsilon:g} at delta = "
                f"{delta:g}; there is no limit worth computing: use less noise or a smaller budget."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class Split:
    """One way to reach a mean batch size: p, q and cap, and the least noise they need."""

    p: float
    q: float
    sigma: float
    epsilon: float
    cap: float = math.inf


def splits_for_batch(
    analysis: type[Analysis],
    *,
    batch_size: float,
    clients: int,
    d: int,
    epsilon: float,
    delta: float,
    rounds: int,
    largest_p: float = 1.0,
    count: int = 7,
    caps: Sequence[float] = (math.inf,),
) -> list[Split]:
    """Return splits of p·q = batch_size/(clients·d), the one that needs the least noise first.

    Args:
        analysis: The analysis to calibrate by.
        batch_size: Wanted mean number of records in a round.
        clients: Number of clients.
        d: Records of each client.
        epsilon: Wanted ε for all rounds.
        delta: At this δ.
        rounds: Number of rounds.
        largest_p: How often a client can take part at most.
        count: How many p to try, from the largest to q = 1, evenly in log p.
        caps: Caps on a client's sum to try with each, in clip norms; at p = 1 none is needed.

    Raises:
        CalibrationError: The batch is larger than what the clients can give.
    """
    validation.require_positive("batch size", batch_size)
    validation.require_count("clients", clients, least=1)
    validation.require_count("d", d, least=1)
    validation.require_probability("largest p", largest_p)
    rate = batch_size / (clients * d)
    if rate > largest_p:
        raise CalibrationError(
            f"A mean batch of {batch_size:g} needs p·q = {rate:g}, more than the largest p = "
            f"{largest_p:g} gives with q = 1: the clients hold {clients * d} records in all."
        )
    found = []
    for p in np.unique(np.geomspace(largest_p, rate, count).clip(rate, largest_p)).tolist():
        q = min(1.0, rate / p)
        for cap in caps if p < 1 else (max(caps),):
            sigma = least_sigma(
                analysis,
                p=p,
                q=q,
                d=d,
                epsilon=epsilon,
                delta=delta,
                rounds=rounds,
                cap=cap,
            )
            cost = analysis(Round(p=p, q=q, d=d, noise_multiplier=sigma, cap=cap))
            spent = epsilon_after([(cost, rounds)], delta)
            found.append(Split(p=p, q=q, sigma=sigma, epsilon=spent, cap=cap))
    return sorted(found, key=lambda split: split.sigma)
