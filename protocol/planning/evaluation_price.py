"""What evaluations on clients' records cost a planned training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round

USUAL_SHARE = 0.25
"""Of ε: what evaluations cost on their own if nobody says."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPrice:
    """Evaluations beside a training, both within one ε.

    Attributes:
        every: Rounds of training between two of them.
        times: How many there are.
        epsilon: What they cost on their own.
        sigma: Their noise multiplier.
        training_sigma: What the training needs then.
        together: ε of both.
    """

    every: int
    times: int
    epsilon: float
    sigma: float
    training_sigma: float
    together: float

    def figures(self) -> dict[str, Any]:
        """Return the price for programs."""
        return dict(vars(self))


def price_of_evaluations(
    analysis: type[Analysis],
    training: Round,
    *,
    rounds: int,
    every: int,
    epsilon: float,
    delta: float,
    share: float = USUAL_SHARE,
) -> EvaluationPrice:
    """Return the noise of evaluations, and of a training that leaves them their part of ε.

    Args:
        analysis: The analysis to calibrate by.
        training: A round of the training; evaluations have its p, q and cap.
        rounds: Of the training.
        every: Rounds between two evaluations; the last model is always measured.
        epsilon: For both together.
        delta: At this δ.
        share: What evaluations cost on their own, as a share of ε.
    """
    times = math.ceil(rounds / every)
    p, q, d, cap = training.p, training.q, training.d, training.cap
    alone = share * epsilon
    sigma = least_sigma(analysis, p=p, q=q, d=d, cap=cap, epsilon=alone, delta=delta, rounds=times)
    beside = [(analysis(Round(p, q, d, sigma, cap)), times)]
    training_sigma = least_sigma(
        analysis,
        p=p,
        q=q,
        d=d,
        cap=cap,
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        beside=beside,
    )
    return priced(
        analysis,
        replace(training, noise_multiplier=training_sigma),
        rounds=rounds,
        every=every,
        sigma=sigma,
        delta=delta,
    )


def priced(
    analysis: type[Analysis],
    training: Round,
    *,
    rounds: int,
    every: int,
    sigma: float,
    delta: float,
) -> EvaluationPrice:
    """Return what evaluations with some noise cost beside a training.

    Args:
        analysis: The analysis that charges both.
        training: A round of the training; evaluations have its p, q and cap.
        rounds: Of the training.
        every: Rounds between two evaluations.
        sigma: The evaluations' noise multiplier.
        delta: At this δ.
    """
    times = math.ceil(rounds / every)
    beside = [(analysis(replace(training, noise_multiplier=sigma)), times)]
    return EvaluationPrice(
        every=every,
        times=times,
        epsilon=epsilon_after(beside, delta),
        sigma=sigma,
        training_sigma=training.noise_multiplier,
        together=epsilon_after([*beside, (analysis(training), rounds)], delta),
    )
