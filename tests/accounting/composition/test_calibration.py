"""Calibration meets the target, and hardly more than that."""

import math

import pytest

from coinflower.accounting.analyses.baselines import OnlyLocalSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.names import SCHEMES, scheme_class
from coinflower.accounting.composition.calibration import (
    LEAST_SIGMA,
    MOST_SIGMA,
    CalibrationError,
    least_sigma,
    most_rounds,
    splits_for_batch,
)
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round

SCENARIO_1 = {"p": 0.001, "q": 0.1, "d": 30}
SCENARIO_2 = {"p": 0.1, "q": 0.001, "d": 1000}


# docs/mathematics.md, "What the paper says".
@pytest.mark.parametrize(
    ("setting", "name", "sigma"),
    [
        (SCENARIO_1, "certified", 2.3733),
        (SCENARIO_1, "paper", 1.065),
        (SCENARIO_1, "wcs", 7.665),
        (SCENARIO_1, "ols", 22.50),
        (SCENARIO_1, "cs", 0.567),
        (SCENARIO_2, "certified", 0.8087),
        (SCENARIO_2, "paper", 0.646),
        (SCENARIO_2, "wcs", 0.874),
        (SCENARIO_2, "ols", 1.104),
        (SCENARIO_2, "cs", 0.567),
    ],
)
def test_noise_for_the_papers_scenarios(setting, name, sigma):
    found = least_sigma(scheme_class(name), **setting, epsilon=0.015, delta=1e-6, rounds=1)
    assert found == pytest.approx(sigma, rel=3e-3)


@pytest.mark.parametrize("name", [name for name, s in SCHEMES.items() if s.is_chargeable])
@pytest.mark.parametrize(("epsilon", "rounds"), [(0.5, 1), (1.0, 200), (3.0, 50)])
def test_least_noise_meets_the_target_within_a_thousandth(name, epsilon, rounds):
    kind = scheme_class(name)
    target = {"p": 0.2, "q": 0.1, "d": 12, "epsilon": epsilon, "delta": 1e-5, "rounds": rounds}
    found = least_sigma(kind, **target)

    def spent(sigma):
        return epsilon_after(
            [(kind(Round(p=0.2, q=0.1, d=12, noise_multiplier=sigma)), rounds)], 1e-5
        )

    assert spent(found) <= epsilon
    assert spent(found / 1.001) > epsilon


def test_almost_no_noise_is_answered_only_if_it_meets_the_target():
    """The loss of one Gaussian round at σ = 0.01 is ε = 5425 (at δ = 1e-5)."""
    wanted = {"p": 1.0, "q": 1.0, "d": 1, "delta": 1e-5, "rounds": 1}
    assert least_sigma(OnlyLocalSampling, epsilon=6000.0, **wanted) == LEAST_SIGMA
    sigma = least_sigma(OnlyLocalSampling, epsilon=4000.0, **wanted)
    assert sigma > LEAST_SIGMA
    assert OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=sigma)).delta(4000.0) <= 1e-5


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_most_rounds_is_the_last_that_fits(epsilon):
    terms = Certified(Round(p=0.1, q=0.1, d=10, noise_multiplier=1.5))
    most = most_rounds(terms, epsilon=epsilon, delta=1e-5)
    assert epsilon_after([(terms, most)], 1e-5) <= epsilon
    assert epsilon_after([(terms, most + 1)], 1e-5) > epsilon


def test_when_not_even_one_round_fits_the_reason_names_its_cost():
    terms = Certified(Round(p=0.9, q=0.9, d=10, noise_multiplier=0.5))
    with pytest.raises(CalibrationError, match="Not even one round fits: it costs epsilon"):
        most_rounds(terms, epsilon=0.1, delta=1e-6)


def test_when_no_noise_is_enough_the_reason_says_so():
    with pytest.raises(CalibrationError, match="No noise multiplier up to 1e\\+06"):
        least_sigma(Certified, p=1.0, q=1.0, d=1, epsilon=0.0, delta=1e-9, rounds=1)
    assert MOST_SIGMA == 1e6


def test_budget_without_epsilon_is_reachable_when_delta_allows():
    found = least_sigma(Certified, p=0.01, q=0.01, d=1, epsilon=0.0, delta=1e-4, rounds=3)
    assert 0 < found < 10


def test_the_best_split_lets_every_client_join_rarely_sampling():
    splits = splits_for_batch(
        Certified, batch_size=20, clients=50, d=40, epsilon=1.0, delta=1e-5, rounds=100, count=4
    )
    assert splits == sorted(splits, key=lambda split: split.sigma)
    assert splits[0].p == 1.0
    for split in splits:
        assert split.p * split.q * 50 * 40 == pytest.approx(20)
        assert split.epsilon <= 1.0


def test_a_limit_on_participation_is_kept():
    splits = splits_for_batch(
        Certified,
        batch_size=20,
        clients=50,
        d=40,
        epsilon=1.0,
        delta=1e-5,
        rounds=10,
        largest_p=0.1,
        count=3,
    )
    assert max(split.p for split in splits) == pytest.approx(0.1)


def test_a_batch_larger_than_all_data_is_refused():
    with pytest.raises(CalibrationError, match="hold 2000 records in all"):
        splits_for_batch(
            Certified, batch_size=3000, clients=50, d=40, epsilon=1.0, delta=1e-5, rounds=10
        )


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
def test_a_target_that_makes_no_sense_is_named(epsilon):
    with pytest.raises(ValueError, match=str(epsilon)):
        least_sigma(Certified, p=0.1, q=0.1, d=1, epsilon=epsilon, delta=1e-5, rounds=1)
