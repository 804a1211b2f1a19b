"""The bounds of an audit hold as often as they say, and are not idle."""

import math

import numpy as np
import pytest
from scipy import stats

from coinflower.experiments.audit.bounds import (
    Coins,
    Tries,
    event_epsilon,
    lower_rate,
    one_run_epsilon,
    one_run_p_value,
    upper_rate,
)


@pytest.mark.parametrize("rate", [0.003, 0.2, 0.71])
@pytest.mark.parametrize("error", [1e-3, 0.05])
def test_rate_bounds_are_wrong_no_more_often_than_allowed(rate, error):
    counts = np.arange(301)
    mass = stats.binom.pmf(counts, 300, rate)
    assert mass[lower_rate(counts, 300, error) > rate].sum() <= error
    assert mass[upper_rate(counts, 300, error) < rate].sum() <= error


def test_rate_bounds_close_in_on_the_share():
    share = np.array([30_000])
    assert lower_rate(share, 100_000, 1e-6)[0] == pytest.approx(0.3, abs=0.01)
    assert upper_rate(share, 100_000, 1e-6)[0] == pytest.approx(0.3, abs=0.01)


def test_nothing_seen_is_no_probability_zero():
    assert upper_rate(np.array([0]), 1000, 1e-3)[0] == pytest.approx(1 - 1e-3 ** (1 / 1000))
    assert lower_rate(np.array([0]), 1000, 1e-3)[0] == 0


def tries(heads, tails=0.0, total=1_000_000):
    return Tries(
        heads=np.array([round(heads * total)]),
        heads_total=total,
        tails=np.array([round(tails * total)]),
        tails_total=total,
    )


def test_an_event_proves_the_ratio_of_its_probabilities_less_delta():
    found = event_epsilon(tries(0.4), tries(0.1), None, 0.02, 1e-6)[0]
    assert found == pytest.approx(math.log((0.4 - 0.02) / 0.1), abs=0.03)
    assert found < math.log((0.4 - 0.02) / 0.1)


def test_rounds_of_either_coin_count_as_often_as_the_coin_says():
    coins = Coins(joined=250_000, flips=1_000_000)
    found = event_epsilon(tries(0.8, 0.1), tries(0.2, 0.1), coins, 0.0, 1e-6)[0]
    exact = math.log((0.25 * 0.8 + 0.75 * 0.1) / (0.25 * 0.2 + 0.75 * 0.1))
    assert exact - 0.05 < found < exact


def test_an_event_that_is_no_likelier_proves_nothing():
    assert event_epsilon(tries(0.3), tries(0.3), None, 0.0, 1e-6)[0] == 0


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_guesses_of_randomised_response_refute_their_epsilon_no_more_often_than_allowed(epsilon):
    guesses, error = 200, 1e-3
    right = np.arange(guesses + 1)
    mass = stats.binom.pmf(right, guesses, 1 / (1 + math.exp(-epsilon)))
    refuted = np.array(
        [one_run_p_value(guesses, int(k), epsilon, 0.0, guesses) <= error for k in right]
    )
    assert 0 < mass[refuted].sum() <= error


def test_mechanism_that_fails_openly_with_probability_delta_is_not_refuted():
    """It tells everything with probability δ, else nothing, which is (0, δ)-private."""
    canaries, delta = 100, 1e-3
    assert one_run_p_value(canaries, canaries, 0.0, delta, canaries) >= delta


def test_one_run_bound_grows_with_right_guesses_and_falls_with_delta():
    bounds = [one_run_epsilon(200, right, 1e-9, 400, 1e-4) for right in (100, 150, 180, 200)]
    assert bounds[0] == 0
    assert bounds == sorted(bounds)
    assert bounds[3] == pytest.approx(math.log(1 / (1e-4 ** (-1 / 200) - 1)), rel=0.02)
    assert one_run_epsilon(200, 180, 1e-4, 400, 1e-4) < bounds[2]
