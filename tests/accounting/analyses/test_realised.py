"""What concrete data sets lose: never more than certified, and by the exact integral."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coinflower.accounting.analyses.baselines import CentralShuffling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.paper import AsPrinted
from coinflower.accounting.analyses.realised import (
    SMALLEST_ANGLE,
    Realised,
    realised_delta,
    realised_epsilon,
)
from coinflower.accounting.composition.tightness import realised_delta_after, realised_epsilon_after
from coinflower.accounting.mechanism import Direction, Round

geometries = st.fixed_dictionaries(
    {
        "round": st.builds(
            Round,
            p=st.floats(1e-3, 0.99),
            q=st.floats(0.01, 0.99),
            d=st.integers(0, 40),
            noise_multiplier=st.floats(0.4, 8.0),
        ),
        "length": st.floats(0.05, 1.0),
        "angle": st.floats(SMALLEST_ANGLE, math.pi - SMALLEST_ANGLE),
    }
)


@given(geometries, st.floats(0, 2), st.sampled_from(list(Direction)))
@settings(max_examples=150, deadline=None)
def test_no_geometry_exceeds_the_certified_bound(geometry, epsilon, direction):
    pair = Realised(**geometry)
    bound = Certified(pair.round).delta(epsilon, direction)
    assert pair.delta(epsilon, direction) <= bound * (1 + 1e-8) + 1e-18


def random_geometry_loss(generator, p, q, d, sigma, epsilon):
    """Return the exact remove-loss of random gradients in the plane, by a fine grid."""
    angles = generator.uniform(0, 2 * math.pi, d + 1)
    lengths = generator.uniform(0.3, 1.0, d + 1)
    vectors = np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], axis=1)
    chosen = (np.arange(2**d)[:, None] >> np.arange(d)) & 1
    sums = chosen @ vectors[:d]
    weights = q ** chosen.sum(axis=1) * (1 - q) ** (d - chosen.sum(axis=1))
    axis = np.arange(-8 * sigma - d, 8 * sigma + d, sigma / 12)
    x, y = np.meshgrid(axis, axis)

    def density(means):
        return sum(
            w * stats.norm.pdf(x, m[0], sigma) * stats.norm.pdf(y, m[1], sigma)
            for w, m in zip(weights, means, strict=True)
        )

    sits_out = stats.norm.pdf(x, 0, sigma) * stats.norm.pdf(y, 0, sigma)
    without = (1 - p) * sits_out + p * density(sums)
    with_it = (1 - p) * sits_out + p * ((1 - q) * density(sums) + q * density(sums + vectors[d]))
    gap = np.maximum(with_it - math.exp(epsilon) * without, 0)
    return gap.sum() * (axis[1] - axis[0]) ** 2


@pytest.mark.parametrize("seed", range(6))
def test_random_gradients_never_exceed_the_certified_bound(seed):
    generator = np.random.default_rng(seed)
    p, q, d, sigma = generator.uniform(0.1, 0.9), generator.uniform(0.1, 0.9), 3, 0.8
    for epsilon in (0.05, 0.3):
        lost = random_geometry_loss(generator, p, q, d, sigma, epsilon)
        bound = Certified(Round(p=p, q=q, d=d, noise_multiplier=sigma)).delta(
            epsilon, Direction.REMOVE
        )
        assert lost <= bound * (1 + 1e-4)


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("angle", [0.2, 0.9, 2.4])
def test_the_planar_integral_agrees_with_a_grid(angle, direction):
    p, q, d, sigma, epsilon = 0.3, 0.4, 3, 0.9, 0.1
    pair = Realised(Round(p, q, d, sigma), angle=angle, length=0.8)
    axis = np.arange(-9, 12, 0.02)
    x, y = np.meshgrid(axis, axis)

    def density(mean_x, mean_y):
        return stats.norm.pdf(x, mean_x, sigma) * stats.norm.pdf(y, mean_y, sigma)

    mass = stats.binom.pmf(range(d + 1), d, q)
    alone = sum(m * density(0.8 * i, 0) for i, m in enumerate(mass))
    joined = sum(
        m * density(0.8 * i + math.cos(angle), math.sin(angle)) for i, m in enumerate(mass)
    )
    without = (1 - p) * density(0, 0) + p * alone
    with_it = (1 - p) * density(0, 0) + p * ((1 - q) * alone + q * joined)
    one, other = (with_it, without) if direction is Direction.REMOVE else (without, with_it)
    expected = np.maximum(one - math.exp(epsilon) * other, 0).sum() * 0.02**2
    assert pair.delta(epsilon, direction) == pytest.approx(expected, rel=1e-4)


def test_the_collinear_pair_agrees_with_a_grid():
    p, q, d, sigma, epsilon = 0.3, 0.4, 3, 0.9, 0.1
    z = np.arange(-12, 16, 0.001)
    alone = stats.binom.pmf(range(d + 1), d, q) @ stats.norm.pdf(
        z, np.arange(d + 1)[:, None], sigma
    )
    both = stats.binom.pmf(range(d + 2), d + 1, q) @ stats.norm.pdf(
        z, np.arange(d + 2)[:, None], sigma
    )
    out = (1 - p) * stats.norm.pdf(z, 0, sigma)
    gap = np.maximum(out + p * both - math.exp(epsilon) * (out + p * alone), 0).sum() * 0.001
    scheme = AsPrinted(Round(p=p, q=q, d=d, noise_multiplier=sigma))
    assert scheme.delta(epsilon, Direction.REMOVE) == pytest.approx(gap, rel=1e-5)


# docs/mathematics.md, "What the paper says": the paper claims δ = 1e-6 for each of these.
@pytest.mark.parametrize(
    ("p", "q", "d", "s", "e", "least"),
    [
        (0.001, 0.1, 30, 1.065, 0.015, 1.57e-5),
        (0.1, 0.001, 1000, 0.646, 0.015, 2.66e-6),
        (0.1, 0.1, 10, 2.21221629107045, 0.0721052923221486, 2.82e-5),
    ],
)
def test_counter_examples_to_the_papers_claims(p, q, d, s, e, least):
    certified = Certified(Round(p=p, q=q, d=d, noise_multiplier=s))
    found, _ = realised_delta(certified.round, e)
    assert least <= found <= certified.delta(e)


@given(st.floats(0.01, 0.9), st.floats(0.05, 0.9), st.integers(0, 30), st.floats(0.5, 5))
@settings(max_examples=12, deadline=None)
def test_the_ideal_is_at_most_realised_is_at_most_certified(p, q, d, s):
    certified = Certified(Round(p=p, q=q, d=d, noise_multiplier=s))
    ideal = CentralShuffling(Round(p=p, q=q, d=d, noise_multiplier=s))
    for e in (0.0, 0.1, 0.5):
        found, _ = realised_delta(certified.round, e)
        assert ideal.delta(e) <= found * (1 + 1e-6) + 1e-18
        assert found <= certified.delta(e) * (1 + 1e-8) + 1e-18


def test_realised_epsilon_is_attained_by_its_geometry():
    certified = Certified(Round(p=0.1, q=0.1, d=10, noise_multiplier=2.0))
    e, pair = realised_epsilon(certified.round, 1e-5, start=certified.epsilon(1e-5))
    assert pair.delta(e) == pytest.approx(1e-5, rel=1e-6)
    assert e <= certified.epsilon(1e-5)


def test_composed_lower_bounds_stay_below_the_certified_ones():
    from coinflower.accounting.composition.compose import delta_after, epsilon_after

    certified = Certified(Round(p=0.05, q=0.1, d=20, noise_multiplier=1.5))
    upper = epsilon_after([(certified, 200)], 1e-5)
    lower = realised_epsilon_after(certified.round, 200, 1e-5)
    assert 0.5 * upper < lower < upper
    assert realised_delta_after(certified.round, 200, upper) < delta_after(
        [(certified, 200)], upper
    )
