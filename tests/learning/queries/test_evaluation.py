"""Evaluations: what records say of a model, what the sums say, and how far off they may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import make_task
from coinflower.learning.queries.blocks import vectors
from coinflower.learning.queries.estimates import Estimate, area_under_curve, mean
from coinflower.learning.queries.evaluation import Evaluation, usual_evaluation

CLASSES = make_task("classification", {}, outputs=3)
BINARY = make_task("binary", {}, outputs=1)
LABELS = make_task("multilabel", {}, outputs=2)
NUMBERS = make_task("regression", {}, outputs=1)
EVERY = [
    (CLASSES, ("accuracy", "loss")),
    (BINARY, ("auc", "accuracy", "loss")),
    (LABELS, ("accuracy", "loss")),
    (NUMBERS, ("rmse", "mae", "loss")),
]
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


class Told(nn.Module):
    """A model that answers with what it is given."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def evaluation(task: Any, metrics: Any, **options: Any) -> Evaluation:
    return Evaluation(usual_evaluation(task, metrics=metrics, **options), task)


def targets_for(task: Any, rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if task is CLASSES:
        return torch.randint(3, (rows,), generator=generator)
    labels = torch.randint(2, (rows, task.outputs), generator=generator).float()
    return labels if task is not NUMBERS else torch.randn(rows, 1, generator=generator)


def noisy(total: Any, noise: float, seed: int) -> Any:
    return total + np.random.default_rng(seed).normal(0, noise, total.shape).astype(np.float32)


@pytest.mark.parametrize(("task", "metrics"), EVERY)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_record_is_longer_than_the_clip_norm(task: Any, metrics: Any, data: Any) -> None:
    rows = data.draw(st.integers(1, 6))
    outputs = data.draw(arrays.arrays(np.float32, (rows, task.outputs), elements=FLOATS))
    blocks = evaluation(task, metrics).blocks(torch.from_numpy(outputs), targets_for(task, rows))
    assert (np.linalg.norm(vectors(blocks, 2.0), axis=1) <= 2.0 * (1 + 1e-12)).all()


@pytest.mark.parametrize(("task", "metrics"), EVERY)
def test_an_answer_is_as_long_as_said(task: Any, metrics: Any) -> None:
    asked = evaluation(task, metrics)
    some = asked.sum_over(Told(), (torch.zeros(3, task.outputs),), targets_for(task, 3), 1.0)
    none = asked.sum_over(Told(), (torch.zeros(0, task.outputs),), targets_for(task, 0), 1.0)
    assert some.shape == none.shape == (asked.length,)
    assert not none.any()


def test_sums_without_noise_give_the_metrics_themselves() -> None:
    generator = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(500, 3, generator=generator), targets_for(CLASSES, 500)
    asked = evaluation(CLASSES, ("accuracy", "loss"), largest_loss=100.0)
    total = asked.sum_over(Told(), (outputs,), targets, 0.5)
    told = asked.read(total, clip_norm=0.5, noise_std=0.0)
    assert told["accuracy"].value == pytest.approx(
        float((outputs.argmax(1) == targets).float().mean()), abs=1e-6
    )
    loss = float(nn.functional.cross_entropy(outputs, targets))
    assert told["loss"].value == pytest.approx(loss, rel=1e-5)


def test_errors_of_numbers_are_found_in_their_own_unit() -> None:
    generator = torch.Generator().manual_seed(2)
    targets = targets_for(NUMBERS, 400)
    outputs = targets + 0.3 * torch.randn(400, 1, generator=generator)
    asked = evaluation(NUMBERS, ("rmse", "mae"), largest_error=50.0)
    told = asked.read(
        asked.sum_over(Told(), (outputs,), targets, 1.0), clip_norm=1.0, noise_std=0.0
    )
    distances = (outputs - targets).numpy()
    assert told["rmse"].value == pytest.approx(math.sqrt((distances**2).mean()), rel=1e-4)
    assert told["mae"].value == pytest.approx(np.abs(distances).mean(), rel=1e-4)


def test_a_histogram_of_scores_gives_the_auc_up_to_the_width_of_its_bins() -> None:
    generator = torch.Generator().manual_seed(3)
    targets = targets_for(BINARY, 4000)
    outputs = 2 * targets - 1 + torch.randn(4000, 1, generator=generator)
    asked = evaluation(BINARY, ("auc",), bins=200)
    told = asked.read(
        asked.sum_over(Told(), (outputs,), targets, 1.0), clip_norm=1.0, noise_std=0.0
    )
    exact = roc_auc_score(targets[:, 0], outputs[:, 0])
    assert told["auc"].value == pytest.approx(exact, abs=2e-3)


def test_a_loss_beyond_the_largest_counts_as_that() -> None:
    outputs = torch.tensor([[50.0, 0.0, 0.0], [0.0, 50.0, 0.0]])
    asked = evaluation(CLASSES, ("loss",), largest_loss=4.0)
    total = asked.sum_over(Told(), (outputs,), torch.tensor([0, 0]), 1.0)
    assert asked.read(total, clip_norm=1.0, noise_std=0.0)["loss"].value == pytest.approx(2.0)


def test_each_record_meets_the_model_alone() -> None:
    """Else how a batch is rounded would let one record turn over the answers to others."""
    sizes = []

    class Watching(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            sizes.append(len(rows))
            return rows

    asked = evaluation(CLASSES, ("accuracy",))
    asked.sum_over(Watching(), (torch.randn(5, 3),), targets_for(CLASSES, 5), 1.0)
    assert sizes == [1] * 5


def test_noise_moves_figures_as_far_as_their_standard_error_says() -> None:
    """Fails falsely once in 10⁶; rejects an error that is stated a fifth too small or large.

    All records stay, so that the noise is all that varies; twice the variance is the noise's here.
    """
    rows, noise, trials = 3000, 40.0, 2000
    outputs, targets = torch.zeros(rows, 3), torch.arange(rows) % 3
    outputs[:, 0] = 1.0
    asked = evaluation(CLASSES, ("accuracy",))
    total = asked.sum_over(Told(), (outputs,), targets, 1.0)
    told = [
        asked.read(noisy(total, noise, seed), clip_norm=1.0, noise_std=noise)["accuracy"]
        for seed in range(trials)
    ]
    values = np.array([each.value for each in told])
    sample = math.sqrt((1 / 3) * (2 / 3) / rows)
    errors = np.array([each.standard_error for each in told])
    by_noise = np.sqrt(errors**2 - sample**2).mean()
    assert abs(values.mean() - 1 / 3) < 5 * by_noise / math.sqrt(trials)
    for factor, fits in ((1.0, True), (0.8, False), (1.2, False)):
        statistic = float((((values - 1 / 3) / (factor * by_noise)) ** 2).sum())
        law = stats.chi2(trials)
        assert (2 * min(law.cdf(statistic), law.sf(statistic)) > 1e-6) == fits


def test_a_sample_moves_figures_as_far_as_their_standard_error_says() -> None:
    """Fails falsely once in 10⁶; rejects an error that is stated a fifth too small or large."""
    generator, trials = np.random.default_rng(0), 2000
    counts = np.array([generator.poisson([700.0, 300.0]) for _ in range(trials)], dtype=float)
    told = [mean(each, np.array([1.0, 0.0]), 0.0) for each in counts]
    scores = np.array([(each.value or 0) - 0.7 for each in told])
    errors = np.array([each.standard_error for each in told])
    for factor, fits in ((1.0, True), (0.8, False), (1.2, False)):
        statistic = float(((scores / (factor * errors)) ** 2).sum())
        law = stats.chi2(trials)
        assert (2 * min(law.cdf(statistic), law.sf(statistic)) > 1e-6) == fits


def test_a_noisy_auc_is_right_on_average_and_as_far_off_as_it_says() -> None:
    """Fails falsely once in 10⁶; rejects an error that is stated a fifth too small or large."""
    generator, trials = np.random.default_rng(1), 2000
    yes, no = np.array([50.0, 150.0, 300.0, 500.0]), np.array([500.0, 300.0, 150.0, 50.0])
    exact = area_under_curve(yes, no, 0.0).value
    told = [
        area_under_curve(
            generator.poisson(yes) + generator.normal(0, 20, 4),
            generator.poisson(no) + generator.normal(0, 20, 4),
            20.0,
        )
        for _ in range(trials)
    ]
    scores = np.array([((each.value or 0) - exact) / each.standard_error for each in told])
    assert abs(scores.mean()) < 5 / math.sqrt(trials)
    for factor, fits in ((1.0, True), (0.8, False), (1.2, False)):
        statistic = float(((scores / factor) ** 2).sum())
        law = stats.chi2(trials)
        assert (2 * min(law.cdf(statistic), law.sf(statistic)) > 1e-6) == fits


def test_nothing_but_noise_gives_no_figure() -> None:
    asked = evaluation(BINARY, ("auc", "accuracy"))
    told = asked.read(
        noisy(np.zeros(asked.length, np.float32), 10.0, 0), clip_norm=1.0, noise_std=10.0
    )
    assert [each.value for each in told.values()] == [None, None]
    assert Estimate(value=None, standard_error=None).root().value is None


@pytest.mark.parametrize(
    ("task", "metric"),
    [(CLASSES, "auc"), (CLASSES, "rmse"), (NUMBERS, "accuracy"), (LABELS, "auc"), (BINARY, "mae")],
)
def test_a_metric_that_a_task_does_not_have_is_refused(task: Any, metric: str) -> None:
    with pytest.raises(UserError, match="is not one that a task of kind"):
        usual_evaluation(task, metrics=(metric,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("task", "metrics"),
    [(CLASSES, ("accuracy",)), (BINARY, ("auc",)), (LABELS, ("accuracy",)), (NUMBERS, ("rmse",))],
)
def test_what_nobody_chose_is_the_metric_to_look_at_first(task: Any, metrics: Any) -> None:
    assert usual_evaluation(task).metrics == metrics
