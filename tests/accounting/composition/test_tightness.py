"""Lower bounds beside certified figures: never above them, never below a known data set."""

from dataclasses import replace

import pytest

from coinflower.accounting.analyses.baselines import CentralShuffling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.paper import AsPrinted
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.tightness import (
    realised_delta_after,
    realised_epsilon_after,
    realised_sigma_after,
)
from coinflower.accounting.mechanism import Round


@pytest.mark.parametrize("sigma", [0.005, 0.1, 0.5, 3.0])
@pytest.mark.parametrize("rounds", [1, 20])
def test_lower_bounds_stay_below_the_certified_ones(sigma, rounds):
    terms = Certified(Round(p=0.1, q=0.2, d=15, noise_multiplier=sigma))
    upper = epsilon_after([(terms, rounds)], 1e-5)
    assert 0 <= realised_epsilon_after(terms.round, rounds, 1e-5) <= upper
    assert (
        0 <= realised_delta_after(terms.round, rounds, 1.0) <= delta_after([(terms, rounds)], 1.0)
    )


def test_equal_gradients_are_among_the_data_sets_tried():
    terms = Certified(Round(p=0.001, q=0.1, d=30, noise_multiplier=2.49))
    aligned = AsPrinted(Round(p=0.001, q=0.1, d=30, noise_multiplier=2.49))
    assert realised_epsilon_after(terms.round, 1, 1e-6) >= aligned.epsilon(1e-6) * (1 - 1e-6)
    assert realised_delta_after(terms.round, 1, 0.01) >= aligned.delta(0.01) * (1 - 1e-6)


def test_noise_known_to_be_too_little_is_at_least_that_of_equal_gradients():
    setting, target = {"p": 0.001, "q": 0.1, "d": 30}, {"epsilon": 0.015, "delta": 1e-6}
    printed = least_sigma(AsPrinted, **setting, **target, rounds=1)
    terms = Certified(Round(**setting, noise_multiplier=2.49))
    assert realised_sigma_after(terms.round, 1, **target) >= printed * (1 - 1e-7)


def test_many_rounds_of_many_small_clients_lose_at_least_this():
    terms = Certified(Round(p=0.001, q=0.1, d=30, noise_multiplier=2.4903))
    assert realised_epsilon_after(terms.round, 10_000, 1e-5) == pytest.approx(0.2268, abs=2e-4)


# docs/mathematics.md, "What the paper says".
@pytest.mark.parametrize(
    ("setting", "sigma"),
    [({"p": 0.001, "q": 0.1, "d": 30}, 2.37), ({"p": 0.1, "q": 0.001, "d": 1000}, 0.741)],
)
def test_noise_that_is_known_to_be_too_little(setting, sigma):
    target = {"epsilon": 0.015, "delta": 1e-6}
    enough = least_sigma(Certified, **setting, **target, rounds=1)
    found = realised_sigma_after(Round(**setting, noise_multiplier=enough), 1, **target)
    assert found == pytest.approx(sigma, rel=3e-3)
    assert realised_delta_after(Round(**setting, noise_multiplier=found), 1, 0.015) >= 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 0.8])
def test_noise_that_is_too_little_for_many_rounds(epsilon):
    setting = {"p": 0.1, "q": 0.1, "d": 5}
    target = {"epsilon": epsilon, "delta": 1e-2 if epsilon == 0 else 1e-5}
    enough = least_sigma(Certified, **setting, **target, rounds=30)
    found = realised_sigma_after(Round(**setting, noise_multiplier=enough), 30, **target)
    assert 0.7 * enough < found <= enough


def test_when_hardly_any_noise_may_be_enough_the_bound_is_zero():
    terms = Certified(Round(p=0.01, q=0.01, d=1, noise_multiplier=0.01))
    assert realised_sigma_after(terms.round, 1, 1.0, 0.5) == 0.0


# Others without a gradient never meet the cap, and x' alone is the ideal of data in one place.
@pytest.mark.parametrize(
    ("p", "q", "d", "sigma", "cap", "rounds"),
    [
        (1.0, 1.0, 500, 1.0, 2.0, 2),
        (0.99, 0.9, 500, 1.0, 1.5, 1),
        (0.5, 0.1, 500, 1.0, 1.0, 2),
        (0.01, 0.9, 2000, 1.0, 2.0, 20),
        (0.1, 0.1, 30, 1.0, 29.0, 1),
    ],
)
def test_under_a_cap_the_lower_bound_is_at_least_the_ideal(p, q, d, sigma, cap, rounds):
    round_ = Round(p=p, q=q, d=d, noise_multiplier=sigma, cap=cap)
    ideal = epsilon_after([(CentralShuffling(round_), rounds)], 1e-5)
    upper = epsilon_after([(Certified(round_), rounds)], 1e-5)
    assert 0.99 * ideal <= realised_epsilon_after(round_, rounds, 1e-5) <= upper


def test_under_a_cap_many_samples_leave_room_for_one_more_record():
    round_ = Round(p=0.0001, q=0.9, d=500, noise_multiplier=2.0, cap=5.0)
    upper = epsilon_after([(Certified(round_), 20)], 1e-8)
    assert 0.9 * upper <= realised_epsilon_after(round_, 20, 1e-8) <= upper


@pytest.mark.parametrize("rounds", [1, 10])
def test_a_cap_that_no_sum_can_reach_changes_no_lower_bound(rounds):
    without = Round(p=0.1, q=0.1, d=30, noise_multiplier=1.0)
    capped = replace(without, cap=31.0)
    for lower, at in ((realised_epsilon_after, 1e-5), (realised_delta_after, 0.5)):
        assert lower(capped, rounds, at) == lower(without, rounds, at)
    assert realised_sigma_after(capped, rounds, 1.0, 1e-5) == realised_sigma_after(
        without, rounds, 1.0, 1e-5
    )


@pytest.mark.filterwarnings("error")
def test_losses_beyond_the_largest_exponential_are_bounded_from_below():
    round_ = Round(p=1.0, q=1.0, d=0, noise_multiplier=0.4)
    upper = epsilon_after([(Certified(round_), 1000)], 1e-8)
    assert upper > 2000
    assert 0.99 * upper <= realised_epsilon_after(round_, 1000, 1e-8) <= upper
