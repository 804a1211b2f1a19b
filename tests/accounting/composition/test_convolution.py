"""Sums of losses: against dp-accounting's, against the exact ones of Gaussians, never below."""

import mpmath
import numpy as np
import pytest

from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.convolution import add_up
from coinflower.accounting.composition.losses import Losses, round_losses
from coinflower.accounting.mechanism import Round

CASES = [
    (Certified(Round(p=0.01, q=0.1, d=30, noise_multiplier=2.0)), 1000, 2.0**-12, 0.6),
    (Certified(Round(p=0.5, q=0.5, d=100, noise_multiplier=0.5)), 20, 2.0**-5, 40.0),
    (Certified(Round(p=0.3, q=0.2, d=5, noise_multiplier=1.0)), 2, 2.0**-8, 8.0),
    (WeakClientSampling(Round(p=0.001, q=0.01, d=1, noise_multiplier=1.0)), 10_000, 2.0**-10, 4.0),
]
TRUNCATION = 1e-10


@pytest.mark.parametrize(("scheme", "count", "step", "reach"), CASES)
def test_sums_are_those_of_dp_accounting(scheme, count, step, reach):
    for losses in round_losses(scheme, step, reach):
        ours = add_up([(losses, count)], TRUNCATION).as_pmf()
        theirs = losses.as_pmf().self_compose(count, TRUNCATION)
        for delta in (1e-3, 1e-6):
            exact = theirs.get_epsilon_for_delta(delta)
            assert ours.get_epsilon_for_delta(delta) == pytest.approx(exact, rel=1e-3, abs=step)
        for epsilon in (0.0, 0.1, 1.0):
            exact = theirs.get_delta_for_epsilon(epsilon)
            found = ours.get_delta_for_epsilon(epsilon)
            assert found == pytest.approx(exact, rel=1e-6, abs=3 * TRUNCATION)


@pytest.mark.parametrize(("scheme", "count", "step", "reach"), CASES)
def test_no_probability_is_lost(scheme, count, step, reach):
    for losses in round_losses(scheme, step, reach):
        summed = add_up([(losses, count)], TRUNCATION)
        assert summed.mass.sum() + summed.infinite >= 1
        assert summed.infinite >= TRUNCATION


@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_the_window_holds_all_but_the_truncation(count):
    mass = np.array([0.05, 0.0, 0.2, 0.5, 0.0, 0.0, 0.15, 0.1])
    losses = Losses(step=0.5, lowest=-3, mass=mass, infinite=0.0)
    full = np.array([1.0])
    for _ in range(count):
        full = np.convolve(full, mass)
    summed = add_up([(losses, count)], 1e-6)
    start = summed.lowest + 3 * count
    inside = full[start : start + summed.mass.size]
    assert 1 - inside.sum() <= 1e-6
    assert summed.mass == pytest.approx(inside, abs=1e-6)


def test_certain_losses_add_up():
    certain = Losses(step=0.5, lowest=2, mass=np.array([1.0]), infinite=0.0)
    summed = add_up([(certain, 3)], 1e-12)
    assert summed.lowest == 6
    assert summed.mass == pytest.approx([1.0], rel=1e-9)


def test_different_losses_add_up_as_dp_accounting_has_it():
    step = 2.0**-10
    one = round_losses(Certified(Round(p=0.1, q=0.2, d=5, noise_multiplier=1.0)), step, 6.0)
    other = round_losses(Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=2.0)), step, 6.0)
    for first, second in zip(one, other, strict=True):
        ours = add_up([(first, 30), (second, 70)], TRUNCATION).as_pmf()
        theirs = (
            first.as_pmf()
            .self_compose(30, TRUNCATION)
            .compose(second.as_pmf().self_compose(70, TRUNCATION), TRUNCATION)
        )
        for delta in (1e-2, 1e-6):
            exact = theirs.get_epsilon_for_delta(delta)
            assert ours.get_epsilon_for_delta(delta) == pytest.approx(exact, rel=1e-3)


def gaussian_delta(mean, epsilon):
    """Return the exact δ of T Gaussian rounds, mean = √T/σ (Balle and Wang 2018), to 50 digits."""
    with mpmath.workdps(50):
        mean, epsilon = mpmath.mpf(mean), mpmath.mpf(epsilon)
        here, there = mean / 2 - epsilon / mean, -mean / 2 - epsilon / mean
        return mpmath.ncdf(here) - mpmath.exp(epsilon) * mpmath.ncdf(there)


@pytest.mark.parametrize(
    ("sigma", "rounds"), [(20.0, 100), (50.0, 1000), (300.0, 100_000), (1000.0, 1_000_000)]
)
@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-11, 1e-12, 1e-13, 1e-15])
def test_epsilon_is_never_below_that_of_gaussians_however_small_delta(sigma, rounds, delta):
    terms = OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=sigma))
    found = epsilon_after([(terms, rounds)], delta)
    mean = mpmath.sqrt(rounds) / mpmath.mpf(sigma)
    assert gaussian_delta(mean, found) <= delta
    assert gaussian_delta(mean, found * 0.999) > delta


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 6.5, 6.9, 7.2, 8.0])
def test_delta_is_never_below_that_of_gaussians(epsilon):
    terms = OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=1000.0))
    found = delta_after([(terms, 1_000_000)], epsilon)
    exact = gaussian_delta(1, epsilon)
    assert exact <= found <= exact * 1.05


def test_different_rounds_are_not_below_those_of_one_gaussian_either():
    """σ = 10 and 20, 100 times each, are a Gaussian of mean √(1 + 1/4)."""
    terms = [OnlyLocalSampling(Round(p=1.0, q=1.0, d=1, noise_multiplier=s)) for s in (10.0, 20.0)]
    mean = mpmath.sqrt(mpmath.mpf("1.25"))
    for delta in (1e-6, 1e-14):
        found = epsilon_after([(one, 100) for one in terms], delta)
        assert gaussian_delta(mean, found) <= delta < gaussian_delta(mean, found * 0.998)
