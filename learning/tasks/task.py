"""What every task is: a loss for each record by itself, the targets it takes, and its metrics."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from coinflower.learning.tasks.targets import Taken

Metrics = dict[str, float | None]
"""Figures by name, the most important one first; None where the test data does not define one."""


class Task(Protocol):
    """What a model learns and how it is measured.

    The loss of a record depends on that record alone: else clipping would bound nothing.
    """

    @property
    def outputs(self) -> int:
        """How many numbers the model answers with."""

    @property
    def headline(self) -> str:
        """The metric to look at first."""

    @property
    def larger_is_better(self) -> bool:
        """Whether it is to grow."""

    @property
    def predicts_targets(self) -> bool:
        """Whether outputs are in the unit of the targets."""

    def take(self, targets: NDArray[Any]) -> Taken:
        """Return the targets of some rows as the loss takes them, and which rows do not fit.

        Raises:
            UserError: Targets of this shape are for another task, whatever their values are.
        """

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each record, of one row of outputs and its target as taken."""

    def metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Metrics:
        """Measure a model by its outputs for public test data."""
