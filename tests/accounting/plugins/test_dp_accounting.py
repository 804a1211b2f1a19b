"""The dp-accounting face: an event, and an accountant that knows it and nothing else."""

import dp_accounting
import pytest
from dp_accounting.privacy_accountant import UnsupportedEventError

from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.plugins.dp_accounting import (
    RandomParticipationAccountant,
    RandomParticipationDpEvent,
)


def event(sigma=1.5, **changes):
    fields = {"p": 0.1, "q": 0.1, "d": 10, "noise_multiplier": sigma, **changes}
    return RandomParticipationDpEvent(**fields)


def test_composed_events_cost_what_the_rounds_cost():
    accountant = RandomParticipationAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(event(), 100))
    accountant.compose(dp_accounting.ComposedDpEvent([event(2.0), dp_accounting.NoOpDpEvent()]))
    rounds = [(event().cost(), 100), (event(2.0).cost(), 1)]
    assert accountant.get_epsilon(1e-5) == epsilon_after(rounds, 1e-5)
    assert accountant.get_delta(0.5) == delta_after(rounds, 0.5)


def test_dp_accountings_own_calibration_works():
    target = 0.8
    found = dp_accounting.calibrate_dp_mechanism(
        RandomParticipationAccountant,
        lambda sigma: dp_accounting.SelfComposedDpEvent(event(sigma), 100),
        target,
        1e-5,
        tol=1e-3,
    )
    assert epsilon_after([(event(found).cost(), 100)], 1e-5) <= target
    assert epsilon_after([(event(found * 0.99).cost(), 100)], 1e-5) > target


@pytest.mark.parametrize(
    "foreign",
    [
        dp_accounting.GaussianDpEvent(1.0),
        dp_accounting.ComposedDpEvent([event(), dp_accounting.LaplaceDpEvent(1.0)]),
        event(scheme="paper"),
        event(scheme="cs"),
        event(p=2.0),
    ],
)
def test_everything_else_is_refused_and_nothing_composed(foreign):
    accountant = RandomParticipationAccountant()
    assert not accountant.supports(foreign)
    with pytest.raises(UnsupportedEventError):
        accountant.compose(foreign)
    assert accountant.get_epsilon(1e-5) == 0
