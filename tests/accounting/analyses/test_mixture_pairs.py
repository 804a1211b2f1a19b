"""Pairs of mixtures: the exact loss of concrete sums, at most the bound; where it is attained."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from coinflower.accounting.analyses.mixture_pairs import aligned_pair, planar_cells, worst_pair
from coinflower.accounting.analyses.one_crossing import one_crossing_delta
from coinflower.accounting.analyses.paper import AsPrinted
from coinflower.accounting.analyses.realised import Realised
from coinflower.accounting.mechanism import Direction, Round

caps = st.one_of(st.floats(1.0, 8.0), st.just(math.inf))


def bound(epsilon, direction, **setting):
    return float(one_crossing_delta(np.array([epsilon]), direction=direction, **setting)[0])


@given(
    st.floats(1e-3, 1.0),
    st.floats(0.01, 1.0),
    st.integers(0, 40),
    st.floats(0.4, 8.0),
    caps,
    st.floats(0.1, 1.0),
    st.floats(1e-3, 1.5),
    st.sampled_from(list(Direction)),
)
@settings(max_examples=100, deadline=None)
def test_no_capped_data_set_exceeds_the_bound(p, q, d, sigma, cap, length, epsilon, direction):
    setting = {"p": p, "q": q, "d": d, "sigma": sigma, "cap": cap}
    for geometry in Direction:
        pair = aligned_pair(**setting, direction=geometry, length=length)
        assert pair.without.sum() == pytest.approx(1, abs=1e-12)
        assert pair.gain.sum() == pytest.approx(0, abs=1e-12)
        lost = pair.delta(epsilon, direction)
        assert lost <= bound(epsilon, direction, **setting) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("cap", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_the_bound_is_attained_by_sums_of_limited_length(cap, direction):
    """Theorem 3: some length of the sums makes the loss as large as the bound."""
    setting = {"p": 0.01, "q": 0.1, "d": 30, "sigma": 1.3}
    epsilon = 0.015
    exact = bound(epsilon, direction, cap=cap, **setting)
    most = min(cap - 1 if direction is Direction.REMOVE else cap, 25.0)

    def loss(level):
        return worst_pair(**setting, level=level, direction=direction).delta(epsilon, direction)

    best = optimize.minimize_scalar(lambda level: -loss(level), bounds=(0.0, most + 1e-9))
    found = max(loss(most), -best.fun)
    assert exact * (1 - 3e-5) <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("direction", list(Direction))
def test_without_a_cap_the_aligned_pair_is_the_theorem_as_printed(direction):
    setting = {"p": 0.001, "q": 0.1, "d": 30}
    pair = aligned_pair(**setting, sigma=2.37, cap=math.inf, direction=direction)
    printed = AsPrinted(Round(**setting, noise_multiplier=2.37)).delta(0.015, direction)
    assert printed * (1 - 1e-5) <= pair.delta(0.015, direction) <= printed * (1 + 1e-9)


@pytest.mark.parametrize("cap", [1.5, 2.5, math.inf])
def test_it_agrees_with_a_grid(cap):
    p, q, d, sigma, epsilon = 0.3, 0.4, 5, 0.9, 0.1
    z = np.arange(-12, 18, 5e-4)
    mass = stats.binom.pmf(range(d + 1), d, q)
    others, out = 0.8 * np.arange(d + 1), (1 - p) * stats.norm.pdf(z, 0, sigma)
    before = mass @ stats.norm.pdf(z, np.minimum(others, cap)[:, None], sigma)
    after = mass @ stats.norm.pdf(z, np.minimum(others + 1, cap)[:, None], sigma)
    gap = out + p * ((1 - q) * before + q * after) - math.exp(epsilon) * (out + p * before)
    pair = aligned_pair(p=p, q=q, d=d, sigma=sigma, cap=cap, direction=Direction.REMOVE, length=0.8)
    expected = np.maximum(gap, 0).sum() * 5e-4
    assert pair.delta(epsilon, Direction.REMOVE) == pytest.approx(expected, rel=1e-5)


# How tight the bound is under a cap: equal, shorter gradients of the others leave x' room.
@pytest.mark.parametrize(("cap", "sigma", "share"), [(1.5, 0.837, 0.5), (2.0, 1.098, 0.18)])
def test_with_a_cap_a_data_set_loses_a_good_share_of_the_bound(cap, sigma, share):
    setting = {"p": 0.001, "q": 0.1, "d": 30, "sigma": sigma, "cap": cap}
    direction = Direction.REMOVE
    lost = max(
        aligned_pair(**setting, direction=direction, length=length).delta(0.015, direction)
        for length in np.linspace(0.1, 1.0, 10)
    )
    exact = bound(0.015, direction, **setting)
    assert share * exact <= lost <= exact


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("angle", [0.25, 0.9, 2.5])
def test_cells_in_the_plane_lose_what_the_planar_integral_does(angle, direction):
    setting = {"p": 0.05, "q": 0.2, "d": 12}
    base, gain = planar_cells(**setting, sigma=1.2, angle=angle)
    assert base.sum() == pytest.approx(1, abs=1e-12)
    if direction is Direction.ADD:
        base, gain = base + gain, -gain
    lost = np.maximum(gain - math.expm1(0.05) * base, 0).sum()
    exact = Realised(Round(**setting, noise_multiplier=1.2), angle=angle).delta(0.05, direction)
    assert exact * (1 - 5e-3) <= lost <= exact * (1 + 1e-6) + 1e-14
