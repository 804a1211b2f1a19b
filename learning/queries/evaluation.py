"""Evaluation: what each record says about a model, and what the noisy sums say of it.

A model meets each record alone. In a batch, how a product of matrices is rounded depends on how
many rows there are. A gradient hardly changes by that, but the class with the largest logit may: a
server could send a model with which all records are so near to a tie that one record more turns all
of them over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import denormals_flushed
from coinflower.learning.queries.blocks import (
    Array,
    Codes,
    between,
    one_of,
    scale_of,
    weighted_sum,
)
from coinflower.learning.queries.estimates import Estimate, area_under_curve, mean
from coinflower.learning.tasks.classification import Binary, Classification, Multilabel
from coinflower.learning.tasks.regression import Regression
from coinflower.learning.tasks.task import Task
from coinflower.learning.update import answers
from coinflower.protocol.query import MetricName, Query, QueryKind

_USUAL_LOSS = 5.0
_USUAL_ERROR = 2.0
_RIGHT = np.array([1.0, 0.0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What a model said of some records, and what it should have said.

    Attributes:
        outputs: Rows x outputs.
        targets: As the task takes them.
        losses: The loss of each.
    """

    outputs: Array
    targets: Array
    losses: Array


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One block.

    Attributes:
        width: How many entries it has.
        encode: Returns the block of each record.
        read: Returns what the block's noisy sum says, given the noise on each entry.
    """

    width: int
    encode: Callable[[Answers], Array]
    read: Callable[[Array, float], Estimate]


class Evaluation:
    """A query of kind evaluation, for a task.

    Args:
        query: What is measured.
        task: What the model learned.

    Raises:
        UserError: The task has no such metric, or a limit that it needs is missing.
    """

    def __init__(self, query: Query, task: Task) -> None:
        self._task = task
        self._metrics = {name: _metric(name, query, task) for name in query.metrics}

    @property
    def length(self) -> int:
        """How many numbers an answer has."""
        return sum(metric.width for metric in self._metrics.values())

    def blocks(self, outputs: torch.Tensor, targets: torch.Tensor) -> list[Array]:
        """Return the blocks of some records, given what the model answered."""
        losses = outputs.new_zeros(len(targets))
        if "loss" in self._metrics:
            alone = zip(torch.split(outputs, 1), torch.split(targets, 1), strict=True)
            losses = torch.cat([self._task.losses(*pair) for pair in alone] or [losses])
        said = Answers(
            outputs=outputs.double().numpy(),
            targets=targets.double().numpy(),
            losses=losses.double().numpy(),
        )
        return [metric.encode(said) for metric in self._metrics.values()]

    def sum_over(
        self,
        model: nn.Module,
        inputs: tuple[torch.Tensor, ...],
        targets: torch.Tensor,
        clip_norm: float,
        persons: Codes | None = None,
    ) -> NDArray[np.float32]:
        """Return the sum over records, or persons, of vectors whose norm is at most C.

        Args:
            model: What is measured.
            inputs: The records.
            targets: As the task takes them.
            clip_norm: The bound C.
            persons: Whose each record is, if persons are protected.
        """
        if not len(targets):
            return np.zeros(self.length, np.float32)
        with denormals_flushed(), torch.no_grad():
            blocks = self.blocks(answers(model, inputs, batch=1), targets)
        return weighted_sum(blocks, clip_norm, persons)

    def read(
        self, total: NDArray[np.float32], *, clip_norm: float, noise_std: float
    ) -> dict[str, Estimate]:
        """Return what a noisy sum of vectors says.

        Args:
            total: The sum.
            clip_norm: The bound C.
            noise_std: Standard deviation of all the noise on each of its numbers.
        """
        unit = scale_of(len(self._metrics), clip_norm)
        widths = [metric.width for metric in self._metrics.values()]
        parts = np.split(total.astype(np.float64) / unit, np.cumsum(widths)[:-1])
        return {
            name: metric.read(part, noise_std / unit)
            for (name, metric), part in zip(self._metrics.items(), parts, strict=True)
        }


def usual_evaluation(
    task: Task,
    *,
    metrics: Sequence[MetricName] = (),
    largest_loss: float | None = None,
    largest_error: float | None = None,
    bins: int = Query.bins,
) -> Query:
    """Return an evaluation of a task; what nobody chose is as usual.

    One metric by default: each further one makes the noise on all of them larger.
    """
    chosen = tuple(metrics) or (_headline(task),)
    if "loss" in chosen and largest_loss is None:
        largest_loss = max(_USUAL_LOSS, 2 * math.log(max(2, task.outputs)))
    if {"rmse", "mae"} & {*chosen} and largest_error is None:
        largest_error = _USUAL_ERROR
    query = Query(
        kind=QueryKind.EVALUATION,
        metrics=chosen,
        largest_loss=largest_loss,
        largest_error=largest_error,
        bins=bins,
    )
    Evaluation(query, task)  # refuses what the task does not have
    return query


def _headline(task: Task) -> MetricName:
    if isinstance(task, Binary):
        return "auc"
    if isinstance(task, Regression):
        return "rmse"
    return "accuracy" if isinstance(task, Classification | Multilabel) else "loss"


def _metric(name: MetricName, query: Query, task: Task) -> Metric:
    if name == "loss":
        return _loss(_stated("largest_loss", query.largest_loss))
    if name == "accuracy" and isinstance(task, Classification | Binary | Multilabel):
        return _accuracy(task)
    if name == "auc" and isinstance(task, Binary):
        return _auc(query.bins)
    if name in ("rmse", "mae") and isinstance(task, Regression):
        return _error(_stated("largest_error", query.largest_error), squared=name == "rmse")
    kind = type(task).__name__.lower()
    raise UserError(f"metric {name!r} is not one that a task of kind {kind} has")


def _stated(name: str, limit: float | None) -> float:
    if limit is None:
        raise UserError(f"the query needs {name}: what is larger counts as that")
    return limit


def _accuracy(task: Classification | Binary | Multilabel) -> Metric:
    def right(said: Answers) -> NDArray[Any]:
        finite = np.isfinite(said.outputs).all(axis=1)
        if isinstance(task, Classification):
            return np.asarray((said.outputs.argmax(axis=1) == said.targets) & finite)
        shares = ((said.outputs > 0) == (said.targets == 1)).mean(axis=1)
        return np.asarray(np.where(finite, shares, 0.0))

    return Metric(
        width=2,
        encode=lambda said: between(right(said).astype(np.float64), 0.0, 1.0, unknown=0.0),
        read=lambda sums, noise: mean(sums, _RIGHT, noise),
    )


def _loss(largest: float) -> Metric:
    return Metric(
        width=2,
        encode=lambda said: between(said.losses, 0.0, largest, unknown=1.0),
        read=lambda sums, noise: mean(sums, largest * _RIGHT, noise),
    )


def _error(largest: float, *, squared: bool) -> Metric:
    most = largest**2 if squared else largest

    def errors(said: Answers) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            distances = np.abs(said.outputs - said.targets)
        return np.asarray((distances**2 if squared else distances).mean(axis=1))

    def read(sums: Array, noise: float) -> Estimate:
        found = mean(sums, most * _RIGHT, noise)
        return found.root() if squared else found

    return Metric(
        width=2,
        encode=lambda said: between(errors(said), 0.0, most, unknown=1.0),
        read=read,
    )


def _auc(bins: int) -> Metric:
    edges = logit(np.arange(1, bins) / bins)  # bins of equal width between probabilities 0 and 1

    def encode(said: Answers) -> Array:
        logits = said.outputs[:, 0]
        scores = np.searchsorted(edges, np.where(np.isnan(logits), -np.inf, logits), side="right")
        return one_of(scores + bins * (said.targets[:, 0] == 1), 2 * bins)

    return Metric(
        width=2 * bins,
        encode=encode,
        read=lambda sums, noise: area_under_curve(sums[bins:], sums[:bins], noise),
    )
