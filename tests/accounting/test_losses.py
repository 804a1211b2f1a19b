"""Losses on a lattice: their sums against dp-accounting's, and bounds that hold."""

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf

from accounting.losses import Losses, round_losses
from accounting.schemes import Certified, Direction, WeakClientSampling

CASES = [
    (Certified(p=0.01, q=0.1, d=30, noise_multiplier=2.0), 1000, 2.0**-12, 0.6),
    (Certified(p=0.5, q=0.5, d=100, noise_multiplier=0.5), 20, 2.0**-5, 40.0),
    (Certified(p=0.3, q=0.2, d=5, noise_multiplier=1.0), 2, 2.0**-8, 8.0),
    (WeakClientSampling(p=0.001, q=0.01, d=1, noise_multiplier=1.0), 10_000, 2.0**-10, 4.0),
]
TRUNCATION = 1e-10


@pytest.mark.parametrize(("scheme", "count", "step", "reach"), CASES)
def test_sums_are_those_of_dp_accounting(scheme, count, step, reach):
    for losses in round_losses(scheme, step, reach):
        ours = losses.times(count, TRUNCATION).as_pmf()
        theirs = losses.as_pmf().self_compose(count, TRUNCATION)
        for delta in (1e-3, 1e-6):
            exact = theirs.get_epsilon_for_delta(delta)
            assert ours.get_epsilon_for_delta(delta) == pytest.approx(exact, rel=1e-3, abs=step)
        for epsilon in (0.0, 0.1, 1.0):
            exact = theirs.get_delta_for_epsilon(epsilon)
            found = ours.get_delta_for_epsilon(epsilon)
            assert found == pytest.approx(exact, rel=1e-6, abs=2 * TRUNCATION)


@pytest.mark.parametrize(("scheme", "count", "step", "reach"), CASES)
def test_nothing_is_lost(scheme, count, step, reach):
    for losses in round_losses(scheme, step, reach):
        assert losses.mass.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)
        summed = losses.times(count, TRUNCATION)
        assert summed.mass.sum() + summed.infinite >= 1 - 1e-10
        assert summed.infinite >= TRUNCATION


@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_the_window_holds_all_but_the_truncation(count):
    mass = np.array([0.05, 0.0, 0.2, 0.5, 0.0, 0.0, 0.15, 0.1])
    losses = Losses(step=0.5, lowest=-3, mass=mass, infinite=0.0)
    full = np.array([1.0])
    for _ in range(count):
        full = np.convolve(full, mass)
    summed = losses.times(count, 1e-6)
    start = summed.lowest + 3 * count
    inside = full[start : start + summed.mass.size]
    assert 1 - inside.sum() <= 1e-6
    assert summed.mass == pytest.approx(inside, abs=1e-6)


def test_certain_losses_add_up():
    certain = Losses(step=0.5, lowest=2, mass=np.array([1.0]), infinite=0.0)
    summed = certain.times(3, 1e-12)
    assert (summed.lowest, summed.mass.tolist()) == (6, [1.0])


def test_the_polygon_lies_above_the_curve():
    scheme = Certified(p=0.1, q=0.2, d=10, noise_multiplier=1.0)
    remove, _ = round_losses(scheme, 0.05, 5.0)
    pmf = remove.as_pmf()
    assert isinstance(pmf, DensePLDPmf)
    for epsilon in (0.0, 0.01, 0.03, 0.12, 0.5, 1.7, 3.3):
        exact = scheme.delta(epsilon, Direction.REMOVE)
        assert exact * (1 - 1e-9) <= pmf.get_delta_for_epsilon(epsilon) <= exact * 1.2 + 1e-9
