"""Many rounds: oracles, the lattice, memory."""

import math
import subprocess
import sys
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.composition.compose import (
    delta_after,
    epsilon_after,
    lattice_step,
    merged,
)
from coinflower.accounting.mechanism import Round


def certified(p, q, d, s):
    return Certified(Round(p=p, q=q, d=d, noise_multiplier=s))


# Poisson-subsampled Gaussian at rate pq by dp-accounting, grid 1e-5 (docs/mathematics.md).
@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, 0.36394786), (1000, 2.1245225), (10000, 6.90742)]
)
def test_without_other_elements_it_is_the_subsampled_gaussian(rounds, expected):
    value = epsilon_after([(certified(0.1, 0.1, 0, 1.0), rounds)], 1e-6)
    assert expected * (1 - 1e-6) <= value <= expected * 1.001


@pytest.mark.parametrize(
    ("rate", "s", "rounds", "delta"),
    [(0.02, 1.2, 300, 1e-5), (0.3, 4.0, 50, 1e-6), (1.0, 5.0, 20, 1e-5), (1e-3, 1.0, 2000, 1e-6)],
)
def test_dp_accounting_agrees_at_d_zero(rate, s, rounds, delta):
    oracle = PLDAccountant(value_discretization_interval=1e-5)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(s))
    oracle.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    root = math.sqrt(rate)
    value = epsilon_after([(certified(root, root, 0, s), rounds)], delta)
    assert value == pytest.approx(oracle.get_epsilon(delta), rel=0.01)


def test_opacus_prv_agrees_at_d_zero():
    from opacus.accountants import PRVAccountant

    oracle = PRVAccountant()
    oracle.history = [(1.1, 0.02, 500)]
    low, _, high = oracle._get_dprv(eps_error=0.01, delta_error=1e-9).compute_epsilon(
        1e-5, 1e-9, 0.01
    )
    value = epsilon_after([(certified(0.2, 0.1, 0, 1.1), 500)], 1e-5)
    assert low <= value <= high * 1.001


def test_scenario_one_after_ten_thousand_rounds():
    """docs/mathematics.md, "The cap", and the first certified bound before it."""
    round_ = Round(0.001, 0.1, 30, 2.4903)
    first = epsilon_after([(CertifiedBySample(round_), 10_000)], 1e-5)
    assert first == pytest.approx(0.2974, abs=3e-4)
    value = epsilon_after([(Certified(round_), 10_000)], 1e-5)
    assert value == pytest.approx(0.273, abs=3e-4)
    for cap, epsilon in ((3, 0.0318), (2, 0.019)):
        capped = Certified(replace(round_, cap=cap))
        assert epsilon_after([(capped, 10_000)], 1e-5) == pytest.approx(epsilon, abs=5e-4)


GRID_CASES = [
    (certified(0.001, 0.1, 30, 2.49), 10_000, 1e-5),
    (certified(0.01, 0.01, 10, 1.0), 1000, 1e-6),
    (certified(0.001, 1e-4, 100, 1.0), 10_000, 1e-6),
    (certified(0.001, 0.1, 100, 20.0), 1000, 1e-6),
    (certified(0.5, 0.5, 100, 0.5), 100, 1e-8),
    (certified(0.3, 0.2, 5, 1.0), 2, 1e-6),
    (certified(1.0, 1.0, 10, 100.0), 10, 1e-8),
    (OnlyLocalSampling(Round(p=1.0, q=0.01, d=1, noise_multiplier=0.7)), 400, 1e-5),
    (WeakClientSampling(Round(p=0.1, q=0.05, d=1, noise_multiplier=2.0)), 3000, 1e-5),
]


@pytest.mark.parametrize(("scheme", "rounds", "delta"), GRID_CASES)
def test_a_ten_times_finer_lattice_changes_less_than_one_per_cent(scheme, rounds, delta):
    value = epsilon_after([(scheme, rounds)], delta)
    step = lattice_step([(scheme, rounds)], delta)
    finer = epsilon_after([(scheme, rounds)], delta, step=min(step, value * 0.02) / 10)
    assert finer * (1 - 2e-5) <= value <= finer * 1.01  # rounding is allowed for on each lattice


def test_coarser_lattices_only_round_up():
    scheme = certified(0.1, 0.1, 5, 1.2)
    values = [epsilon_after([(scheme, 300)], 1e-5, step=2.0**-k) for k in (13, 11, 9, 7, 5)]
    assert values == sorted(values)


def test_composition_is_at_least_the_gaussian_closed_form():
    # p = q = 1: T rounds of σ are exactly one round of σ/√T.
    rounds, s = 25, 10.0
    exact = OnlyLocalSampling(Round(p=1.0, q=1.0, d=0, noise_multiplier=s / math.sqrt(rounds)))
    value = epsilon_after([(certified(1.0, 1.0, 7, s), rounds)], 1e-6)
    assert exact.epsilon(1e-6) <= value <= exact.epsilon(1e-6) * 1.002


def test_rounds_with_different_terms_compose_in_any_order():
    one, two = certified(0.1, 0.1, 5, 1.0), certified(0.2, 0.05, 50, 2.0)
    forth = epsilon_after([(one, 30), (two, 100)], 1e-5)
    back = epsilon_after([(two, 100), (one, 10), (one, 20)], 1e-5)
    assert forth == back
    assert max(epsilon_after([(one, 30)], 1e-5), epsilon_after([(two, 100)], 1e-5)) < forth
    assert forth < epsilon_after([(one, 30)], 1e-5) + epsilon_after([(two, 100)], 1e-5)


def test_more_rounds_cost_more():
    scheme = certified(0.05, 0.1, 20, 1.5)
    values = [epsilon_after([(scheme, rounds)], 1e-5) for rounds in (1, 2, 5, 20, 100, 1000)]
    assert values == sorted(values)
    assert values[0] < values[-1]


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 1.0, 2.0])
def test_delta_and_epsilon_are_inverse(epsilon):
    rounds = [(certified(0.1, 0.1, 10, 1.5), 200)]
    delta = delta_after(rounds, epsilon)
    assert 0 < delta < 1
    back = epsilon_after(rounds, delta)
    assert back <= epsilon + 1e-3
    assert back == pytest.approx(epsilon, rel=0.01, abs=2e-3)


def test_nothing_costs_nothing():
    scheme = CentralShuffling(Round(p=0.1, q=0.1, d=3, noise_multiplier=1.0))
    assert epsilon_after([], 1e-5) == 0.0
    assert delta_after([(scheme, 0)], 0.1) == 0.0
    assert merged([(scheme, 2), (scheme, 3), (scheme, 0)]) == [(scheme, 5)]


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan])
def test_a_delta_outside_its_range_is_named(delta):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        epsilon_after([(certified(0.1, 0.1, 1, 1.0), 2)], delta)


def test_tiny_epsilon_stays_under_a_gigabyte():
    code = (
        "from coinflower.accounting.composition.compose import epsilon_after\n"
        "from coinflower.accounting.analyses.certified import Certified\n"
        "from coinflower.accounting.mechanism import Round\n"
        "t = Certified(Round(p=1e-4, q=0.5, d=100, noise_multiplier=3.0))\n"
        "print(epsilon_after([(t, 300)], 1e-7))\n"
        "t = Certified(Round(p=1e-3, q=1e-4, d=1000, noise_multiplier=1.0))\n"
        "print(epsilon_after([(t, 100000)], 1e-5))\n"
        "status = open('/proc/self/status').read()\n"
        "print(status.split('VmHWM:')[1].split()[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    one, two, kilobytes = map(float, done.stdout.split())
    assert 0 < one < math.inf
    assert 0 < two < 2e-3
    assert kilobytes < 1e6


def test_a_cap_of_one_is_the_ideal_in_one_round_only():
    round_ = Round(0.001, 0.1, 30, 2.4903, cap=1.0)
    for epsilon in (0.0, 1e-3, 0.01):
        ideal = CentralShuffling(round_).delta(epsilon)
        assert Certified(round_).delta(epsilon) == pytest.approx(ideal, rel=1e-9)
    # The ideal's figure is dp_accounting's, with steps of 1e-6 (0.010288).
    ideal = epsilon_after([(CentralShuffling(round_), 10_000)], 1e-5)
    assert ideal == pytest.approx(0.01029, abs=1e-5)
    assert epsilon_after([(Certified(round_), 10_000)], 1e-5) == pytest.approx(0.01184, abs=2e-5)
