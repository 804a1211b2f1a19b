"""The server's arithmetic on flat float32 vectors, and how good a model is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode

from coinflower.accounting.errors import UserError
from coinflower.learning.data.records import Records, to_tensor
from coinflower.learning.device import device_holding
from coinflower.learning.tasks.task import Metrics, Task

Vector = NDArray[np.float32]

_MOST_ROWS = 1000
# Of the largest layer's answer; a batch takes a few times as much, here 8 MiB each.
_BATCH_NUMBERS = 1 << 21


def mean_gradient(noisy_sum: Vector, *, p: float, q: float, declared_total: int) -> Vector:
    """Return the noisy sum over p·q·D, an estimate of the mean clipped gradient.

    It is unbiased unless a cap shortens clients' sums. By how much a cap does so depends on the
    data, so the scale takes no account of it (docs/mathematics.md, "The cap").

    D is the sum of the *declared* data-set sizes and fixed, so that one record more or less does
    not change the scale (docs/mathematics.md, "The mechanism").

    Args:
        noisy_sum: Sum of the clients' clipped gradient sums, noise included.
        p: Participation probability.
        q: Sampling rate.
        declared_total: Sum of the declared sizes of the available clients.

    Raises:
        ValueError: If p·q·D is not positive.
    """
    scale = p * q * declared_total
    if not scale > 0:
        raise UserError(
            f"p·q·declared_total = {p}·{q}·{declared_total} must have only positive factors"
        )
    return (noisy_sum / scale).astype(np.float32, copy=False)


def evaluate(
    model: nn.Module,
    inputs: torch.Tensor | NDArray[Any] | tuple[NDArray[Any], ...],
    targets: torch.Tensor | NDArray[np.int64],
    *,
    batch: int | None = None,
) -> float:
    """Return the share of records whose largest logit is the right class.

    Args:
        model: Evaluated in eval mode; its own mode is restored.
        inputs: What the model takes, as a data set holds it (one array or several), or a tensor
            that is ready for the model.
        targets: The right classes.
        batch: Records per forward pass; by default as many as little memory allows.

    Raises:
        ValueError: If there is no record, or the counts differ.
    """
    arrays = inputs if isinstance(inputs, tuple) else (inputs,)
    count = len(targets)
    for array in arrays:
        if count == 0 or len(array) != count:
            raise UserError(
                f"{len(array)} inputs and {count} targets given: evaluation needs equally many of "
                "both, and at least one"
            )
    right = answers(model, arrays, batch=batch).argmax(1) == torch.as_tensor(targets)
    return int(right.sum()) / count


def measure(model: nn.Module, records: Records, task: Task) -> Metrics:
    """Return the metrics of a model on public records whose targets fit the task.

    Numbers that a schema scaled are measured in their own unit.
    """
    taken = task.take(records.targets)
    told, wanted = answers(model, records.arrays).numpy(), taken.values
    if task.predicts_targets and records.target_scale is not None:
        told, wanted = told * records.target_scale, wanted * records.target_scale
    return task.metrics(told[taken.fit], wanted[taken.fit])


def answers(
    model: nn.Module,
    arrays: tuple[torch.Tensor | NDArray[Any], ...],
    *,
    batch: int | None = None,
) -> torch.Tensor:
    """Return what a model in eval mode answers; its own mode is restored.

    Args:
        model: The model.
        arrays: What it takes, records first.
        batch: Records per forward pass; by default as many as little memory allows.
    """
    device = device_holding(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()

    def answer(rows: slice) -> torch.Tensor:
        tensors = [
            array[rows] if isinstance(array, torch.Tensor) else to_tensor(array[rows])
            for array in arrays
        ]
        told: torch.Tensor = model(*(tensor.to(device) for tensor in tensors))
        return told.cpu()

    try:
        with torch.no_grad():
            if batch is None:
                with _Largest() as largest:
                    answer(slice(1))
                batch = max(1, min(_MOST_ROWS, _BATCH_NUMBERS // largest.numbers))
            starts = range(0, len(arrays[0]), batch)
            return torch.cat([answer(slice(start, start + batch)) for start in starts])
    finally:
        for module, training in modes.items():
            module.training = training


class _Largest(TorchFunctionMode):
    """Notes how many numbers the largest thing has that is computed of one record.

    Attributes:
        numbers: So many.
    """

    numbers = 1

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # What has another first dimension is the model's own, or as large as that of a record.
        if isinstance(result, torch.Tensor) and result.dim() and len(result) == 1:
            self.numbers = max(self.numbers, result.numel())
        return result
