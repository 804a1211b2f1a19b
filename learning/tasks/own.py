"""Tasks of the user's own, named ``package.module:Task``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.own_code import blamed_on_its_author, own_function
from coinflower.learning.tasks.targets import Taken, take_classes, take_numbers
from coinflower.learning.tasks.task import Metrics

_KINDS = ("classes", "numbers")


class OwnTask:
    """A user's class, asked for no more than it must know.

    It has ``loss(outputs, targets)``, one loss per record, and ``metrics(outputs, targets)``, a
    dict of figures from numpy arrays. Beside these it may have ``outputs``, how many numbers the
    model answers with; ``targets``, which is "numbers" (float32, rows x numbers; the default) or
    "classes" (int64); ``headline``, the metric to look at first; and ``larger_is_better``.

    Args:
        name: Of the form ``package.module:Task``.
        options: What the class is called with.
        outputs: How many numbers the model answers with; None as many as the class says.

    Raises:
        UserError: The class cannot be loaded or lacks something, or it has other outputs.
    """

    predicts_targets = False

    def __init__(
        self, name: str, options: Mapping[str, Any], *, outputs: int | None = None
    ) -> None:
        self._what = f"task {name!r}"
        make = own_function(self._what, name, "a class with a loss and metrics")
        with blamed_on_its_author(self._what):
            self._own = make(**options)
        for method in ("loss", "metrics"):
            if not callable(getattr(self._own, method, None)):
                raise UserError(f"{self._what} has no method {method}(outputs, targets)")
        self._kind = getattr(self._own, "targets", "numbers")
        if self._kind not in _KINDS:
            raise UserError(f"{self._what}: targets = {self._kind!r} must be classes or numbers")
        self.stated_outputs: int | None = getattr(self._own, "outputs", None)
        if outputs is not None and self.stated_outputs not in (None, outputs):
            raise UserError(
                f"{self._what} has {self.stated_outputs} outputs, but the terms have {outputs}"
            )
        self.outputs = outputs or self.stated_outputs or 1
        self.headline = str(getattr(self._own, "headline", ""))
        self.larger_is_better = bool(getattr(self._own, "larger_is_better", True))

    def take(self, targets: NDArray[Any]) -> Taken:
        """Return classes or numbers, whichever the class wants."""
        return take_classes(targets) if self._kind == "classes" else take_numbers(targets)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each record; one that is not finite counts as zero."""
        with blamed_on_its_author(self._what):
            losses = self._own.loss(outputs, targets)
        if not isinstance(losses, torch.Tensor):
            raise UserError(
                f"{self._what} returned {type(losses).__name__} as loss; it must be a tensor, one "
                "number per record"
            )
        return torch.where(losses.isfinite(), losses, losses.new_zeros(()))

    def metrics(self, outputs: NDArray[Any], targets: NDArray[Any]) -> Metrics:
        """Return the figures of the class, the headline first; None for what is not finite."""
        with blamed_on_its_author(self._what):
            found = {
                str(name): None if value is None else float(value)
                for name, value in self._own.metrics(outputs, targets).items()
            }
        if self.headline:
            found = {self.headline: found.get(self.headline)} | found
        return {
            name: value if value is not None and math.isfinite(value) else None
            for name, value in found.items()
        }
