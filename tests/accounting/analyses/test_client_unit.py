"""The whole client as the unit: against dp-accounting's mixture, and in its limits."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.analyses.client_unit import (
    SeenWholeClient,
    WholeClient,
    client_delta,
    whole_client,
)
from coinflower.accounting.analyses.names import CHARGED
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Direction, Round

probability = st.floats(1e-3, 1.0)
caps = st.one_of(st.floats(1.0, 20.0), st.just(math.inf))
directions = st.sampled_from(list(Direction))


def mixture(p, q, size, cap):
    lengths = np.minimum(np.arange(size + 1), cap)
    mass = p * stats.binom.pmf(range(size + 1), size, q)
    mass[0] += 1 - p
    return lengths.tolist(), (mass / mass.sum()).tolist()


def on_a_grid(epsilon, p, q, size, sigma, cap, direction):
    lengths, mass = mixture(p, q, size, cap)
    z, step = np.linspace(-10 * sigma, lengths[-1] + 10 * sigma, 40_001, retstep=True)
    one = mass @ stats.norm.pdf(z, np.array(lengths)[:, None], sigma)
    other = stats.norm.pdf(z, 0, sigma)
    if direction is Direction.ADD:
        one, other = other, one
    return np.array([np.maximum(one - math.exp(e) * other, 0).sum() * step for e in epsilon])


@given(probability, probability, st.integers(1, 30), st.floats(0.3, 20), caps, directions)
@settings(max_examples=60, deadline=None)
def test_one_round_is_the_mixture(p, q, size, sigma, cap, direction):
    epsilon = np.array([0.01, 0.1, 0.7, 2.0])
    value = client_delta(epsilon, p=p, q=q, size=size, sigma=sigma, cap=cap, direction=direction)
    expected = on_a_grid(epsilon, p, q, size, sigma, cap, direction)
    assert value == pytest.approx(expected, rel=1e-3, abs=1e-9)
    # dp-accounting looks for the crossing to a few digits only, and finds a little less.
    adjacency = AdjacencyType.REMOVE if direction is Direction.REMOVE else AdjacencyType.ADD
    known = MixtureGaussianPrivacyLoss(sigma, *mixture(p, q, size, cap), adjacency_type=adjacency)
    assert (value >= known.get_delta_for_epsilon(epsilon) * (1 - 1e-9) - 1e-13).all()


@pytest.mark.parametrize(("cap", "epsilon"), [(1.0, 0.12662), (2.0, 0.28544)])
def test_many_rounds_agree_with_dp_accounting(cap, epsilon):
    # from_mixture_gaussian_mechanism at a step of 2^-15, 10 000 rounds, δ = 1e-5.
    terms = WholeClient(Round(p=0.001, q=0.1, d=30, noise_multiplier=2.4903, cap=cap))
    assert epsilon_after([(terms, 10_000)], 1e-5) == pytest.approx(epsilon, rel=2e-3)


def test_a_few_rounds_agree_with_dp_accounting_in_the_same_run():
    known = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        2.0, *mixture(0.1, 0.2, 8, 3.0), value_discretization_interval=1e-3
    ).self_compose(50)
    terms = WholeClient(Round(p=0.1, q=0.2, d=8, noise_multiplier=2.0, cap=3.0))
    expected = known.get_epsilon_for_delta(1e-5)
    assert epsilon_after([(terms, 50)], 1e-5) == pytest.approx(expected, rel=3e-3)


@given(probability, probability, st.integers(1, 200), st.floats(0.3, 20), caps, directions)
@settings(max_examples=60, deadline=None)
def test_it_grows_with_the_cap_and_the_size_and_stays_below_full_length(
    p, q, size, sigma, cap, direction
):
    def loss(size=size, cap=cap):
        epsilon = np.array([0.0, 0.05, 0.5, 2.0])
        return client_delta(epsilon, p=p, q=q, size=size, sigma=sigma, cap=cap, direction=direction)

    slack, tiny = 1 + 1e-9, 1e-14
    assert (loss() <= loss(cap=1.3 * cap) * slack + tiny).all()
    assert (loss() <= loss(size=size + 3) * slack + tiny).all()
    if math.isfinite(cap):
        # At most sensitivity cap at rate p.
        most = CentralShuffling(Round(p=p, q=1.0, d=0, noise_multiplier=sigma / cap))
        bound = most.delta(np.array([0.0, 0.05, 0.5, 2.0]), direction)
        assert (loss() <= bound * slack + tiny).all()


@given(probability, probability, st.floats(0.3, 20), st.floats(0, 2), directions)
@settings(max_examples=40, deadline=None)
def test_a_client_of_one_element_loses_what_the_element_does(p, q, sigma, epsilon, direction):
    alone = WholeClient(Round(p=p, q=q, d=1, noise_multiplier=sigma)).delta(epsilon, direction)
    element = Certified(Round(p=p, q=q, d=0, noise_multiplier=sigma)).delta(epsilon, direction)
    assert alone == pytest.approx(element, rel=1e-8, abs=1e-15)


def test_a_client_without_elements_loses_nothing():
    assert WholeClient(Round(p=0.5, q=0.5, d=0, noise_multiplier=1.0)).delta(0.0) == 0.0


@pytest.mark.parametrize(("q", "cap"), [(0.5, 3.0), (1e-5, math.inf), (0.01, math.inf)])
def test_huge_clients_need_few_components(q, cap):
    terms = WholeClient(Round(p=0.01, q=q, d=10**6, noise_multiplier=2.0, cap=cap))
    values = terms.delta(np.linspace(0, 5, 50))
    assert np.isfinite(values).all()
    assert (np.diff(values) <= 1e-12).all()
    # Whoever takes part with long sums is seen to do so.
    assert values[0] <= 0.01 * (1 + 1e-9)


def test_a_cap_below_one_clip_norm_is_refused():
    with pytest.raises(ValueError, match=r"cap = 0\.5 must be at least 1"):
        WholeClient(Round(p=0.5, q=0.5, d=3, noise_multiplier=1.0, cap=0.5))


@given(probability, probability, st.integers(1, 30), st.floats(0.3, 20), caps, directions)
@settings(max_examples=40, deadline=None)
def test_a_client_that_is_seen_to_join_loses_on_average_what_that_shows(
    p, q, size, sigma, cap, direction
):
    """Whoever sees the coin sees nothing at all, or a client that always joins."""
    epsilon = np.array([0.01, 0.1, 0.7, 2.0])
    round_ = Round(p=p, q=q, d=size, noise_multiplier=sigma, cap=cap)
    value = SeenWholeClient(round_).delta(epsilon, direction)
    expected = p * on_a_grid(epsilon, 1.0, q, size, sigma, cap, direction)
    assert value == pytest.approx(expected, rel=1e-3, abs=1e-9)
    # A secret coin never shows more, and at p = 1 there is none.
    hidden = WholeClient(round_).delta(epsilon, direction)
    assert (hidden <= value * (1 + 1e-9) + 1e-13).all()
    # For ε < 0 the rounds that it sits out add 1 − e^ε.
    mirrored = SeenWholeClient(round_).delta(-epsilon, direction)
    always = on_a_grid(-epsilon, 1.0, q, size, sigma, cap, direction)
    assert mirrored == pytest.approx(p * always + (1 - p) * -np.expm1(-epsilon), rel=1e-3)


def test_whoever_charges_a_record_knows_what_to_say_of_the_client():
    round_ = Round(p=0.3, q=0.2, d=5, noise_multiplier=1.5, cap=2.0)
    free = Round(p=0.3, q=0.2, d=5, noise_multiplier=1.5)
    always = Round(p=1.0, q=0.2, d=5, noise_multiplier=1.5, cap=2.0)
    known = {
        Certified(round_): WholeClient(round_),
        CertifiedBySample(free): WholeClient(free),
        WeakClientSampling(round_): SeenWholeClient(round_),
        OnlyLocalSampling(round_): WholeClient(always),
    }
    assert {type(cost) for cost in known} == set(CHARGED.values())
    for cost, whole in known.items():
        assert whole_client(cost) == whole
        assert not whole.is_chargeable
        # Five records lose no less than one of them does.
        assert whole.delta(0.1) >= type(cost)(Round(0.3, 0.2, 0, 1.5)).delta(0.1)
