"""No price takes for ever: every search ends, whatever it is asked, with an upper bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinflower.accounting import patience
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition import calibration
from coinflower.accounting.composition import compose as composition
from coinflower.accounting.composition.calibration import CalibrationError, least_sigma
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.mechanism import Round

KINDS = [Certified, WeakClientSampling, OnlyLocalSampling]
# A search that ends needs some dozens of evaluations of a curve; one that does not, any number.
MOST_EVALUATIONS = 2_000

probabilities = st.one_of(
    st.sampled_from([1e-300, 1e-18, 1e-9, 0.5, math.nextafter(1.0, 0.0), 1.0]),
    st.floats(1e-12, 1.0),
)
noises = st.one_of(st.sampled_from([1e-6, 1e-3, 1.0, 1e4]), st.floats(1e-3, 1e3))
# Of how many other elements are sampled, thousands matter if d is large: exact, but not quick.
sizes = st.sampled_from([0, 1, 30])
deltas = st.one_of(
    st.sampled_from([5e-324, 1e-300, 1e-15, 1e-5, 0.5, math.nextafter(1.0, 0.0)]),
    st.floats(1e-18, 0.999),
)


@st.composite
def schemes(draw: st.DrawFn) -> Analysis:
    kind = draw(st.sampled_from(KINDS))
    p, q = draw(probabilities), draw(probabilities)
    if p * q == 0:
        p = 1.0
    return kind(Round(p=p, q=q, d=draw(sizes), noise_multiplier=draw(noises)))


@pytest.fixture(autouse=True)
def _counted(monkeypatch):
    """Fail, instead of hanging, where a search does not end."""
    plain = Analysis.delta

    def delta(self, *args, **options):
        evaluations.append(None)
        assert len(evaluations) < MOST_EVALUATIONS, "a search does not end"
        return plain(self, *args, **options)

    monkeypatch.setattr(Analysis, "delta", delta)
    restart()


evaluations: list[None] = []


def restart() -> None:
    evaluations.clear()


@settings(deadline=None, max_examples=150)
@given(scheme=schemes(), delta=deltas)
def test_epsilon_of_a_round_ends_with_an_upper_bound(scheme, delta):
    restart()
    epsilon = scheme.epsilon(delta)
    assert epsilon >= 0
    assert math.isinf(epsilon) or scheme.delta(epsilon) <= delta


@settings(deadline=None, max_examples=150)
@given(scheme=schemes(), ulps=st.integers(-3, 3))
def test_a_delta_within_a_few_roundings_of_that_at_zero_ends(scheme, ulps):
    restart()
    delta = scheme.delta(0.0)
    for _ in range(abs(ulps)):
        delta = math.nextafter(delta, math.copysign(2.0, ulps))
    if not 0 < delta < 1:
        return
    epsilon = scheme.epsilon(delta)
    assert math.isinf(epsilon) or scheme.delta(epsilon) <= delta
    if ulps >= 0:
        assert epsilon == 0


def test_one_ulp_below_the_delta_at_zero_costs_next_to_nothing():
    scheme = OnlyLocalSampling(Round(p=1.0, q=0.1, d=1, noise_multiplier=1.0))
    delta = math.nextafter(scheme.delta(0.0), 0.0)
    epsilon = scheme.epsilon(delta)
    assert 0 <= epsilon < 1e-12
    assert scheme.delta(epsilon) <= delta


@settings(deadline=None, max_examples=40)
@given(scheme=schemes(), rounds=st.sampled_from([2, 1_000, 10**9]), delta=deltas)
def test_epsilon_of_many_rounds_ends_and_is_at_least_that_of_one(scheme, rounds, delta):
    restart()
    try:
        many = epsilon_after([(scheme, rounds)], delta)
    except (ArithmeticError, ValueError):  # terms without a price are refused
        return
    assert not math.isnan(many)
    # Where δ of one round stays within a rounding of the wanted one over a wide range of ε, its own
    # ε is anywhere in that range.
    if scheme.delta(0.0) > delta * (1 + 1e-9):
        assert many >= scheme.epsilon(delta) * (1 - 1e-6) - 1e-9


def test_losses_too_large_for_an_exponential_are_not_lost():
    scheme = Certified(Round(p=0.5, q=0.5, d=0, noise_multiplier=1e-6))
    assert epsilon_after([(scheme, 2)], 0.125) >= scheme.epsilon(0.125) > 1e11


@settings(deadline=None, max_examples=25)
@given(scheme=schemes(), epsilon=st.sampled_from([0.0, 1e-12, 1.0, 1e3]))
def test_delta_of_many_rounds_ends(scheme, epsilon):
    restart()
    try:
        found = delta_after([(scheme, 50)], epsilon)
    except (ArithmeticError, ValueError):
        return
    assert 0 <= found <= 1


class Stubborn(OnlyLocalSampling):
    """A round that costs the same δ at every ε, so that no ε is enough."""

    level = 0.25

    def _delta(self, epsilon, direction):
        del direction
        return np.full_like(epsilon, self.level)


class Undefined(Stubborn):
    level = math.nan


@pytest.mark.parametrize("kind", [Stubborn, Undefined])
def test_a_curve_that_never_falls_costs_infinitely_much(kind):
    scheme = kind(Round(p=1.0, q=0.5, d=1, noise_multiplier=1.0))
    assert scheme.epsilon(1e-5) == math.inf
    assert composition._reach(scheme, 1e-9) > 1
    composition._reach.cache_clear()


def test_a_curve_that_is_undefined_calibrates_nothing():
    with pytest.raises(CalibrationError, match="No noise multiplier"):
        least_sigma(Undefined, p=1.0, q=0.5, d=1, epsilon=1.0, delta=1e-5, rounds=1)


def test_the_last_steps_of_calibration_end_where_the_target_is_met(monkeypatch):
    from scipy import optimize

    asked = itertools.count()

    def shortfall(value):
        assert next(asked) < MOST_EVALUATIONS, "a search does not end"
        return -1.0 if value >= 1.0 else 1.0

    monkeypatch.setattr(optimize, "brentq", lambda *_args, **_options: 0.0)
    assert calibration._least_zero(shortfall, 0.0, 1.0, 1e-8) == 1.0


def test_a_plateau_is_not_walked_down_for_ever():
    asked = itertools.count()

    def shortfall(value):
        assert next(asked) < MOST_EVALUATIONS, "a search does not end"
        return 1.0 if value <= 0 else -1e-9

    assert 0 < calibration._least_zero(shortfall, 0.0, 1.0, 1e-8) <= 1


def test_what_takes_longer_than_allowed_is_given_up():
    scheme = Certified(Round(p=0.123, q=0.5, d=10**6, noise_multiplier=9e3))
    with pytest.raises(patience.OutOfPatienceError), patience.at_most(1e-9):
        epsilon_after([(scheme, 10)], 1e-5)


def test_an_inner_limit_does_not_loosen_an_outer_one():
    with patience.at_most(1e-9), patience.at_most(1e9), pytest.raises(patience.OutOfPatienceError):
        patience.require()
    patience.require()
