"""The task whose targets are numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from numpy.typing import NDArray
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning.tasks.metrics import number_metrics
from coinflower.learning.tasks.targets import Taken, take_numbers
from coinflower.learning.tasks.task import Metrics
from coinflower.protocol.strict import Count, Positive, strict

_THRESHOLD = 1.0


@strict
class Regression:
    """Numbers to predict; an output for each.

    Attributes:
        outputs: How many numbers there are.
        loss: ``squared``, or ``huber``, which outliers pull less.
        huber_threshold: Public distance beyond which the Huber loss grows linearly; 1 by default.
            In a table, it counts scales of the schema's target.
    """

    headline: ClassVar[str] = "rmse"
    larger_is_better: ClassVar[bool] = False
    predicts_targets: ClassVar[bool] = True

    outputs: Count
    loss: Literal["squared", "huber"] = "squared"
    huber_threshold: Positive | None = None

    def __post_init__(self) -> None:
        """Check that a threshold is one of the Huber loss."""
        if self.huber_threshold is not None and self.loss != "huber":
            raise UserError(
                f"huber_threshold = {self.huber_threshold:g} goes with loss = 'huber' only."
            )

    def take(self, targets: NDArray[Any]) -> Taken:
        """Return the numbers of each row."""
        return take_numbers(targets, self.outputs)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over the numbers of each record."""
        if self.loss == "huber":
            threshold = self.huber_threshold or _THRESHOLD
            losses = functional.huber_loss(outputs, targets, reduction="none", delta=threshold)
        else:
            losses = functional.mse_loss(outputs, targets, reduction="none")
        return losses.mean(dim=1)

    def metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Metrics:
        """Return RMSE, MAE and R²."""
        return number_metrics(outputs, targets)
