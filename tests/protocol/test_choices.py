"""What splits of a batch are worth: the signal that a cap leaves, noise, messages, rates."""

import math
from pathlib import Path

import numpy as np
import pytest

from coinflower.accounting.composition.calibration import Split
from coinflower.experiments.comparison.comparisons import COMPARISONS
from coinflower.experiments.comparison.playing import cells_of
from coinflower.experiments.comparison.record import TrainingRecord
from coinflower.protocol.modes import Mode
from coinflower.protocol.planning.choices import (
    CLIP_NORM,
    chosen,
    learning_rates,
    ranked,
    signal_left,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FEDERATION = {"clients": 100, "d": 30, "batch": 30.0, "bytes_per_answer": 8}


def split(p, sigma, cap=math.inf):
    return Split(p=p, q=0.01 / p, sigma=sigma, epsilon=1.0, cap=cap)


@pytest.mark.parametrize(("d", "q", "cap"), [(30, 0.1, 1.0), (30, 0.1, 2.0), (1000, 0.0117, 3.0)])
def test_the_signal_left_is_that_of_gradients_at_right_angles(d, q, cap):
    counts = np.random.default_rng(0).binomial(d, q, 200_000)
    sums = np.minimum(1, cap / np.sqrt(np.maximum(counts, 1))) * counts
    assert signal_left(d, q, cap) == pytest.approx(sums.sum() / counts.sum(), rel=0.01)


@pytest.mark.filterwarnings("error")
def test_a_cap_that_cannot_bite_leaves_everything():
    assert signal_left(9, 0.5, 3.0) == pytest.approx(1)
    assert signal_left(9, 0.5, math.inf) == 1
    assert signal_left(9, 0.5, 2.9) < 1
    assert signal_left(100, 0.1, 1e308) == pytest.approx(1.0)


def test_the_best_cap_of_each_p_is_kept_and_the_best_p_comes_first():
    found = ranked(
        [split(1.0, 1.0), split(0.1, 2.0), split(0.1, 1.1, cap=2.0), split(0.1, 0.9, cap=1.0)],
        mode=Mode.TRUSTED,
        **FEDERATION,
    )
    assert [(each.split.p, each.split.cap) for each in found] == [(1.0, math.inf), (0.1, 2.0)]
    assert [each.messages for each in found] == [100, 10]


def test_fewer_messages_are_worth_five_per_cent_of_noise():
    cheap = ranked([split(1.0, 1.0), split(0.5, 1.04)], mode=Mode.TRUSTED, **FEDERATION)
    dear = ranked([split(1.0, 1.0), split(0.5, 1.06)], mode=Mode.TRUSTED, **FEDERATION)
    assert chosen(cheap).split.p == 0.5
    assert chosen(dear).split.p == 1.0


def test_where_everybody_always_answers_the_least_noise_is_taken():
    found = ranked([split(1.0, 1.0), split(0.5, 1.01)], mode=Mode.COVERED, **FEDERATION)
    assert chosen(found).split.p == 1.0


def test_learning_rates_fall_with_the_noise_and_with_the_size_of_the_model():
    least, first, largest = learning_rates(0.01, 100_000)
    assert least < first < largest
    assert learning_rates(0.04, 100_000)[1] == pytest.approx(first / 4, rel=0.01)
    assert learning_rates(0.01, 1_600_000)[1] == pytest.approx(first / 4, rel=0.01)
    assert learning_rates(1e-9, 100)[1] == 1.5 / CLIP_NORM


@pytest.mark.parametrize(
    ("sigma", "best"), [(1.98, 0.02), (1.45, 0.02), (22.5, 0.00125), (4.19, 0.005), (0.71, 0.08)]
)
def test_the_best_rates_of_the_papers_batches_lie_within(sigma, best):
    least, _, largest = learning_rates(sigma / 70, 143_162)
    assert least <= best / CLIP_NORM <= largest


def test_the_best_rates_of_large_batches_lie_within():
    comparison = COMPARISONS["mnist"]
    record = TrainingRecord(RESULTS / "mnist" / "trainings.csv")
    for cell in cells_of(comparison):
        outcome = record.outcome(cell.level)
        if cell.line.name == "centralised DP-SGD" and outcome is not None:
            noise = cell.level.noise / comparison.batch
            least, _, largest = learning_rates(noise, 143_162)
            assert least <= min(outcome.rates)
            assert max(outcome.rates) <= largest
