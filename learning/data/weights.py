"""What a record weighs in the loss: a public matter of its own row, within a public range.

A weight scales a record's loss before its gradient is clipped, so that whatever it is, no record
moves a sum by more than the clip norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.reading import Fault, Mask

LARGEST = 1000.0
"""Largest weight in arrays, which have no schema that says it; what is above counts as this."""

Weights = NDArray[np.float32]


def weights_of(values: NDArray[Any]) -> tuple[Weights, list[Fault]]:
    """Return the weights of some arrays' rows, and which rows have none that can be used.

    Raises:
        UserError: They are no vector of numbers.
    """
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise UserError(
            f"weights of shape {values.shape} and type {values.dtype} must be a vector of numbers"
        )
    given = values.astype(np.float64)
    return clamped(given, (0.0, LARGEST)), [
        Fault(rows=np.isnan(given), why=lambda _: "its weight is NaN"),
        Fault(rows=given < 0, why=lambda row: f"its weight {given[row]:g} is negative"),
    ]


def clamped(values: NDArray[np.float64], limits: tuple[float, float]) -> Weights:
    """Return weights within a public range; what is no number weighs nothing."""
    return np.clip(np.nan_to_num(values, nan=0.0), *limits).astype(np.float32)


def outside(values: NDArray[np.float64], limits: tuple[float, float]) -> Mask:
    """Return which weights are not within a range."""
    least, largest = limits
    return (values < least) | (values > largest)
