"""The bound with one crossing: oracle of 60 digits, limits, order, golden values."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.analyses.one_crossing import one_crossing_delta
from coinflower.accounting.mechanism import Direction, Round

probability = st.floats(1e-4, 1.0)
sizes = st.integers(0, 200)
noise = st.floats(0.05, 1e3)
epsilons = st.floats(0.0, 3.0)
caps = st.one_of(st.floats(1.0, 20.0), st.just(math.inf))
directions = st.sampled_from(list(Direction))
# Values are rounded up by about 1e-11; the older schemes are not, and keep nine digits.
ROUNDING = 1 + 1e-9
# The cut binomial mass is charged in full.
TINY = 1e-22


def delta(epsilon, p, q, d, sigma, cap=math.inf, direction=Direction.REMOVE):
    values = one_crossing_delta(
        np.atleast_1d(np.asarray(epsilon, dtype=np.float64)),
        p=p, q=q, d=d, sigma=sigma, cap=cap, direction=direction,
    )  # fmt: skip
    return float(values[0]) if np.ndim(epsilon) == 0 else values


def worse(epsilon, p, q, d, sigma, cap=math.inf):
    return max(delta(epsilon, p, q, d, sigma, cap, direction) for direction in Direction)


def older(kind, epsilon, p, q, d, sigma, direction):
    return kind(Round(p=p, q=q, d=d, noise_multiplier=sigma)).delta(epsilon, direction)


class Oracle:
    """max_t F(t) in 60 digits, straight from the definition: no clever formula, no window."""

    def __init__(self, epsilon, p, q, d, sigma, cap, direction):
        mpmath.mp.dps = 60
        p, q, self.sigma = mpmath.mpf(p), mpmath.mpf(q), mpmath.mpf(sigma)
        alpha = mpmath.exp(mpmath.mpf(epsilon))
        self.sits_out = (alpha - 1) * (1 - p)
        removes = direction is Direction.REMOVE
        self.top = p * q if removes else p * (1 - alpha * (1 - q))
        self.near = p * (alpha - 1 + q) if removes else alpha * p * q
        self.levels = {}
        # Beyond that many counts no probability reaches 1e-45 in the settings below.
        for count in range(min(d, 400) + 1):
            limit = mpmath.mpf(cap)
            level = min(count, limit - 1) if removes else min(count, limit) - 1
            mass = mpmath.binomial(d, count) * q**count * (1 - q) ** (d - count)
            self.levels[level] = self.levels.get(level, mpmath.mpf(0)) + mass

    def tail(self, z):
        return mpmath.erfc(z / self.sigma / mpmath.sqrt(2)) / 2

    def excess(self, x):
        return self.top * self.tail(x - 1) - self.near * self.tail(x)

    def missing(self, t):
        """Return Σ_j π_j·[c_j(t)]₊ − W."""
        variance = self.sigma**2
        total = -self.sits_out
        for j, mass in self.levels.items():
            with_it = self.top * mpmath.exp(((j + 1) * t - (j + 1) ** 2 / 2) / variance)
            without = self.near * mpmath.exp((j * t - j**2 / 2) / variance)
            total += mass * max(with_it - without, 0)
        return total

    def delta(self):
        if self.top <= 0:
            return mpmath.mpf(0)
        tau = mpmath.mpf(1) / 2 + self.sigma**2 * mpmath.log(self.near / self.top)
        low = min(self.levels) + tau
        step = self.sigma
        while self.missing(low + step) < 0:
            step *= 2
        high = low + step
        while high - low > mpmath.mpf(10) ** -45 * (1 + abs(high)):
            middle = (low + high) / 2
            low, high = (middle, high) if self.missing(middle) < 0 else (low, middle)
        total = sum(mass * self.excess(max(high - j, tau)) for j, mass in self.levels.items())
        return total - self.sits_out * self.tail(high)


EXACT = [
    # p, q, d, sigma, cap, epsilon, direction
    (0.001, 0.1, 30, 2.3733, math.inf, 0.015, "remove"),
    (0.001, 0.1, 30, 1.098, 2.0, 0.015, "remove"),
    (0.001, 0.1, 30, 2.3733, 2.5, 0.015, "add"),
    (0.1, 0.001, 1000, 0.8087, math.inf, 0.015, "remove"),
    (0.1, 0.001, 1000, 0.723, 1.5, 5e-4, "add"),
    (0.3, 1e-7, 10**6, 0.05, math.inf, 50.0, "remove"),
    (0.3, 1e-7, 10**6, 0.05, math.inf, 5e-8, "add"),
    (0.02, 1e-5, 10**6, 0.3, 3.5, 2e-6, "add"),
    (0.02, 1e-5, 10**6, 1.0, math.inf, 1e-4, "remove"),
    (0.9, 0.5, 20, 1e3, math.inf, 1e-9, "remove"),
    (0.9, 0.5, 20, 1e3, 7.0, 2e-3, "add"),
    (0.5, 0.9, 3, 1e3, 1.0, 2e-3, "remove"),
    (1e-4, 1.0, 5, 0.4, 2.2, 3.0, "remove"),
    (1e-4, 1.0, 5, 0.4, math.inf, 3.0, "add"),
    (0.2, 0.3, 12, 0.05, 1.001, 30.0, "remove"),
    (0.7, 0.05, 100, 30.0, 40.0, 0.008, "remove"),
    # Next to where the loss of adding vanishes; level -1 alone cannot balance the sit-out mass.
    (0.4153095145022028, 9.193019982635778e-07, 5, 0.0765596, 23.8, 8.004555993907341e-07, "add"),
    (0.11267099749687391, 0.00099737739722, 30, 1.06966475, math.inf, 0.000482999101, "add"),
    (0.41894659658274686, 2.7926543235858287e-06, 10**6, 1.13485961, 1.5, 1.562595807e-6, "add"),
]


@pytest.mark.parametrize(("p", "q", "d", "sigma", "cap", "epsilon", "direction"), EXACT)
def test_it_is_the_definition_to_ten_digits_and_rounded_up(p, q, d, sigma, cap, epsilon, direction):
    direction = Direction(direction)
    exact = Oracle(epsilon, p, q, d, sigma, cap, direction).delta()
    assert exact >= 1e-13
    error = float(delta(epsilon, p, q, d, sigma, cap, direction) / exact - 1)
    assert 0 <= error <= 1e-10


@given(
    st.floats(1e-3, 1.0),
    st.floats(-6, 0),
    st.integers(1, 60),
    st.floats(0.1, 1e3),
    caps,
    st.floats(-6, -0.1),
    directions,
)
@settings(max_examples=25, deadline=None)
def test_it_is_the_definition_anywhere(p, log_q, d, sigma, cap, log_share, direction):
    q = 10**log_q
    # ε in the range where the loss of adding has not vanished, or below that of sampling.
    vanishes_at = -math.log1p(-q) if q < 1 else 3.0
    reach = min(1.0, 10 / sigma)
    epsilon = 10**log_share * reach * (vanishes_at if direction is Direction.ADD else q)
    value = delta(epsilon, p, q, d, sigma, cap, direction)
    assume(value >= 1e-13)
    exact = Oracle(epsilon, p, q, d, sigma, cap, direction).delta()
    assert -1e-12 <= float(value / exact - 1) <= 1e-9


@given(probability, probability, sizes, noise, caps, directions)
@settings(max_examples=100, deadline=None)
def test_it_falls_with_epsilon_and_is_convex_in_alpha(p, q, d, s, cap, direction):
    alpha = 1 + np.geomspace(1e-9, 20, 200) * min(1.0, 3 / s)
    values = delta(np.log1p(alpha - 1), p, q, d, s, cap, direction)
    assert np.isfinite(values).all()
    assert (np.diff(values) <= 1e-11 * values[:-1]).all()
    gaps = np.diff(alpha)
    # A chord lies above the curve, whatever rounding does.
    chord = (values[:-2] * gaps[1:] + values[2:] * gaps[:-1]) / (gaps[1:] + gaps[:-1])
    assert (values[1:-1] <= chord * (1 + 2e-11) + TINY).all()


@given(probability, probability, sizes, st.floats(0.2, 30), caps)
@settings(max_examples=60, deadline=None)
def test_both_directions_make_one_convex_curve_above_one_minus_alpha(p, q, d, s, cap):
    """Theorem 2: with ε < 0 mirrored the curve is a privacy profile."""
    above = np.linspace(1.0, 4.0, 60)
    below = 1 / above[:0:-1]
    for direction in Direction:
        mirrored = delta(-np.log(below), p, q, d, s, cap, direction.other)
        alpha = np.concatenate([below, above])
        values = np.concatenate(
            [1 - below + below * mirrored, delta(np.log(above), p, q, d, s, cap, direction)]
        )
        assert (values >= np.maximum(1 - alpha, 0)).all()
        assert (np.diff(values) <= 1e-11 * values[:-1]).all()
        slopes = np.diff(values) / np.diff(alpha)
        assert (np.diff(slopes) >= -1e-9).all()


@given(probability, probability, sizes, noise, epsilons, caps, directions)
@settings(max_examples=150, deadline=None)
def test_it_grows_with_p_and_d_and_the_cap_and_falls_with_noise(p, q, d, s, e, cap, direction):
    e = e / s
    base = delta(e, p, q, d, s, cap, direction)
    slack = 1 + 1e-10
    assert base <= delta(e, min(1.0, 1.2 * p), q, d, s, cap, direction) * slack + TINY
    assert base <= delta(e, p, q, d + 5, s, cap, direction) * slack + TINY
    assert base <= delta(e, p, q, d, s, cap * 1.3, direction) * slack + TINY
    assert base <= delta(e, p, q, d, s / 1.1, cap, direction) * slack + TINY
    assert worse(e, p, q, d, s, cap) <= worse(e, p, min(1.0, 1.2 * q), d, s, cap) * slack + TINY


@given(probability, probability, sizes, st.floats(0.3, 30), epsilons, caps, directions)
@settings(max_examples=150, deadline=None)
def test_it_lies_between_the_ideal_and_the_older_bound(p, q, d, s, e, cap, direction):
    value = delta(e, p, q, d, s, cap, direction)
    assert value >= older(CentralShuffling, e, p, q, d, s, direction) * (1 - 1e-9)
    assert value <= older(CertifiedBySample, e, p, q, d, s, direction) * ROUNDING + TINY
    assert value <= older(WeakClientSampling, e, p, q, d, s, direction) * ROUNDING + TINY


@given(probability, probability, noise, epsilons, caps, directions)
@settings(max_examples=100, deadline=None)
def test_a_client_with_nothing_else_to_sample_is_the_ideal(p, q, s, e, cap, direction):
    expected = older(CentralShuffling, e / s, p, q, 0, s, direction)
    value = delta(e / s, p, q, 0, s, cap, direction)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-20)


@given(probability, probability, sizes, noise, epsilons)
@settings(max_examples=100, deadline=None)
def test_a_cap_of_one_clip_norm_is_the_ideal(p, q, d, s, e):
    ideal = older(CentralShuffling, e / s, p, q, d, s, Direction.REMOVE)
    assert delta(e / s, p, q, d, s, 1.0) == pytest.approx(ideal, rel=1e-9, abs=TINY)
    # Adding can do more than in the ideal, though never more than removing.
    assert delta(e / s, p, q, d, s, 1.0, Direction.ADD) <= ideal * ROUNDING + TINY


@given(probability, sizes, noise, epsilons, caps, directions)
@settings(max_examples=50, deadline=None)
def test_certain_participation_is_only_local_sampling(q, d, s, e, cap, direction):
    expected = older(OnlyLocalSampling, e / s, 1.0, q, d, s, direction)
    value = delta(e / s, 1.0, q, d, s, cap, direction)
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-20)


@given(st.floats(0.01, 0.9), st.floats(0.1, 1.0), st.floats(0.3, 3.0), epsilons, directions)
@settings(max_examples=50, deadline=None)
def test_a_large_sampled_set_shows_participation(p, q, s, e, direction):
    expected = older(WeakClientSampling, e, p, q, 0, s, direction)
    value = delta(e, p, q, 100_000, s, direction=direction)
    assert value == pytest.approx(expected, rel=1e-9, abs=TINY)


def sigma_needed(p, q, d, cap, epsilon=0.015, target=1e-6):
    def shortfall(sigma):
        return math.log(max(worse(epsilon, p, q, d, sigma, cap), 1e-300) / target)

    return optimize.brentq(shortfall, 0.4, 9, xtol=1e-10)


# Computed once with 60 digits by the Oracle above; the mathematics page's table of caps.
@pytest.mark.parametrize(
    ("cap", "many_small", "few_large"),
    [
        (1.0, 0.567, 0.567),
        (1.5, 0.837, 0.723),
        (2.0, 1.098, 0.8065),
        (3.0, 1.543, 0.8087),
        (4.0, 1.886, 0.8087),
        (5.0, 2.126, 0.8087),
        (6.0, 2.272, 0.8087),
        (8.0, 2.369, 0.8087),
        (math.inf, 2.3733, 0.8087),
    ],
)
def test_noise_for_the_papers_scenarios(cap, many_small, few_large):
    assert sigma_needed(0.001, 0.1, 30, cap) == pytest.approx(many_small, abs=6e-4)
    assert sigma_needed(0.1, 0.001, 1000, cap) == pytest.approx(few_large, abs=6e-4)


def test_a_split_of_the_sit_out_mass_cannot_do_better():
    """The bound is the least over all splits w: try others, by plain integrals on a grid."""
    p, q, d, sigma, epsilon = 0.05, 0.2, 4, 1.1, 0.08
    alpha = math.exp(epsilon)
    z = np.arange(-12, 20, 1e-3)
    mass = stats.binom.pmf(range(d + 1), d, q)

    def bound(split):
        total = 0.0
        for i in range(d + 1):
            gap = (
                p * q * stats.norm.pdf(z, i + 1, sigma)
                - p * (alpha - 1 + q) * stats.norm.pdf(z, i, sigma)
                - split[i] * (alpha - 1) * (1 - p) * stats.norm.pdf(z, 0, sigma)
            )
            total += mass[i] * np.maximum(gap, 0).sum() * 1e-3
        return total

    best = delta(epsilon, p, q, d, sigma)
    generator = np.random.default_rng(1)
    tried = [generator.dirichlet(np.ones(d + 1)) / mass for _ in range(50)]
    assert min(bound(split) for split in tried) > best * (1 - 1e-6)
    equal = bound(np.ones(d + 1))
    assert equal == pytest.approx(
        older(CertifiedBySample, epsilon, p, q, d, sigma, Direction.REMOVE), rel=1e-5
    )


def test_many_epsilons_are_answered_as_one_by_one():
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 3, 3000)])
    for direction in Direction:
        at_once = delta(grid, 0.01, 0.1, 300, 2.0, 5.5, direction)
        for place in (0, 1, 77, 1500, 2500, 3000):
            alone = delta(float(grid[place]), 0.01, 0.1, 300, 2.0, 5.5, direction)
            assert at_once[place] == pytest.approx(alone, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("cap", [0.99, -1.0, 0.0, math.nan])
def test_a_cap_below_one_clip_norm_is_refused(cap):
    with pytest.raises(ValueError, match=f"cap = {cap} must be at least 1"):
        delta(0.1, 0.1, 0.1, 5, 1.0, cap)


@pytest.mark.parametrize("direction", list(Direction))
def test_no_epsilon_at_all(direction):
    assert delta(np.empty(0), 0.1, 0.1, 5, 1.0, direction=direction).size == 0


@given(
    probability,
    st.floats(1e-7, 1.0),
    st.integers(0, 10**6),
    st.floats(1e-6, 1e6),
    caps,
    directions,
)
@settings(max_examples=100, deadline=None)
def test_extreme_terms_give_falling_probabilities(p, q, d, s, cap, direction):
    assume(d * q * (1 - q) < 1e4)
    grid = np.concatenate([[0.0], np.geomspace(1e-12, 1e4, 40), np.geomspace(1e-6, 40, 20) / s**2])
    values = delta(np.sort(grid), p, q, d, s, cap, direction)
    assert ((values >= 0) & (values <= 1)).all()
    # The difference of nearly equal tails has few digits if the noise is huge.
    assert (np.diff(values) <= 1e-8 * values[:-1]).all()


@pytest.mark.parametrize("cap", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("direction", list(Direction))
def test_where_everything_is_sampled_a_data_set_loses_what_the_bound_says(cap, direction):
    # Thirty equal gradients that leave x' just room below the cap, or that x' points against.
    p, d, sigma = 0.001, 30, 1.0
    others = cap - 1 if direction is Direction.REMOVE else cap
    both = cap if direction is Direction.REMOVE else cap - 1
    z = np.arange(-14.0, 18.0, 1 / 2000)
    idle = (1 - p) * stats.norm.pdf(z, 0, sigma)
    with_it = idle + p * stats.norm.pdf(z, both, sigma)
    without = idle + p * stats.norm.pdf(z, others, sigma)
    for epsilon in (0.015, 0.5):
        pair = (with_it, without) if direction is Direction.REMOVE else (without, with_it)
        loss = np.maximum(pair[0] - math.exp(epsilon) * pair[1], 0).sum() / 2000
        bound = Certified(Round(p, 1.0, d, sigma, cap)).delta(epsilon, direction)
        assert bound == pytest.approx(loss, rel=1e-5)
