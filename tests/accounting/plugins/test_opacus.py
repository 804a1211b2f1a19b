"""Opacus with our accountant: the same loop, the cost of random participation."""

import functools
import math

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, registry
from opacus.accountants.utils import get_noise_multiplier
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.accounting.plugins.opacus import RandomParticipationAccountant

SAMPLES, BATCH, SIGMA = 60, 6, 1.3
RATE = BATCH / SAMPLES


def train(engine, steps):
    """Run ``steps`` steps of Opacus' ordinary loop on random data."""
    data = TensorDataset(torch.randn(SAMPLES, 5), torch.randint(0, 2, (SAMPLES,)))
    model = nn.Linear(5, 2)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    while steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            steps -= 1
            if not steps:
                break


@pytest.fixture
def registered():
    """Put the accountant into Opacus' registry for one test."""
    name = RandomParticipationAccountant.mechanism()
    make = functools.partial(RandomParticipationAccountant, p=0.2, d=SAMPLES)
    registry.register_accountant(name, make)
    yield name
    del registry._ACCOUNTANTS[name]


def test_a_training_loop_costs_what_its_rounds_cost():
    engine = PrivacyEngine()
    engine.accountant = RandomParticipationAccountant(p=0.2, d=SAMPLES)
    train(engine, steps=7)
    terms = Certified(Round(p=0.2, q=RATE, d=SAMPLES, noise_multiplier=SIGMA))
    assert engine.accountant.history == [(SIGMA, RATE, 7)]
    assert len(engine.accountant) == 7
    assert engine.get_epsilon(1e-5) == epsilon_after([(terms, 7)], 1e-5)


def test_participation_at_random_costs_less_than_opacus_says():
    engine = PrivacyEngine(accountant="prv")
    train(engine, steps=5)
    ours = RandomParticipationAccountant(p=0.2, d=SAMPLES)
    ours.history = engine.accountant.history
    assert ours.get_epsilon(1e-5) < engine.get_epsilon(1e-5)


def test_alone_it_agrees_with_opacus_at_the_product_of_the_rates():
    ours = RandomParticipationAccountant(p=0.2, d=0)
    ours.history = [(1.1, 0.1, 500)]
    oracle = PRVAccountant()
    oracle.history = [(1.1, 0.02, 500)]
    low, _, high = oracle._get_dprv(eps_error=0.01, delta_error=1e-9).compute_epsilon(
        1e-5, 1e-9, 0.01
    )
    assert low <= ours.get_epsilon(1e-5) <= high


def test_opacus_creates_it_by_name_and_calibrates_with_it(registered):
    engine = PrivacyEngine(accountant=registered)
    assert isinstance(engine.accountant, RandomParticipationAccountant)
    sigma = get_noise_multiplier(
        target_epsilon=1.0, target_delta=1e-5, sample_rate=RATE, steps=100, accountant=registered
    )
    terms = Certified(Round(p=0.2, q=RATE, d=SAMPLES, noise_multiplier=sigma))
    assert 0.98 < epsilon_after([(terms, 100)], 1e-5) <= 1.0


def test_steps_with_other_noise_are_counted_apart():
    accountant = RandomParticipationAccountant(p=0.2, d=10, scheme="wcs")
    for noise in (1.0, 1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=0.1)
    assert accountant.history == [(1.0, 0.1, 2), (2.0, 0.1, 1), (1.0, 0.1, 1)]
    assert len(accountant) == 4


def test_a_step_without_noise_has_no_epsilon():
    accountant = RandomParticipationAccountant(p=0.2, d=10)
    assert accountant.get_epsilon(1e-5) == 0
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_its_state_survives_and_never_changes_its_terms():
    accountant = RandomParticipationAccountant(p=0.2, d=10)
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    state = accountant.state_dict()
    other = RandomParticipationAccountant(p=0.2, d=10)
    other.load_state_dict(state)
    assert other.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    for stranger in (
        RandomParticipationAccountant(p=0.1, d=10),
        RandomParticipationAccountant(p=0.2, d=10, scheme="ols"),
    ):
        with pytest.raises(ValueError, match="counted with"):
            stranger.load_state_dict(state)


@pytest.mark.parametrize("scheme", [name for name, s in SCHEMES.items() if not s.is_chargeable])
def test_what_does_not_bound_a_clients_loss_is_refused(scheme):
    with pytest.raises(ValueError, match="not an upper bound"):
        RandomParticipationAccountant(p=0.2, d=10, scheme=scheme)


@pytest.mark.parametrize(("p", "d"), [(0.0, 10), (1.5, 10), (0.2, -1)])
def test_wrong_terms_are_refused_at_once(p, d):
    with pytest.raises(ValueError, match=r"must be|is not"):
        RandomParticipationAccountant(p=p, d=d)
