"""The paper's settings on the data at hand, what their noise is, and what it costs."""

import numpy as np
import pytest

from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.paper import AsPlotted
from coinflower.accounting.composition.calibration import CalibrationError
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.experiments.simulator.scenarios import (
    SETTINGS,
    Federation,
    analysis_of,
    calibrated_sigma,
    federate,
    upper_epsilon,
)
from coinflower.experiments.simulator.simulator import CENTRAL
from coinflower.learning import Dataset, Records
from coinflower.protocol.modes import Mode

MANY, FEW = SETTINGS["many-small"], SETTINGS["few-large"]


def data(records, writers=None):
    """Return images that need no memory."""
    images = np.broadcast_to(np.zeros((1, 1, 28, 28), np.uint8), (records, 1, 28, 28))
    train = Records(inputs=images, targets=np.zeros(records, np.int64), persons=writers)
    return Dataset(name="blank", train=train, test_part=train.take(slice(1)), class_count=10)


def federation(sizes, p=0.01, q=0.1):
    sizes = np.asarray(sizes)
    return Federation(sizes=sizes, rows=np.arange(sizes.sum()), p=p, q=q)


def test_at_full_size_the_setting_is_the_papers():
    full = federate(MANY, data(697_932))
    assert (len(full.sizes), full.largest, full.p, full.q) == (23_264, 30, 0.001, 0.1)


def test_on_less_data_d_q_and_batch_stay():
    small = federate(MANY, data(60_000))
    assert (len(small.sizes), small.largest, small.q) == (2000, 30, 0.1)
    assert small.mean_batch == pytest.approx(70)


def test_where_p_would_exceed_one_q_is_fitted_instead():
    small = federate(FEW, data(60_000))
    assert (len(small.sizes), small.p) == (60, 0.1)
    assert small.mean_batch == pytest.approx(70)


def test_where_q_would_exceed_one_as_well_everybody_takes_part():
    tiny = federate(MANY, data(600))
    assert (tiny.p, tiny.q) == (1.0, pytest.approx(70 / 600))


def test_p_is_fitted_to_a_given_q():
    assert federate(MANY, data(60_000), q=0.2).mean_batch == pytest.approx(70)


def test_q_stays_the_papers_beside_a_given_p():
    assert federate(MANY, data(600), p=0.5).q == 0.1


def test_in_local_only_everybody_takes_part():
    everybody = federate(MANY, data(60_000), noise=Mode.LOCAL_ONLY)
    assert everybody.p == 1
    assert everybody.mean_batch == pytest.approx(70)


def test_where_everybody_answers_anyway_under_masks_there_is_no_coin_unless_asked_for():
    masked = federate(MANY, data(60_000), noise=Mode.MASKED)
    assert (masked.p, masked.mean_batch) == (1.0, pytest.approx(70))
    assert federate(MANY, data(60_000), noise=Mode.MASKED, q=0.1).q == 0.1
    assert federate(MANY, data(60_000), noise=Mode.MASKED, p=0.5).p == 0.5
    assert federate(MANY, data(60_000), noise=Mode.UNTRUSTED).p < 1


def test_writers_make_unequal_clients_whose_rows_are_their_own():
    writers = np.repeat([3, 7, 9], [100, 500, 900])
    people = federate(MANY, data(1500, writers), how="writer")
    assert sorted(people.sizes) == [100, 500, 900]
    for rows in np.split(people.rows, np.cumsum(people.sizes)[:-1]):
        assert len(set(writers[rows])) == 1


def test_more_clients_than_the_data_makes_are_refused():
    with pytest.raises(ValueError, match=r"2,001 clients of 30 records each need 60,030 records"):
        federate(MANY, data(60_000), clients=2001)


def test_the_papers_noise_costs_more_than_it_claims():
    full = federation([30] * 10, p=0.001)
    sigma = calibrated_sigma(full, AsPlotted, epsilon=None, delta=1e-5, iterations=100)
    assert sigma == pytest.approx(1.065, rel=3e-3)  # printed in the paper, section 6
    holds = upper_epsilon(full, Mode.TRUSTED, sigma, 10_000, 1e-5)
    claims = upper_epsilon(full, Mode.TRUSTED, 2.4903, 10_000, 1e-5)
    assert holds > 2 * claims


@pytest.mark.parametrize(
    ("noise", "analysis"),
    [
        (Mode.TRUSTED, Certified),
        (Mode.COVERED, Certified),
        (Mode.UNTRUSTED, Certified),
        (Mode.QUIET, WeakClientSampling),
        (Mode.LOCAL_ONLY, OnlyLocalSampling),
        (CENTRAL, CentralShuffling),
        (Mode.NONE, None),
    ],
)
def test_every_noise_model_is_charged_by_an_analysis_that_holds_for_it(noise, analysis):
    assert analysis_of(noise) is analysis
    cost = upper_epsilon(federation([30] * 10), noise, 1.0, 50, 1e-5)
    if analysis is None:
        assert cost is None
    else:
        terms = analysis(Round(p=0.01, q=0.1, d=30, noise_multiplier=1.0))
        assert cost == epsilon_after([(terms, 50)], 1e-5)


def test_unequal_clients_are_all_within_the_budget():
    unequal = federation([5, 30, 200])
    sigma = calibrated_sigma(unequal, Certified, epsilon=1.0, delta=1e-5, iterations=100)
    costs = [
        epsilon_after([(Certified(Round(p=0.01, q=0.1, d=d, noise_multiplier=sigma)), 100)], 1e-5)
        for d in (5, 30, 200)
    ]
    assert max(costs) <= 1.0
    assert upper_epsilon(unequal, Mode.TRUSTED, sigma, 100, 1e-5) == max(costs)


def test_a_budget_that_needs_more_noise_than_helps_is_refused():
    with pytest.raises(CalibrationError, match="asks for sigma"):
        calibrated_sigma(
            federation([30], p=1.0, q=1.0), Certified, epsilon=1e-3, delta=1e-5, iterations=1000
        )


@pytest.mark.parametrize("how", ["equal", "writer"])
def test_no_clients_at_all_are_refused(how):
    with pytest.raises(ValueError, match="clients = 0"):
        federate(MANY, data(1500, np.repeat([1, 2], 750)), how=how, clients=0)
