"""What evaluations cost a planned training: both together stay within one ε."""

from __future__ import annotations

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.protocol.planning.evaluation_price import price_of_evaluations

ROUND = Round(0.5, 0.2, 40, 1.0)
LIMITS = {"rounds": 20, "epsilon": 2.0, "delta": 1e-4}


def test_both_together_cost_what_was_stated_and_no_more() -> None:
    price = price_of_evaluations(Certified, ROUND, every=7, **LIMITS)  # type: ignore[arg-type]
    costs = [
        (Certified(Round(0.5, 0.2, 40, price.sigma)), 3),
        (Certified(Round(0.5, 0.2, 40, price.training_sigma)), 20),
    ]
    assert price.times == 3
    assert epsilon_after(costs, 1e-4) <= 2.0
    assert price.together == pytest.approx(2.0, rel=2e-3)
    assert price.epsilon <= 0.5


def test_evaluations_cost_the_training_noise_but_less_than_their_share() -> None:
    plain = least_sigma(Certified, p=0.5, q=0.2, d=40, **LIMITS)  # type: ignore[arg-type]
    less = least_sigma(Certified, p=0.5, q=0.2, d=40, rounds=20, epsilon=1.5, delta=1e-4)
    price = price_of_evaluations(Certified, ROUND, every=10, **LIMITS)  # type: ignore[arg-type]
    assert plain < price.training_sigma < less
