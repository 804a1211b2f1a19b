"""Random check-ins (Balle et al. 2020), the prior work that the paper compares with."""

from __future__ import annotations

import math

import numpy as np

from coinflower.accounting.analyses.baselines import OnlyLocalSampling
from coinflower.accounting.mechanism import Round


def check_in_curve(
    *, p: float, q: float, noise_multiplier: float, slots: int = 1
) -> list[tuple[float, float]]:
    """Return (ε, δ) pairs of a fixed window of check-ins, by increasing ε.

    The client checks in with probability p to one of ``slots`` slots and answers through a local
    randomiser, here the q-subsampled Gaussian, which is (ε₀, δ₀)-DP for every ε₀. By Theorem 3.2 of
    "Privacy Amplification via Random Check-Ins", if

        δ₀ ≤ (1 − e^−ε₀)·δ₁ / (4·e^ε₀·(2 + ln(2/δ₁)/ln(1/(1 − e^−5ε₀)))),

    the protocol is (ε, δ + m·(e^ε + 1)·δ₁)-DP with, for E = e^{8ε₀} and m slots,
    ε = p²·E·(E − 1)²/(2m) + p·(E − 1)·sqrt(2·E·ln(1/δ)/m).
    """
    local = OnlyLocalSampling(Round(p=1.0, q=q, d=0, noise_multiplier=noise_multiplier))
    pairs = []
    for local_epsilon in np.geomspace(1e-3, 0.5, 400).tolist():
        slack = _least_slack(local_epsilon, local.delta(local_epsilon))
        if slack is None:
            continue
        grown = math.exp(8 * local_epsilon)
        for delta in np.geomspace(1e-12, 1e-1, 40).tolist():
            epsilon = p**2 * grown * (grown - 1) ** 2 / (2 * slots)
            epsilon += p * (grown - 1) * math.sqrt(2 * grown * math.log(1 / delta) / slots)
            if epsilon < 50:
                pairs.append((epsilon, delta + slots * (math.exp(epsilon) + 1) * slack))
    frontier: list[tuple[float, float]] = []
    for epsilon, delta in sorted(pairs):
        if delta < 1 and (not frontier or delta < frontier[-1][1]):
            frontier.append((epsilon, delta))
    return frontier


def _least_slack(local_epsilon: float, local_delta: float) -> float | None:
    """Return the least δ₁ that allows the local δ₀, None if none below 1 does."""

    def allowed(slack: float) -> float:
        rarity = math.log(1 / -math.expm1(-5 * local_epsilon))
        share = -math.expm1(-local_epsilon) * slack
        return share / (4 * math.exp(local_epsilon) * (2 + math.log(2 / slack) / rarity))

    low, high = 1e-300, 1.0
    if allowed(high) < local_delta:
        return None
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if allowed(middle) >= local_delta else (middle, high)
    return high
