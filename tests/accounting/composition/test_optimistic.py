"""Losses from below: never above what is known exactly, and close to it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from coinflower.accounting.analyses.mixture_pairs import MixturePair, aligned_pair
from coinflower.accounting.composition.optimistic import LeastLosses, least_sum
from coinflower.accounting.mechanism import Direction, Round


def gaussian_delta(epsilon, rounds, sigma):
    """Return δ of so many Gaussian mechanisms of sensitivity 1, which is known exactly."""
    shift = math.sqrt(rounds) / sigma
    return stats.norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * stats.norm.cdf(
        -shift / 2 - epsilon / shift
    )


def gaussian_cells(sigma):
    pair = MixturePair(
        means=np.array([0.0, 1.0]),
        without=np.array([1.0, 0.0]),
        gain=np.array([-1.0, 1.0]),
        sigma=sigma,
    )
    return pair.cells()


@pytest.mark.parametrize("rounds", [1, 3, 100, 10_000])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_gaussian_rounds_are_bounded_from_below_to_a_few_thousandths(rounds, delta):
    sigma = 2 * math.sqrt(rounds)
    base, gain = gaussian_cells(sigma)
    exact = optimize.brentq(lambda e: gaussian_delta(e, rounds, sigma) - delta, 0, 10)
    found = least_sum(base, gain, rounds, delta)
    assert exact * (1 - 4e-3) <= found.epsilon(delta) <= exact
    assert found.delta(exact) <= delta
    assert found.delta(exact * 0.99) <= gaussian_delta(exact * 0.99, rounds, sigma)


random_pairs = st.lists(
    st.tuples(st.floats(1e-6, 1.0), st.floats(-0.95, 4.0)), min_size=2, max_size=40
)


@given(random_pairs, st.floats(1e-3, 1.0), st.floats(0.0, 2.0))
@settings(max_examples=20, deadline=None)
def test_any_two_distributions_lose_no_more_on_the_lattice(pairs, step, epsilon):
    base = np.array([weight for weight, _ in pairs])
    base = base / base.sum()
    gain = base * np.array([ratio for _, ratio in pairs])
    # Both worlds' probabilities add up to 1.
    first = (base + gain) / (base + gain).sum()
    gain = first - base
    losses = LeastLosses(base, gain, step)
    at = losses.offset + (losses.lowest + np.arange(losses.mass.size)) * step
    assert losses.mass.sum() <= 1 + 1e-12
    for level in (epsilon, -epsilon):
        on_lattice = losses.mass @ np.maximum(-np.expm1(level - at), 0.0)
        exact = np.maximum(first - math.exp(level) * base, 0.0).sum()
        assert on_lattice <= exact + 1e-13


@given(random_pairs, st.floats(1e-3, 0.3), st.floats(0.0, 2.0))
@settings(max_examples=100, deadline=None)
def test_two_rounds_lose_no_more_than_all_pairs_of_outputs(pairs, step, epsilon):
    base = np.array([weight for weight, _ in pairs])
    base = base / base.sum()
    first = base * (1 + np.array([ratio for _, ratio in pairs]))
    first = first / first.sum()
    found = LeastLosses(base, first - base, step).after(2, 1e-12).delta(epsilon)
    exact = np.maximum(np.outer(first, first) - math.exp(epsilon) * np.outer(base, base), 0).sum()
    assert found <= exact + 1e-13


@given(st.floats(1e-3, 0.5), st.floats(0.05, 1.0), st.integers(0, 20), st.floats(0.5, 4))
@settings(max_examples=20, deadline=None)
def test_the_lower_bound_stays_below_the_upper_one(p, q, d, sigma):
    from coinflower.accounting.analyses.certified import Certified
    from coinflower.accounting.composition.compose import epsilon_after

    pair = aligned_pair(p=p, q=q, d=d, sigma=sigma, cap=math.inf, direction=Direction.REMOVE)
    certified = Certified(Round(p=p, q=q, d=d, noise_multiplier=sigma))
    lower = least_sum(*pair.cells(), 40, 1e-5).epsilon(1e-5)
    upper = epsilon_after([(certified, 40)], 1e-5)
    assert lower <= upper
    if d == 0 and upper < 10:  # nothing to choose: both are the ideal, but for their lattices
        assert lower >= upper * 0.9


def test_ten_thousand_rounds_of_many_small_clients():
    """Equal unit gradients lose at least this much; two lattices agree on it."""
    pair = aligned_pair(
        p=0.001, q=0.1, d=30, sigma=2.4903, cap=math.inf, direction=Direction.REMOVE
    )
    base, gain = pair.cells()
    assert least_sum(base, gain, 10_000, 1e-5).epsilon(1e-5) == pytest.approx(0.22667, abs=5e-5)
    coarse = LeastLosses(base, gain, 2.0**-14).after(10_000, 1e-11).epsilon(1e-5)
    assert coarse == pytest.approx(0.2266, abs=1e-4)


def test_indistinguishable_worlds_lose_nothing():
    base = np.array([0.25, 0.75])
    assert least_sum(base, np.zeros(2), 100, 1e-5).epsilon(1e-5) == 0.0
    assert least_sum(base, np.zeros(2), 100, 1e-5).delta(0.0) == 0.0
