"""Losses of a round on a lattice: they bound the curve they come from."""

import math

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from hypothesis import given, settings
from hypothesis import strategies as st

from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.losses import decaying_sums, round_losses
from coinflower.accounting.mechanism import Direction, Round


@pytest.mark.parametrize(
    ("scheme", "step", "reach"),
    [
        (Certified(Round(p=0.01, q=0.1, d=30, noise_multiplier=2.0)), 2.0**-12, 0.6),
        (Certified(Round(p=0.5, q=0.5, d=100, noise_multiplier=0.5)), 2.0**-5, 40.0),
        (WeakClientSampling(Round(p=0.001, q=0.01, d=1, noise_multiplier=1.0)), 2.0**-10, 4.0),
    ],
)
def test_nothing_of_a_round_is_lost(scheme, step, reach):
    for losses in round_losses(scheme, step, reach):
        assert losses.mass.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)


def test_the_polygon_lies_above_the_curve():
    scheme = Certified(Round(p=0.1, q=0.2, d=10, noise_multiplier=1.0))
    remove, _ = round_losses(scheme, 0.05, 5.0)
    pmf = remove.as_pmf()
    assert isinstance(pmf, DensePLDPmf)
    for epsilon in (0.0, 0.01, 0.03, 0.12, 0.5, 1.7, 3.3):
        exact = scheme.delta(epsilon, Direction.REMOVE)
        assert exact * (1 - 1e-9) <= pmf.get_delta_for_epsilon(epsilon) <= exact * 1.2 + 1e-9


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3, 0.03, 0.2, 0.9])
def test_epsilon_is_that_of_an_independent_accountant(delta):
    scheme = Certified(Round(p=0.5, q=0.3, d=10, noise_multiplier=1.0))
    for losses in round_losses(scheme, 2.0**-8, 12.0):
        theirs = losses.as_pmf().get_epsilon_for_delta(delta)
        assert losses.epsilon(delta) == pytest.approx(theirs, rel=1e-9, abs=1e-12)
        assert losses.epsilon(delta) >= theirs * (1 - 1e-12)


@given(
    st.lists(st.floats(1e-30, 1.0), min_size=1, max_size=60),
    st.floats(1e-6, 80.0),
    st.integers(1, 400),
)
@settings(max_examples=60, deadline=None)
def test_decaying_sums_are_those_of_a_loop(values, step, copies):
    values = np.array(values * copies)
    expected, before, decay = [], 0.0, math.exp(-step)
    for value in values.tolist():
        before = value + decay * before
        expected.append(before)
    allowed = 8 * (values.size + 256) * 2.0**-53
    assert decaying_sums(values, step) == pytest.approx(np.array(expected), rel=allowed)
