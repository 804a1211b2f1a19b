"""One round: properties, limits, golden values, and an independent integral."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.analyses.names import CHARGED, SCHEMES, scheme_class
from coinflower.accounting.analyses.paper import AsPlotted, AsPrinted
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.mechanism import Direction, Round

kinds = st.sampled_from([*SCHEMES.values(), CertifiedBySample])
probability = st.floats(1e-4, 1.0)
sizes = st.integers(0, 200)
noise = st.floats(0.3, 30.0)
epsilons = st.floats(0.0, 3.0)
directions = st.sampled_from(list(Direction))
# Two evaluations may differ by rounding.
ROUNDING = 1 + 1e-9


def terms(kind, p, q, d, sigma):
    return kind(Round(p=p, q=q, d=d, noise_multiplier=sigma))


@given(kinds, probability, probability, sizes, noise, directions)
@settings(max_examples=60, deadline=None)
def test_delta_is_a_falling_probability_for_every_sign_of_epsilon(kind, p, q, d, s, direction):
    values = terms(kind, p, q, d, s).delta(np.linspace(-3, 3, 61), direction)
    assert np.isfinite(values).all()
    assert (values >= 0).all()
    assert (values <= 1).all()
    assert (np.diff(values) <= 1e-12 * values[:-1]).all()


@given(probability, probability, sizes, noise, epsilons, directions)
@settings(max_examples=100, deadline=None)
def test_certified_falls_with_noise(p, q, d, s, e, direction):
    quiet = terms(Certified, p, q, d, s).delta(e, direction)
    loud = terms(Certified, p, q, d, s * 1.1).delta(e, direction)
    assert loud <= quiet * ROUNDING


@given(probability, probability, sizes, noise, epsilons, directions)
@settings(max_examples=100, deadline=None)
def test_certified_grows_with_p_and_q_and_d(p, q, d, s, e, direction):
    base = terms(Certified, p, q, d, s).delta(e, direction)
    tiny = 1e-22  # the cut binomial mass is charged in full
    assert (
        base <= terms(Certified, min(1.0, 1.2 * p), q, d, s).delta(e, direction) * ROUNDING + tiny
    )
    assert base <= terms(Certified, p, q, d + 5, s).delta(e, direction) * ROUNDING + tiny
    # More local sampling hides less, in the worse of the two directions.
    more = terms(Certified, p, min(1.0, 1.2 * q), d, s).delta(e)
    assert terms(Certified, p, q, d, s).delta(e) <= more * ROUNDING + tiny


@given(probability, probability, sizes, noise, epsilons, directions)
@settings(max_examples=100, deadline=None)
def test_certified_lies_between_the_ideal_and_visible_participation(p, q, d, s, e, direction):
    cs, certified, wcs, ols = (
        terms(kind, p, q, d, s).delta(e, direction)
        for kind in (CentralShuffling, Certified, WeakClientSampling, OnlyLocalSampling)
    )
    underflow = 1e-300
    assert cs <= certified * ROUNDING + underflow
    assert certified <= wcs * ROUNDING + underflow
    assert wcs <= ols * ROUNDING + underflow


@given(probability, probability, noise, epsilons, directions)
@settings(max_examples=50, deadline=None)
def test_a_client_with_nothing_else_to_sample_is_the_ideal(p, q, s, e, direction):
    expected = terms(CentralShuffling, p, q, 0, s).delta(e, direction)
    assert terms(Certified, p, q, 0, s).delta(e, direction) == pytest.approx(expected, rel=1e-9)


@given(probability, sizes, noise, epsilons, directions)
@settings(max_examples=50, deadline=None)
def test_certain_participation_is_only_local_sampling(q, d, s, e, direction):
    expected = terms(OnlyLocalSampling, 1.0, q, d, s).delta(e, direction)
    value = terms(Certified, 1.0, q, d, s).delta(e, direction)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-22)


@given(st.floats(0.01, 0.9), st.floats(0.1, 1.0), st.floats(0.3, 3.0), epsilons, directions)
@settings(max_examples=50, deadline=None)
def test_a_large_sampled_set_shows_participation(p, q, s, e, direction):
    expected = terms(WeakClientSampling, p, q, 0, s).delta(e, direction)
    value = terms(Certified, p, q, 100_000, s).delta(e, direction)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-22)


def integrated(p, q, d, s, e, direction):
    """Return the first certified δ by 40-digit integration of its definition."""
    mpmath.mp.dps = 40
    alpha = mpmath.e ** mpmath.mpf(e)

    def density(z, mean):
        return mpmath.npdf(z, mean, s)

    total = mpmath.mpf(0)
    for i in range(d + 1):
        if direction is Direction.REMOVE:

            def gap(z, i=i):
                return (
                    p * q * density(z, i + 1)
                    - (alpha - 1) * (1 - p) * density(z, 0)
                    - p * (alpha - 1 + q) * density(z, i)
                )
        else:

            def gap(z, i=i):
                return (
                    p * (1 - alpha * (1 - q)) * density(z, i)
                    - (alpha - 1) * (1 - p) * density(z, 0)
                    - alpha * p * q * density(z, i - 1)
                )

        grid = [mpmath.mpf(-12 * s) + k * (24 * s + d + 2) / 400 for k in range(401)]
        start = next((z for z in grid if gap(z) > 0), None)
        if start is None:
            continue
        if start > grid[0]:
            before = start - (24 * s + d + 2) / 400
            start = mpmath.findroot(
                gap, (before, start), solver="anderson", tol=1e-60, verify=False
            )
        weight = mpmath.binomial(d, i) * mpmath.mpf(q) ** i * (1 - mpmath.mpf(q)) ** (d - i)
        total += weight * mpmath.quad(gap, [start + k * s for k in (0, 1, 2, 4, 8, 16, 32)])
    return float(total)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(
    ("p", "q", "d", "s", "e"),
    [
        (0.001, 0.1, 5, 1.065, 0.015),
        (0.1, 0.1, 6, 2.2, 0.07),
        (0.5, 0.3, 4, 0.6, 0.2),
        (0.9, 0.05, 3, 5.0, 0.02),
        (0.1, 0.5, 4, 1.2, 0.6),
        (0.3, 1.0, 3, 2.5, 1.0),
    ],
)
def test_the_first_certified_bound_agrees_with_numeric_integration(p, q, d, s, e, direction):
    expected = integrated(p, q, d, s, e, direction)
    value = terms(CertifiedBySample, p, q, d, s).delta(e, direction)
    if expected >= 1e-13:
        assert value == pytest.approx(expected, rel=1e-6)
    else:
        assert value <= 1e-13


@pytest.mark.parametrize("e", [0.9, 1.4, 1.9, 2.15])
def test_tails_down_to_1e_13_keep_six_digits(e):
    expected = integrated(0.1, 0.2, 3, 0.9, e, Direction.REMOVE)
    value = terms(CertifiedBySample, 0.1, 0.2, 3, 0.9).delta(e, Direction.REMOVE)
    assert expected >= 1e-13
    assert value == pytest.approx(expected, rel=1e-6)


def test_only_local_sampling_is_the_closed_formula():
    q, s, e = 0.1, 1.3, 0.4
    inner = math.log(1 + math.expm1(e) / q)
    gaussian = stats.norm.cdf(1 / (2 * s) - inner * s)
    gaussian -= math.exp(inner) * stats.norm.cdf(-1 / (2 * s) - inner * s)
    value = terms(OnlyLocalSampling, 1.0, q, 0, s).delta(e, Direction.REMOVE)
    assert value == pytest.approx(q * gaussian, rel=1e-12)


def test_negative_epsilon_mirrors_the_other_direction():
    scheme = terms(Certified, 0.2, 0.3, 8, 1.1)
    e = 0.15
    mirrored = 1 - math.exp(-e) + math.exp(-e) * scheme.delta(e, Direction.ADD)
    assert scheme.delta(-e, Direction.REMOVE) == pytest.approx(mirrored, rel=1e-12)


@pytest.mark.parametrize("kind", [Certified, CertifiedBySample, AsPlotted, AsPrinted])
def test_the_curve_is_convex_in_exp_epsilon_across_zero(kind):
    alpha = np.linspace(0.5, 1.8, 400)
    for direction in Direction:
        values = terms(kind, 0.3, 0.4, 6, 1.5).delta(np.log(alpha), direction)
        assert (np.diff(values, 2) >= -1e-14).all()


@given(probability, probability, sizes, noise, st.floats(1e-9, 1e-2))
@settings(max_examples=50, deadline=None)
def test_epsilon_is_the_least_that_meets_delta(p, q, d, s, delta):
    scheme = terms(Certified, p, q, d, s)
    e = scheme.epsilon(delta)
    assert scheme.delta(e) <= delta
    assume(e > 1e-6)
    assert scheme.delta(e * (1 - 1e-6)) > delta * (1 - 1e-9)


# Section 2 of docs/mathematics.md: claims of the paper and what certified says instead.
@pytest.mark.parametrize(
    ("p", "q", "d", "s", "e", "certified"),
    [
        (0.001, 0.1, 30, 1.065, 0.015, 2.174e-5),
        (0.1, 0.001, 1000, 0.646, 0.015, 4.512e-6),
        (0.1, 0.1, 10, 2.21221629107045, 0.0721052923221486, 3.881e-5),
    ],
)
def test_golden_values_of_the_first_certified_bound(p, q, d, s, e, certified):
    assert terms(CertifiedBySample, p, q, d, s).delta(e) == pytest.approx(certified, rel=1e-3)
    assert terms(Certified, p, q, d, s).delta(e) < certified
    assert terms(AsPlotted, p, q, d, s).delta(e) == pytest.approx(1e-6, rel=0.02)


@pytest.mark.parametrize(
    ("p", "q", "d", "s"),
    [(0.1, 1e-7, 10**6, 1.0), (0.01, 0.5, 10**6, 5.0), (0.1, 1e-3, 10**6, 50.0), (1, 1, 10**6, 1)],
)
def test_huge_data_sets_need_few_terms(p, q, d, s):
    from coinflower.accounting.analyses.binomial import binomial_window

    counts, mass, cut = binomial_window(d, q, most=10 * s + 1)
    assert counts.size < 2000
    assert mass.sum() + cut == pytest.approx(1.0, rel=1e-8)
    values = terms(Certified, p, q, d, s).delta(np.linspace(-1, 1, 200))
    assert np.isfinite(values).all()


def test_extreme_noise_neither_overflows_nor_vanishes():
    first = terms(CertifiedBySample, 0.1, 0.2, 10, 0.01).epsilon(1e-6)
    assert first == pytest.approx(5386.231, rel=1e-6)
    assert first * 0.9999 < terms(Certified, 0.1, 0.2, 10, 0.01).epsilon(1e-6) < first
    small = terms(Certified, 0.1, 0.2, 10, 1e4).delta(0.0)
    assert small == pytest.approx(0.1 * 0.2 / (1e4 * math.sqrt(2 * math.pi)), rel=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("p", value) for value in (0, -0.1, 1.1, math.nan)),
        *(("q", value) for value in (0, 2, math.nan, math.inf)),
        *(("d", value) for value in (-1, 1.5, math.nan)),
        *(("noise_multiplier", value) for value in (0, -1, math.nan, math.inf, 1e-07)),
        *(("cap", value) for value in (0, 0.999, -1, math.nan, "2", True)),
    ],
)
def test_bad_arguments_are_named(field, value):
    good = {"p": 0.1, "q": 0.1, "d": 10, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=str(value)):
        Round(**{**good, field: value})


def test_an_unknown_scheme_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="certified, wcs, ols, cs, paper, printed"):
        scheme_class("rdp")


# docs/mathematics.md, "The cap": noise for (0.015, 1e-6) in one round.
@pytest.mark.parametrize(
    ("setting", "cap", "sigma"),
    [
        ((0.001, 0.1, 30), 1, 0.5674),
        ((0.001, 0.1, 30), 2, 1.098),
        ((0.001, 0.1, 30), math.inf, 2.3733),
        ((0.1, 0.001, 1000), 1.5, 0.723),
        ((0.1, 0.001, 1000), math.inf, 0.8087),
    ],
)
def test_noise_under_a_cap(setting, cap, sigma):
    p, q, d = setting
    wanted = {"epsilon": 0.015, "delta": 1e-6, "rounds": 1}
    found = least_sigma(Certified, p=p, q=q, d=d, cap=cap, **wanted)
    assert found == pytest.approx(sigma, abs=6e-4)


@given(probability, probability, sizes, noise, epsilons, directions, st.floats(1, 20))
@settings(max_examples=100, deadline=None)
def test_a_cap_lies_between_the_ideal_and_none(p, q, d, s, e, direction, cap):
    round_ = Round(p, q, d, s)
    capped = Certified(replace(round_, cap=cap)).delta(e, direction)
    underflow = 1e-22
    assert CentralShuffling(round_).delta(e, direction) <= capped * ROUNDING + underflow
    assert capped <= Certified(replace(round_, cap=cap + 0.5)).delta(e, direction) * ROUNDING
    assert capped <= Certified(round_).delta(e, direction) * ROUNDING + underflow
    # A cap of one clip norm costs as much as the ideal, in the worse direction.
    one = Certified(replace(round_, cap=1.0)).delta(e)
    assert one == pytest.approx(CentralShuffling(round_).delta(e), rel=1e-9, abs=underflow)


@given(probability, probability, sizes, noise, epsilons, directions)
@settings(max_examples=100, deadline=None)
def test_the_bound_that_is_charged_is_never_above_the_first_one(p, q, d, s, e, direction):
    first = terms(CertifiedBySample, p, q, d, s).delta(e, direction)
    assert terms(Certified, p, q, d, s).delta(e, direction) <= first * ROUNDING + 1e-22


@pytest.mark.parametrize("kind", [AsPlotted, AsPrinted])
def test_analyses_that_know_no_cap_refuse_one(kind):
    with pytest.raises(ValueError, match="knows no cap"):
        kind(Round(0.1, 0.1, 10, 1.0, cap=2))


def test_ledger_names_are_unique_and_mark_what_may_be_charged():
    assert list(CHARGED) == ["one-crossing", "certified", "wcs", "ols"]
    assert all(kind.is_chargeable for kind in CHARGED.values())
    others = set(SCHEMES.values()) - set(CHARGED.values())
    assert not any(kind.is_chargeable for kind in others)
    assert CHARGED["certified"] is CertifiedBySample
    assert SCHEMES["certified"] is CHARGED["one-crossing"] is Certified
