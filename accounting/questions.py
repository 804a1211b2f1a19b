"""The questions people ask about rounds, one function each; the package `coinflower` offers them.

All of them speak of the certified bound for random participation with secret coins.
"""

from __future__ import annotations

import math

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.calibration import least_sigma, most_rounds
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.composition.tightness import realised_epsilon_after
from coinflower.accounting.mechanism import Round


def epsilon(round_: Round, *, rounds: int = 1, delta: float) -> float:
    """Return an upper bound on the ε that this many rounds cost a client's record at ``delta``."""
    return epsilon_after([(Certified(round_), rounds)], delta)


def epsilon_at_least(round_: Round, *, rounds: int = 1, delta: float) -> float:
    """Return a lower bound on the same ε: some data set loses at least as much."""
    return realised_epsilon_after(round_, rounds, delta)


def noise_multiplier(
    *, p: float, q: float, d: int, rounds: int, epsilon: float, delta: float, cap: float = math.inf
) -> float:
    """Return the least noise multiplier that keeps this many rounds within (ε, δ)."""
    return least_sigma(
        Certified, p=p, q=q, d=d, cap=cap, rounds=rounds, epsilon=epsilon, delta=delta
    )


def rounds(round_: Round, *, epsilon: float, delta: float) -> int:
    """Return how many such rounds fit within (ε, δ)."""
    return most_rounds(Certified(round_), epsilon=epsilon, delta=delta)
