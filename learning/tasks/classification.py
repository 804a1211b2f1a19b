"""Tasks whose targets are classes: one of several, one of two, or any number of labels."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import cross_entropy
from coinflower.learning.tasks.metrics import binary_metrics, class_metrics, label_metrics
from coinflower.learning.tasks.targets import Taken, take_classes, take_labels
from coinflower.learning.tasks.task import Metrics
from coinflower.protocol.strict import Count, Listed, Positive, strict

_Weights = Listed[Positive] | None


@strict
class Classification:
    """One of several classes; a logit for each.

    Attributes:
        outputs: How many classes there are.
        class_weights: What a record of each class weighs; 1 by default.
    """

    headline: ClassVar[str] = "accuracy"
    larger_is_better: ClassVar[bool] = True
    predicts_targets: ClassVar[bool] = False

    outputs: Count
    class_weights: _Weights = None

    def __post_init__(self) -> None:
        """Check that there are classes, each with its weight."""
        if self.outputs < 2:
            raise UserError(
                f"classes = {self.outputs} must be at least 2: there is nothing to tell apart."
            )
        _check_weights(self.class_weights, self.outputs)

    def take(self, targets: NDArray[Any]) -> Taken:
        """Return the class of each row."""
        return take_classes(targets, self.outputs)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of each record."""
        losses = cross_entropy(outputs, targets)
        if self.class_weights is None:
            return losses
        return losses * outputs.new_tensor(self.class_weights)[targets]

    def metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Metrics:
        """Return accuracy and macro F1."""
        return class_metrics(outputs, targets)


@strict
class Binary:
    """Yes or no: one logit, which is positive for yes, that is for class 1.

    Attributes:
        outputs: 1.
        class_weights: What a record of class 0 and one of class 1 weigh; 1 by default.
    """

    headline: ClassVar[str] = "auc"
    larger_is_better: ClassVar[bool] = True
    predicts_targets: ClassVar[bool] = False

    outputs: Count = 1
    class_weights: _Weights = None

    def __post_init__(self) -> None:
        """Check that there is one logit, and a weight for each class."""
        if self.outputs != 1:
            raise UserError(
                f"classes = {self.outputs} must be 1 in task 'binary': its model answers with one "
                "number; choose 'classification' for several classes."
            )
        _check_weights(self.class_weights, 2)

    def take(self, targets: NDArray[Any]) -> Taken:
        """Return 0 or 1 for each row."""
        return take_labels(targets, 1)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of each record."""
        losses = _label_losses(outputs, targets)
        if self.class_weights is None:
            return losses[:, 0]
        no, yes = self.class_weights
        return (losses * torch.where(targets == 1, yes, no))[:, 0]

    def metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Metrics:
        """Return AUC, average precision, calibration, and accuracy beside the share of yes."""
        return binary_metrics(outputs[:, 0], targets[:, 0])


@strict
class Multilabel:
    """Any number of labels, each yes or no; a logit for each.

    Attributes:
        outputs: How many labels there are.
        class_weights: What a yes of each label weighs, where a no weighs 1; 1 by default.
    """

    headline: ClassVar[str] = "auc"
    larger_is_better: ClassVar[bool] = True
    predicts_targets: ClassVar[bool] = False

    outputs: Count
    class_weights: _Weights = None

    def __post_init__(self) -> None:
        """Check that each label has a weight."""
        _check_weights(self.class_weights, self.outputs)

    def take(self, targets: NDArray[Any]) -> Taken:
        """Return the labels of each row, 0 or 1."""
        return take_labels(targets, self.outputs)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy over the labels of each record."""
        weights = None if self.class_weights is None else outputs.new_tensor(self.class_weights)
        return _label_losses(outputs, targets, weights).mean(dim=1)

    def metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Metrics:
        """Return means of AUC, average precision and F1 over the labels."""
        return label_metrics(outputs, targets)


def _label_losses(
    outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(
        outputs, targets, pos_weight=weights, reduction="none"
    )


def _check_weights(weights: tuple[float, ...] | None, count: int) -> None:
    if weights is not None and len(weights) != count:
        raise UserError(f"class_weights has {len(weights)} numbers; there must be {count}.")
