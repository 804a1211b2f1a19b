"""Tasks of a user's own: one that is sound, and others that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

HERE = "tests.support.own_tasks"


def one_number(classes: int) -> nn.Module:
    """A linear model for rows of two numbers."""
    return nn.Linear(2, classes)


class Pinball:
    """Predicts a quantile."""

    outputs = 1
    headline = "missed"
    larger_is_better = False

    def __init__(self, quantile: float = 0.5) -> None:
        self.quantile = quantile

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        gap = targets - outputs
        return torch.maximum(self.quantile * gap, (self.quantile - 1) * gap)[:, 0]

    def metrics(self, outputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
        return {"below": (outputs < targets).mean(), "missed": np.abs(outputs - targets).mean()}


class Fragile(Pinball):
    """Has no loss for targets below 0, and fails for those above 1000."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if bool((targets > 1000).any()):
            raise ArithmeticError("too large")
        return (outputs - targets.sqrt()).square()[:, 0]

    def metrics(self, *_: np.ndarray) -> dict[str, Any]:
        return {"missed": float("nan"), "below": None}


class Ordinal(Pinball):
    """Takes classes."""

    targets = "classes"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert targets.dtype == torch.int64
        return (outputs[:, 0] - targets).square()


class Centred(Pinball):
    """Mixes records: subtracts the mean of the batch."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - outputs.mean(0) - targets).square()[:, 0]


class Balanced(Pinball):
    """Mixes records: weighs them by the batch's targets, which no gradient shows."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets).square() / (1 + targets.mean()))[:, 0]


class Neighbouring(Pinball):
    """Mixes records: compares each with the one before, without changing its value."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        before = outputs.roll(1, 0)
        return ((outputs - targets).square() + before - before.detach())[:, 0]


class Remembering(Pinball):
    """Mixes batches: weighs a record by how many came before it."""

    seen = 0

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.seen += len(outputs)
        return (outputs - targets).square()[:, 0] / self.seen


class Averaging(Pinball):
    """One number for all records, as torch's losses have it by default."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs, targets)


class Detached(Pinball):
    """Teaches nothing."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.detach() - targets).square()[:, 0]


class Listing(Pinball):
    """Returns no tensor."""

    def loss(self, outputs: torch.Tensor, _: torch.Tensor) -> Any:
        return [0.0] * len(outputs)


class Failing(Pinball):
    """Cannot be measured."""

    def metrics(self, *_: np.ndarray) -> dict[str, Any]:
        raise LookupError("no such thing")


class Lossless:
    """Has no loss."""

    def metrics(self, *_: np.ndarray) -> dict[str, Any]:
        return {}


def three_numbers(classes: int) -> nn.Module:
    """A model that takes no notice of how many numbers are wanted."""
    del classes
    return nn.Linear(2, 3)
