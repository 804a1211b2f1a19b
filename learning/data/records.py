"""Rows of data as arrays: what a model is given, what it should answer, and whose row it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.rows import Chosen, Rows, require_whole, rows_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Rows of any shape, in memory or in a mapped file.

    Attributes:
        inputs: What the model takes, rows first: floats as they are, bytes (uint8) as 0 to 1, truth
            values as 0 and 1, other integers as indices, such as those of words. Images are
            N x channels x height x width.
        targets: What it should answer, rows first: int64 classes, or float32 numbers of any shape.
        more_inputs: Further arrays of the same rows, for a model that takes several: it is called
            as ``model(inputs, *more_inputs)``.
        persons: Whose row each is, int64; rows of equal numbers are one person's. None if nobody
            said. An id has the same number in all files (`coinflower.learning.data.person_ids`).
        weights: What each row weighs in the loss, float32, not negative; None for 1.
        schema: Hash of the schema that a table was read by; None for what is no table.
        target_scale: How much of its own unit is 1 in each number of a target; None if targets are
            as they were.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    more_inputs: tuple[NDArray[Any], ...] = ()
    persons: Rows | None = None
    weights: NDArray[np.float32] | None = None
    schema: str | None = None
    target_scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check that the arrays are rows of one table, of types that a model can take."""
        for array in self.arrays:
            if array.ndim < 2 or array.dtype.kind not in "bfiu":
                raise UserError(
                    f"inputs of shape {array.shape} and type {array.dtype} must be an array of "
                    "numbers with the rows first, such as N x features or N x channels x height x "
                    "width"
                )
        if self.targets.dtype not in (np.dtype(np.int64), np.dtype(np.float32)):
            raise UserError(f"targets of type {self.targets.dtype} must be int64 or float32")
        if self.persons is not None and self.persons.dtype != np.int64:
            raise UserError(f"persons of type {self.persons.dtype} must be numbers of type int64")
        if self.weights is not None and self.weights.dtype != np.float32:
            raise UserError(f"weights of type {self.weights.dtype} must be float32")
        others = [("inputs", array) for array in self.more_inputs]
        others += [("targets", self.targets)]
        known = {"persons": self.persons, "weights": self.weights}
        for what, values in (*others, *known.items()):
            if values is not None and (values.ndim < 1 or len(values) != len(self.inputs)):
                raise UserError(
                    f"{len(self.inputs)} rows have {what} of shape {values.shape}: there must be "
                    "one per row"
                )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All arrays that the model takes, in their order."""
        return self.inputs, *self.more_inputs

    @property
    def row_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of a row of each array."""
        return tuple(array.shape[1:] for array in self.arrays)

    @property
    def described(self) -> str:
        """Shape and type of a row's inputs, for people."""
        return " and ".join(map(describe, self.arrays))

    @property
    def are_classified(self) -> bool:
        """Whether each row has one class as its target."""
        return self.targets.dtype == np.int64 and self.targets.ndim == 1

    def take(self, rows: Chosen) -> Records:
        """Return some of the rows; inputs in mapped files stay there."""
        return replace(
            self,
            inputs=rows_of(self.inputs, rows),
            targets=self.targets[rows],
            more_inputs=tuple(rows_of(array, rows) for array in self.more_inputs),
            persons=None if self.persons is None else self.persons[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    def batch(self, rows: Chosen) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return some of the rows as a model takes them, and their targets."""
        inputs = tuple(to_tensor(array[rows]) for array in self.arrays)
        return inputs, torch.from_numpy(self.targets[rows])

    def require_whole(self) -> None:
        """Refuse mapped files that were cut short since they were opened.

        Raises:
            UserError: With the file's name.
        """
        for array in self.arrays:
            require_whole(array)

    def blank_row(self) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return a row of zeros with its target, as `batch` does: it depends on no record."""
        inputs, targets = self.batch(slice(0))
        return tuple(map(_one_of_zeros, inputs)), _one_of_zeros(targets)


def describe(values: NDArray[Any]) -> str:
    """Return shape and type of a row, for people."""
    size = " x ".join(map(str, values.shape[1:])) or "single"
    return f"{size} {values.dtype}"


def _one_of_zeros(none: torch.Tensor) -> torch.Tensor:
    return none.new_zeros((1, *none.shape[1:]))


def are_indices(values: NDArray[Any]) -> bool:
    """Return whether numbers stand for something else, such as words."""
    return values.dtype.kind in "iu" and values.dtype != np.uint8


def to_tensor(inputs: NDArray[Any]) -> torch.Tensor:
    """Return rows as a tensor for a model: bytes from 0 to 1, other integers as they are.

    Call it on the rows of a batch, as `Records.batch` does, so that the records themselves stay as
    small as their bytes.
    """
    if are_indices(inputs):
        return torch.from_numpy(inputs.astype(np.int64, order="C"))
    scaled = inputs.astype(np.float32, order="C")
    if inputs.dtype == np.uint8:
        scaled /= 255
    return torch.from_numpy(scaled)
